"""Consuming: one aio-pika connection a worker and event loop, one channel a queue.

`link` opens the connection and reconnects, `frames` reads deliveries from its bytes, `session` is
one channel with what is to be acknowledged on it, `consumer` the stream of one queue, `delivery`
what it yields and `outcomes` what became of that beyond its channel. `inbox` reads a queue that
holds no work. No type of the client leaves this package.
"""

from django_jobq.backends.rabbitmq.consumer.consumer import RabbitMQConsumer
from django_jobq.backends.rabbitmq.consumer.delivery import RabbitMQDelivery
from django_jobq.backends.rabbitmq.consumer.frames import Message
from django_jobq.backends.rabbitmq.consumer.inbox import Inbox
from django_jobq.backends.rabbitmq.consumer.link import Link

__all__ = ["Inbox", "Link", "Message", "RabbitMQConsumer", "RabbitMQDelivery"]
