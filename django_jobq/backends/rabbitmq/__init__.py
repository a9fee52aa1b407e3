"""The RabbitMQ backend: jobs on a broker, every guarantee switched on."""

from django_jobq.backends.rabbitmq.backend import RabbitMQBackend
from django_jobq.backends.rabbitmq.options import RabbitMQOptions

__all__ = ["RabbitMQBackend", "RabbitMQOptions"]
