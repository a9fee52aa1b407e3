"""The publishing half, the settling and the inspection of the memory backend.

One lock guards everything. Every call first takes back what was dropped unsettled and moves each
queue to the present; consumers wait on an event of their own loop and are woken by every change.
"""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager

from django_jobq import conf
from django_jobq.backends.base import Backend, BackendOptions, Cause, Counts
from django_jobq.backends.memory.clock import ManualClock
from django_jobq.backends.memory.consumer import MemoryConsumer, MemoryDelivery
from django_jobq.backends.memory.state import Entry, Kind, MemoryDeadLetter, QueueState
from django_jobq.conf import AliasSettings
from django_jobq.envelope import Envelope
from django_jobq.exceptions import AlreadySettled, QueueFull, ShutDown
from django_jobq.queues import QueueConfig


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MemoryOptions(BackendOptions):
    """Hold the memory backend's OPTIONS; ``max_pending`` counts a queue's ready and held jobs."""

    max_pending: int | None = conf.option(None, conf.read_positive_int)
    allow_in_production: bool = conf.option(False, conf.read_bool)


class MemoryBackend(Backend):
    """Keep jobs in this process, for development, tests and small embedded uses."""

    driver = "memory"
    options_class = MemoryOptions
    shared = False
    options: MemoryOptions

    def __init__(
        self, settings: AliasSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        super().__init__(settings)
        self.clock = clock
        self.is_closed = False
        self._lock = threading.RLock()
        self._numbers = itertools.count(1)
        self._queues: dict[str, QueueState] = {}
        self._consumers: set[MemoryConsumer] = set()
        # Filled by finalisers, which run in any thread and at any moment, so never under the lock.
        self._dropped: deque[tuple[MemoryConsumer, Entry, int]] = deque()
        if isinstance(clock, ManualClock):
            clock.subscribe(self._wake)

    # Publishing half

    def declare(self, queues: Iterable[QueueConfig]) -> None:
        """Create the queues that do not exist; the first configuration of a queue stays."""
        with self._lock:
            self._check_open()
            for config in queues:
                self._state(config)

    def _submit(self, envelope: Envelope, delay: float, *, front: bool) -> Future[None]:
        due = self.clock() + delay
        config = self.queue(envelope.queue)
        with self._present():
            self._check_open()
            limit = self.options.max_pending
            if limit is not None and self._state(config).waiting() >= limit:
                raise QueueFull(config.name, limit)
            self._store(config, envelope, due, front=front)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def inject(self, queue: str, body: bytes) -> None:
        """Put a raw body on a queue, as a foreign publisher would."""
        config = self.queue(queue)
        with self._present() as now:
            self._state(config).insert(Entry(body, 0), now, now)

    def clear(self, queue: str) -> int:
        """Remove the ready jobs of a queue and return how many there were."""
        with self._present():
            return self._queues[queue].clear() if queue in self._queues else 0

    def close(self) -> None:
        """End every consumer; what waits is gone with the process."""
        with self._present():
            self.is_closed = True

    # Consuming half

    def consume(self, queue: str, prefetch: int) -> MemoryConsumer:
        """Return a consumer of one queue."""
        config = self.queue(queue)
        with self._lock:
            self._state(config)
            consumer = MemoryConsumer(self, config.name, max(0, prefetch))
            self._consumers.add(consumer)
        return consumer

    def reserve(self, consumer: MemoryConsumer) -> Entry | None:
        """Reserve the next ready entry for a consumer that has a slot for it, or return None."""
        with self._lock:
            self._advance()
            return self._queues[consumer.queue].reserve() if consumer.has_slot() else None

    def seconds_to_next(self, queue: str) -> float | None:
        """Return the seconds until the queue's earliest hold ends, or None."""
        with self._lock:
            due = self._queues[queue].next_due()
            return None if due is None else max(0.0, due - self.clock())

    def forget(self, consumer: MemoryConsumer) -> None:
        """Drop a consumer that has ended."""
        with self._lock:
            self._consumers.discard(consumer)

    def give_back(self, queue: str, entries: Mapping[Entry, int]) -> None:
        """Return reserved entries, with the tokens of their reservations, to their old places."""
        with self._present():
            for entry, token in entries.items():
                self._queues[queue].give_back(entry, token)

    # Settling: the reservation is gone afterwards, or the call raises and it stands

    def ack(self, delivery: MemoryDelivery) -> None:
        """Remove a finished job; works on a closed backend too."""
        with self._owned(delivery):
            self._record(delivery, delivery.envelope, "succeeded")

    def replace(
        self,
        delivery: MemoryDelivery,
        successor: Envelope,
        delay: float,
        kind: Kind,
        *,
        front: bool,
    ) -> None:
        """Store the successor of a job; a full queue does not refuse it."""
        due = self.clock() + delay
        with self._owned(delivery):
            self._check_open()
            self._store(self.queue(successor.queue), successor, due, front=front)
            self._record(delivery, delivery.envelope, kind)

    def bury(
        self, delivery: MemoryDelivery, cause: Cause, reason: str, final: Envelope | None
    ) -> None:
        """File a job as a dead letter."""
        with self._owned(delivery) as queue:
            self._check_open()
            envelope = queue.bury(delivery.entry, cause, reason, final)
            self._record(delivery, envelope, "dead")

    def release(self, delivery: MemoryDelivery) -> None:
        """Hand a job back to its old place."""
        with self._owned(delivery) as queue:
            queue.give_back(delivery.entry, delivery.deliveries)
            delivery.consumer.free_slot(delivery.entry)

    def drop(self, delivery: MemoryDelivery) -> None:
        """Note a delivery that nobody settled; safe to call from a finaliser."""
        self._dropped.append((delivery.consumer, delivery.entry, delivery.deliveries))
        self._wake()

    # Inspection

    def counts(self, queue: str) -> Counts:
        """Count the jobs of a queue; one that does not exist has none."""
        with self._present():
            found = self._queues.get(queue)
            return found.counts() if found else Counts(ready=0, held=0, reserved=0, dead=0)

    def unfinished(self) -> Counts:
        """Count the jobs of all queues that end with the process."""
        counts = [self.counts(name) for name in self.queue_names()]
        return Counts(
            ready=sum(count.ready or 0 for count in counts),
            held=sum(count.held or 0 for count in counts),
            reserved=sum(count.reserved or 0 for count in counts),
        )

    def pending(self, queue: str) -> list[Envelope]:
        """Return the envelopes that are ready, in the order of delivery."""
        with self._present():
            entries = self._queues[queue].pending() if queue in self._queues else []
        return [Envelope.decode(entry.body) for entry in entries]

    def deferred(self, queue: str) -> int:
        """Count the deferred jobs that are held now."""
        with self._present():
            return self._queues[queue].deferred() if queue in self._queues else 0

    def settled(self, queue: str) -> list[tuple[Envelope, Kind]]:
        """Return the last settled envelopes with what became of each, in order."""
        with self._lock:
            return list(self._queues[queue].history) if queue in self._queues else []

    def acked(self, queue: str) -> list[Envelope]:
        """Return every acknowledged envelope in order, those of retries and deferrals included."""
        return [envelope for envelope, kind in self.settled(queue) if kind != "dead"]

    def succeeded(self, queue: str) -> list[Envelope]:
        """Return the envelopes that ended in success, in order."""
        return [envelope for envelope, kind in self.settled(queue) if kind == "succeeded"]

    def retried(self, queue: str) -> list[Envelope]:
        """Return the envelopes whose attempt failed and was rescheduled, in order."""
        return [envelope for envelope, kind in self.settled(queue) if kind == "retried"]

    def dead_letters(self, queue: str) -> list[MemoryDeadLetter]:
        """Return the dead letters of a queue, oldest first."""
        with self._present():
            return list(self._queues[queue].dead) if queue in self._queues else []

    def queue_names(self) -> list[str]:
        """Return the names of the queues that exist, sorted."""
        with self._lock:
            return sorted(self._queues)

    def queue_config(self, queue: str) -> QueueConfig | None:
        """Return the configuration under which a queue was created, or None."""
        with self._lock:
            return self._queues[queue].config if queue in self._queues else None

    # Internals

    @contextmanager
    def _present(self) -> Iterator[float]:
        """Hold the lock with every queue moved to the present, then let consumers look."""
        with self._lock:
            yield self._advance()
        self._wake()

    @contextmanager
    def _owned(self, delivery: MemoryDelivery) -> Iterator[QueueState]:
        with self._present():
            queue = self._queues[delivery.queue]
            if not queue.owns(delivery.entry, delivery.deliveries):
                raise AlreadySettled(
                    f"a delivery of queue {delivery.queue!r} is no longer this consumer's"
                )
            yield queue

    def _record(self, delivery: MemoryDelivery, envelope: Envelope | None, kind: Kind) -> None:
        queue = self._queues[delivery.queue]
        queue.reserved.discard(delivery.entry)
        if envelope is not None:
            queue.history.append((envelope, kind))
        delivery.consumer.free_slot(delivery.entry)

    def _store(self, config: QueueConfig, envelope: Envelope, due: float, *, front: bool) -> None:
        state = self._state(config)
        level = state.config.level(envelope.priority, front=front)
        state.insert(Entry(envelope.encode(), level, deferral=front), due, self.clock())

    def _state(self, config: QueueConfig) -> QueueState:
        if config.name not in self._queues:
            self._queues[config.name] = QueueState(config, self._numbers.__next__)
        return self._queues[config.name]

    def _check_open(self) -> None:
        if self.is_closed:
            raise ShutDown(self.alias, self.driver)

    def _advance(self) -> float:
        while self._dropped:
            consumer, entry, token = self._dropped.popleft()
            self._queues[consumer.queue].give_back(entry, token)
            consumer.free_slot(entry)
        now = self.clock()
        for queue in self._queues.values():
            queue.advance(now, closed=self.is_closed)
        return now

    def _wake(self) -> None:
        for consumer in list(self._consumers):
            consumer.wake()
