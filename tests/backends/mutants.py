"""Broken memory backends, one fault each, that the contract suite must catch."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

from django_jobq.backends.base import AlreadySettled, Cause, Delivery
from django_jobq.backends.memory import MemoryBackend
from django_jobq.backends.memory.consumer import MemoryConsumer, MemoryDelivery
from django_jobq.backends.memory.state import Entry
from django_jobq.envelope import Envelope
from django_jobq.queues import QueueConfig


class AcksBeforeTheSuccessorIsStored(MemoryBackend):
    def replace(self, delivery: MemoryDelivery, *args: Any, **kwargs: Any) -> None:
        self._record(delivery, delivery.envelope, "retried")
        self._queues[delivery.queue].reserved.add(delivery.entry)
        try:
            super().replace(delivery, *args, **kwargs)
        finally:
            self._queues[delivery.queue].reserved.discard(delivery.entry)


class AcksBeforeTheDeadLetterIsStored(MemoryBackend):
    def bury(self, delivery: MemoryDelivery, *args: Any, **kwargs: Any) -> None:
        try:
            super().bury(delivery, *args, **kwargs)
        finally:
            self._queues[delivery.queue].reserved.discard(delivery.entry)


class FiresEarly(MemoryBackend):
    def _submit(self, envelope: Envelope, delay: float, *, front: bool) -> Future[None]:
        return super()._submit(envelope, delay * 0.8, front=front)


class DropsFractionsOfDelays(MemoryBackend):
    def _submit(self, envelope: Envelope, delay: float, *, front: bool) -> Future[None]:
        return super()._submit(envelope, int(delay), front=front)


class HoldsInOneLine(MemoryBackend):
    """Lets a delay wait for every delay that was asked for before it."""

    latest = 0.0

    def _submit(self, envelope: Envelope, delay: float, *, front: bool) -> Future[None]:
        self.latest = max(self.latest, delay)
        return super()._submit(envelope, self.latest, front=front)


class DeliversTwice(MemoryBackend):
    def reserve(self, consumer: MemoryConsumer) -> Entry | None:
        entry = super().reserve(consumer)
        if entry is not None and entry.deliveries == 1 and len(self._consumers) > 1:
            self._queues[consumer.queue].insert(Entry(entry.body, entry.level, deliveries=1), 0, 0)
        return entry


class IgnoresPrefetch(MemoryBackend):
    def consume(self, queue: str, prefetch: int) -> MemoryConsumer:
        return super().consume(queue, 0)


class KeepsTheSlotOfADeadLetter(MemoryBackend):
    def bury(self, delivery: MemoryDelivery, *args: Any, **kwargs: Any) -> None:
        super().bury(delivery, *args, **kwargs)
        delivery.consumer._unsettled[Entry(b"", 0)] = 1


class IgnoresPriorities(MemoryBackend):
    def _store(self, config: QueueConfig, envelope: Envelope, due: float, *, front: bool) -> None:
        entry = Entry(envelope.encode(), 0)
        self._state(config).insert(entry, due, self.clock())


class DefersToTheBack(MemoryBackend):
    def _store(self, config: QueueConfig, envelope: Envelope, due: float, *, front: bool) -> None:
        super()._store(config, envelope, due, front=False)


class LosesWhatAConsumerLeaves(MemoryBackend):
    def give_back(self, queue: str, entries: Any) -> None:
        for entry in entries:
            self._queues[queue].reserved.discard(entry)


class ReturnsItOutOfOrder(MemoryBackend):
    def give_back(self, queue: str, entries: Any) -> None:
        for entry in entries:
            entry.number = next(self._numbers)
        super().give_back(queue, entries)


class SettlesForAnOldOwner(MemoryBackend):
    def ack(self, delivery: MemoryDelivery) -> None:
        self._record(delivery, delivery.envelope, "succeeded")


class SettlesTwice(MemoryBackend):
    def consume(self, queue: str, prefetch: int) -> MemoryConsumer:
        return _ForgetfulConsumer(self, queue, prefetch)


class _ForgetfulConsumer(MemoryConsumer):
    def __init__(self, backend: MemoryBackend, queue: str, prefetch: int) -> None:
        with backend._lock:
            backend._state(backend.queue(queue))
        super().__init__(backend, queue, prefetch)

    def _take(self) -> MemoryDelivery | None:
        delivery = super()._take()
        if delivery is not None:
            delivery.__class__ = _ForgetfulDelivery
        return delivery


class _ForgetfulDelivery(MemoryDelivery):
    async def ack(self) -> None:
        try:
            await Delivery.ack(self)
        except AlreadySettled:
            return


class LosesDeadLetters(MemoryBackend):
    def bury(
        self, delivery: MemoryDelivery, cause: Cause, reason: str, final: Envelope | None
    ) -> None:
        self._record(delivery, None, "dead")


class AcceptsUnknownQueues(MemoryBackend):
    def queue(self, name: str) -> QueueConfig:
        return QueueConfig(name=name)


class MixesQueues(MemoryBackend):
    def _state(self, config: QueueConfig) -> Any:
        state = self._queues.get("a") or super()._state(QueueConfig(name="a"))
        return self._queues.setdefault(config.name, state)


class HangsAfterClose(MemoryBackend):
    def close(self) -> None:
        with self._lock:
            self._consumers.clear()
            self.is_closed = True


class WorksAfterClose(MemoryBackend):
    def _check_open(self) -> None:
        return


class CountsADeferralAsAnAttempt(MemoryBackend):
    def replace(
        self, delivery: MemoryDelivery, successor: Envelope, *args: Any, **kwargs: Any
    ) -> None:
        super().replace(delivery, successor.next_attempt(), *args, **kwargs)
