"""What the jobs of a queue came to, beyond the channel that delivered them.

A message whose channel is lost is delivered again. By job, attempt and deferrals it is known here
whether that job still runs, or what it came to and could not be settled with.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable

from django_jobq.backends.base import Delivery
from django_jobq.backends.rabbitmq.consumer.delivery import Key, RabbitMQDelivery

Settle = Callable[[Delivery], Awaitable[None]]

_MOST = 10_000


class Outcomes:
    """Remember running jobs, second copies of them, and the last outcomes."""

    def __init__(self) -> None:
        self._running: dict[Key, RabbitMQDelivery] = {}
        self._copies: dict[Key, list[RabbitMQDelivery]] = {}
        self._kept: OrderedDict[Key, Settle] = OrderedDict()
        self._acknowledged: OrderedDict[str, None] = OrderedDict()

    def begin(self, delivery: RabbitMQDelivery) -> None:
        """Note that a job runs, so that a copy of it waits."""
        if delivery.key is not None:
            self._running[delivery.key] = delivery

    def end(self, delivery: RabbitMQDelivery) -> None:
        """Note that a job does not run any more."""
        if delivery.key is not None and self._running.get(delivery.key) is delivery:
            del self._running[delivery.key]

    def acknowledge(self, message_id: str | None) -> None:
        """Note that a message is acknowledged, which may be lost on the way."""
        if message_id is not None:
            self._acknowledged[message_id] = None
            if len(self._acknowledged) > _MOST:
                self._acknowledged.popitem(last=False)

    def was_acknowledged(self, delivery: RabbitMQDelivery) -> bool:
        """Return whether a message came back though it was settled; no copy shares its id."""
        return delivery.redelivered and delivery.message_id in self._acknowledged

    def keep(self, delivery: RabbitMQDelivery, settle: Settle) -> RabbitMQDelivery | None:
        """Keep what a job came to; return the copy that can be settled with it at once."""
        self.end(delivery)
        if delivery.key is None:
            return None
        copies = [copy for copy in self.copies(delivery) if copy.session.is_alive]
        if copies:
            self._copies[delivery.key] = copies[1:]
            return copies[0]
        self._kept[delivery.key] = settle
        if len(self._kept) > _MOST:
            self._kept.popitem(last=False)
        return None

    def take(self, copy: RabbitMQDelivery) -> Settle | None:
        """Return and forget what the job of a message that came back has come to."""
        if not copy.redelivered or copy.key is None:
            return None
        return self._kept.pop(copy.key, None)

    def let_wait(self, copy: RabbitMQDelivery) -> bool:
        """Let a message that came back wait while its job runs; return False if it does not."""
        first = self._running.get(copy.key) if copy.redelivered and copy.key else None
        if first is None or first.settled or copy.key is None:
            return False
        self._copies.setdefault(copy.key, []).append(copy)
        return True

    def copies(self, delivery: RabbitMQDelivery) -> list[RabbitMQDelivery]:
        """Return and forget the copies that waited for a job."""
        return self._copies.pop(delivery.key, []) if delivery.key is not None else []
