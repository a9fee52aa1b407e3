"""The benchmark's own connection to the broker: counts, purges, and the removal of every trace."""

from __future__ import annotations

import time
from typing import Any, Self

import pika
from pika.exceptions import ChannelClosedByBroker

from benchmarks import common
from django_jobq.backends.rabbitmq.topology import Exchange, Queue, Topology
from django_jobq.queues import QueueConfig

_LOCK = f"{common.PREFIX}.lock"
_RESOURCE_LOCKED = 405
_LOOK = 0.02


class BrokerBusy(Exception):
    """Report that another run of the benchmark uses this broker."""


class Broker:
    """Look after the benchmark's queues; one run at a time, which an exclusive queue ensures."""

    def __init__(self) -> None:
        parameters = pika.URLParameters(common.URL)
        # Nothing answers heartbeats while a measurement runs.
        parameters.heartbeat = 0
        self._connection = pika.BlockingConnection(parameters)
        self._channel = self._connection.channel()
        try:
            self._channel.queue_declare(_LOCK, exclusive=True)
        except ChannelClosedByBroker as error:
            if error.reply_code != _RESOURCE_LOCKED:
                raise
            raise BrokerBusy from error

    def __enter__(self) -> Self:
        self.remove_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.remove_all()
        self._connection.close()

    @property
    def version(self) -> str:
        """Return the broker's name, version and platform."""
        known: dict[str, Any] = self._connection._impl.server_properties
        return f"{known.get('product')} {known.get('version')} on {known.get('platform')}"

    def state(self, queue: str) -> tuple[int, int]:
        """Return how many messages are ready in a queue, and how many consumers it has."""
        method = self._channel.queue_declare(queue, passive=True).method
        return method.message_count, method.consumer_count

    def purge(self, queue: str) -> None:
        """Empty a queue."""
        self._channel.queue_purge(queue)

    def wait_for_ready(self, queue: str, expected: int, patience: float = 10.0) -> None:
        """Wait until exactly this many messages are ready and nobody consumes."""
        give_up = time.monotonic() + patience
        while (found := self.state(queue)) != (expected, 0):
            if time.monotonic() > give_up:
                raise AssertionError(
                    f"queue {queue} has {found[0]} ready jobs and {found[1]} consumers;"
                    f" {expected} and none are right"
                )
            time.sleep(_LOOK)

    def remove_all(self) -> None:
        """Delete every queue and exchange that a product may have made."""
        topology = Topology(prefix=common.PREFIX)
        celery, dramatiq = common.CELERY.queue, common.DRAMATIQ.queue
        queues = [celery, dramatiq, f"{dramatiq}.DQ", f"{dramatiq}.XQ"]
        exchanges = [celery]
        for item in [*topology.shared(), *topology.work(QueueConfig(name="default"))]:
            if isinstance(item, Queue):
                queues.append(item.name)
            elif isinstance(item, Exchange):
                exchanges.append(item.name)
        for name in queues:
            self._channel.queue_delete(name)
        for name in exchanges:
            self._channel.exchange_delete(name)
