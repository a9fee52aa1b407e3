"""The consuming half of the memory backend."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from django_jobq.backends.base import Cause, Consumer, Delivery
from django_jobq.backends.memory.state import Entry, Kind
from django_jobq.envelope import Envelope

if TYPE_CHECKING:
    from django_jobq.backends.memory.backend import MemoryBackend


class MemoryConsumer(Consumer):
    """Hand out the entries of one queue."""

    def __init__(self, backend: MemoryBackend, queue: str, prefetch: int) -> None:
        self.queue = queue
        self._backend = backend
        self._prefetch = prefetch
        self._unsettled: dict[Entry, int] = {}
        self._stopped = False
        self._changed = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    async def __anext__(self) -> MemoryDelivery:
        """Wait for the next delivery."""
        self._loop = asyncio.get_running_loop()
        while True:
            self._changed.clear()
            if self._stopped or self._backend.is_closed:
                self._backend.forget(self)
                raise StopAsyncIteration
            delivery = self._take()
            if delivery is not None:
                return delivery
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(
                    self._changed.wait(), self._backend.seconds_to_next(self.queue)
                )

    async def stop(self) -> None:
        """End the stream."""
        self._stopped = True
        self._changed.set()
        self._backend.forget(self)

    async def aclose(self) -> None:
        """End the stream and give back what is not settled."""
        await self.stop()
        entries, self._unsettled = self._unsettled, {}
        self._backend.give_back(self.queue, entries)

    def has_slot(self) -> bool:
        """Return whether prefetch lets another entry in."""
        return not self._prefetch or len(self._unsettled) < self._prefetch

    def wake(self) -> None:
        """Let the stream look again; callable from any thread."""
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there
                self._loop.call_soon_threadsafe(self._changed.set)

    def free_slot(self, entry: Entry) -> None:
        """Forget an entry that is no longer in hand, and look for the next one."""
        if self._unsettled.pop(entry, None) is not None:
            self.wake()

    def _take(self) -> MemoryDelivery | None:
        entry = self._backend.reserve(self)
        if entry is None:
            return None
        self._unsettled[entry] = entry.deliveries
        return MemoryDelivery(self._backend, self, entry)


class MemoryDelivery(Delivery):
    """Hold one reserved entry; dropped without being settled, the entry goes back."""

    def __init__(self, backend: MemoryBackend, consumer: MemoryConsumer, entry: Entry) -> None:
        super().__init__(consumer.queue, entry.body, entry.deliveries)
        self.entry = entry
        self.consumer = consumer
        self._backend = backend

    def __del__(self) -> None:
        if not self.settled:
            self._backend.drop(self)

    async def _ack(self) -> None:
        self._backend.ack(self)

    async def _replace(self, successor: Envelope, delay: float, *, front: bool) -> None:
        counted = successor.attempt > self.envelope.attempt
        kind: Kind = "deferred" if front else "retried" if counted else "held"
        self._backend.replace(self, successor, delay, kind, front=front)

    async def _dead_letter(self, cause: Cause, reason: str, final: Envelope | None) -> None:
        self._backend.bury(self, cause, reason, final)

    async def _release(self) -> None:
        self._backend.release(self)
