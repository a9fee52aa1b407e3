"""Publishing: one pika connection a process, on a daemon thread of its own.

Callers hand `items` to the `publisher` and get futures; the thread of the `engine` alone touches
the `connection`. `confirms` follows what was written until the broker has it, and `calls` runs
declarations and questions. Every publish is mandatory and confirmed, and they are pipelined.
"""

from django_jobq.backends.rabbitmq.publisher.items import Publish
from django_jobq.backends.rabbitmq.publisher.publisher import Publisher

__all__ = ["Publish", "Publisher"]
