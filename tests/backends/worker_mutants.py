"""Broken workers, one fault each, that the suite of producer and worker must catch.

Most of them tell the backend the wrong thing: the deliveries that they settle are those of
`Misled`, a memory backend whose delivery class is the fault.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, ClassVar

from django_jobq.backends.base import Backend, Cause, Delivery
from django_jobq.backends.memory import MemoryBackend
from django_jobq.backends.memory.consumer import MemoryConsumer, MemoryDelivery
from django_jobq.envelope import Envelope
from django_jobq.worker.events import Result
from django_jobq.worker.outcomes import DeadLettered
from django_jobq.worker.worker import Worker

# Workers


class ServesEveryQueue(Worker):
    def __init__(
        self, backend: Backend, *, queues: Iterable[str] | None = None, **options: Any
    ) -> None:
        super().__init__(backend, **options)


class RunsOneTooMany(Worker):
    def __init__(self, backend: Backend, *, concurrency: int = 10, **options: Any) -> None:
        super().__init__(backend, concurrency=concurrency + 1, **options)


class StartsOneTooMany(Worker):
    def __init__(self, backend: Backend, *, max_jobs: int | None = None, **options: Any) -> None:
        more = None if max_jobs is None else max_jobs + 1
        super().__init__(backend, max_jobs=more, **options)


class LeavesWhatRuns(Worker):
    """Does not wait for running jobs when it stops."""

    def __init__(self, backend: Backend, **options: Any) -> None:
        super().__init__(backend, **{**options, "shutdown_timeout": 0})


class AcknowledgesBeforeTheJobRuns(Worker):
    def __init__(self, backend: Backend, **options: Any) -> None:
        super().__init__(backend, **options)
        process = self._runner.process

        async def acknowledge_and_process(delivery: Delivery) -> Result | None:
            await delivery.ack()
            return await process(delivery)

        self._runner.process = acknowledge_and_process  # type: ignore[method-assign]


class RunsAgainWhatItSettled(Worker):
    def __init__(self, backend: Backend, **options: Any) -> None:
        super().__init__(backend, **options)
        settle = self._runner.settle

        async def settle_and_publish(result: Result) -> None:
            await settle(result)
            if result.envelope is not None and result.envelope.attempt < 3:
                backend.publish(result.envelope)

        self._runner.settle = settle_and_publish  # type: ignore[method-assign]


class TellsTheHookAfterSettling(Worker):
    def __init__(self, backend: Backend, **options: Any) -> None:
        super().__init__(backend, **options)
        settle, call_hook = self._runner.settle, self._runner._call_hook

        async def say_nothing(result: Result, outcome: DeadLettered) -> None:
            return

        async def settle_and_tell(result: Result) -> None:
            await settle(result)
            if isinstance(result.outcome, DeadLettered):
                await call_hook(result, result.outcome)

        self._runner._call_hook = say_nothing  # type: ignore[method-assign]
        self._runner.settle = settle_and_tell  # type: ignore[method-assign]


class EndsWithTheFirstFailedSettle(Worker):
    def __init__(self, backend: Backend, **options: Any) -> None:
        super().__init__(backend, **options)
        settle = self._runner.settle

        async def settle_or_end(result: Result) -> None:
            await settle(result)
            if self.stats.settle_failures:
                self.shutdown()

        self._runner.settle = settle_or_end  # type: ignore[method-assign]


# What is settled


class Misled(MemoryBackend):
    """Hand out deliveries of the class ``faulty``."""

    faulty: ClassVar[type[MemoryDelivery]] = MemoryDelivery

    def consume(self, queue: str, prefetch: int) -> MemoryConsumer:
        consumer = super().consume(queue, prefetch)
        take = consumer._take

        def take_faulty() -> MemoryDelivery | None:
            delivery = take()
            if delivery is not None:
                delivery.__class__ = self.faulty
            return delivery

        consumer._take = take_faulty  # type: ignore[method-assign]
        return consumer


def misled(faulty: type[MemoryDelivery]) -> type[MemoryBackend]:
    """Return a backend that hands out such deliveries, under the name of the fault."""
    return type(faulty.__name__, (Misled,), {"faulty": faulty})


class DropsThePriorityOfARetry(MemoryDelivery):
    async def retry(self, successor: Envelope, delay: float) -> None:
        await super().retry(dataclasses.replace(successor, priority=0), delay)


class RetriesInFront(MemoryDelivery):
    async def retry(self, successor: Envelope, delay: float) -> None:
        await super().defer(successor, delay)


class RetriesAtOnce(MemoryDelivery):
    async def retry(self, successor: Envelope, delay: float) -> None:
        await super().retry(successor, delay / 2)


class RetriesUnknownJobsByPolicy(MemoryDelivery):
    async def retry(self, successor: Envelope, delay: float) -> None:
        is_unknown = "unknown_since" in successor.headers
        await super().retry(successor.next_attempt() if is_unknown else successor, delay)


class ForgetsTheCorrelation(MemoryDelivery):
    async def defer(self, successor: Envelope, delay: float) -> None:
        await super().defer(dataclasses.replace(successor, correlation_id=None), delay)


class ForgetsTheFirstEnqueue(MemoryDelivery):
    async def retry(self, successor: Envelope, delay: float) -> None:
        later = successor.enqueued_at + 10_000
        await super().retry(dataclasses.replace(successor, enqueued_at=later), delay)


class CountsADeferral(MemoryDelivery):
    async def defer(self, successor: Envelope, delay: float) -> None:
        await super().defer(successor.next_attempt(), delay)


class DefersBehindTheBacklog(MemoryDelivery):
    async def defer(self, successor: Envelope, delay: float) -> None:
        await super().retry(successor, delay)


class DefersWithoutWaiting(MemoryDelivery):
    async def defer(self, successor: Envelope, delay: float) -> None:
        await super().defer(successor, 0)


class DropsWhatItHandsBack(MemoryDelivery):
    async def release(self) -> None:
        await super().ack()


class CountsWhatItHandsBack(MemoryDelivery):
    async def release(self) -> None:
        await super().retry(self.envelope.next_attempt(), 0)


class DropsDeadLetters(MemoryDelivery):
    async def dead_letter(self, cause: Cause, reason: str, final: Envelope | None = None) -> None:
        await super().ack()


class MistakesTheCause(MemoryDelivery):
    async def dead_letter(self, cause: Cause, reason: str, final: Envelope | None = None) -> None:
        await super().dead_letter("fatal", reason, final)


class GivesNoReason(MemoryDelivery):
    async def dead_letter(self, cause: Cause, reason: str, final: Envelope | None = None) -> None:
        await super().dead_letter(cause, "failed", final)
