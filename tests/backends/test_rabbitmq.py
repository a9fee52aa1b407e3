from tests.backends.contract import BackendContract
from tests.backends.rabbitmq_contract import RabbitMQHooks


class TestRabbitMQContract(RabbitMQHooks, BackendContract):
    """Run the suite on classic queues."""
