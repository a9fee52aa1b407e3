from tests.backends.rabbitmq_contract import RabbitMQHooks


class TestRabbitMQContract(RabbitMQHooks):
    """Run the suite on classic queues."""
