"""One queue of the memory backend: what is ready, held, reserved and dead.

A queue is two heaps: `ready`, by level (highest first) and then by sequence number, and `held`, by
due time. `advance()` moves what is due to `ready` under a new number, so it stands behind what came
meanwhile. What was reserved keeps its number, so handing it back restores the old order.
"""

from __future__ import annotations

import dataclasses
import heapq
import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Literal

from django_jobq.backends.base import Cause, Counts, attempts_made
from django_jobq.envelope import Envelope, decode_or_none, log_fields
from django_jobq.queues import QueueConfig

logger = logging.getLogger("django_jobq.jobs")

Kind = Literal["succeeded", "retried", "deferred", "held", "dead"]

# Enough for any test, and flat memory in a development server that runs for weeks.
HISTORY = 10_000


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MemoryDeadLetter:
    """Hold a job that was given up on; ``envelope`` is None for a body that is none.

    ``died_at`` is the epoch in seconds; ``attempts`` is how many attempts were made.
    """

    queue: str
    body: bytes
    cause: Cause
    reason: str
    envelope: Envelope | None
    attempts: int
    died_at: float


@dataclasses.dataclass(slots=True, eq=False)
class Entry:
    """Hold one body; ``deliveries`` is also the token of the reservation that holds it."""

    body: bytes
    level: int
    number: int = 0
    deferral: bool = False
    deliveries: int = 0
    expires_at: float | None = None


class QueueState:
    """Hold the entries of one queue; the backend's lock guards every call."""

    def __init__(self, config: QueueConfig, next_number: Callable[[], int]) -> None:
        self.config = config
        self.reserved: set[Entry] = set()
        self.dead: list[MemoryDeadLetter] = []
        self.history: deque[tuple[Envelope, Kind]] = deque(maxlen=HISTORY)
        self._next_number = next_number
        self._ready: list[tuple[int, int, Entry]] = []
        self._held: list[tuple[float, int, Entry]] = []

    def insert(self, entry: Entry, due: float, now: float) -> None:
        """Hold an entry until ``due``, or make it ready if that has passed."""
        entry.number = self._next_number()
        if due > now:
            heapq.heappush(self._held, (due, entry.number, entry))
        else:
            self._make_ready(entry, now)

    def advance(self, now: float, *, closed: bool = False) -> None:
        """End the holds that are due, dropping them if ``closed``, and bury what has expired."""
        while self._held and self._held[0][0] <= now:
            due, _, entry = heapq.heappop(self._held)
            if not closed:
                entry.number = self._next_number()
                self._make_ready(entry, due)
        if self.config.message_ttl is not None:
            self._bury_expired(now)

    def reserve(self) -> Entry | None:
        """Take the next ready entry, or return None."""
        if not self._ready:
            return None
        entry = heapq.heappop(self._ready)[2]
        entry.deliveries += 1
        self.reserved.add(entry)
        return entry

    def owns(self, entry: Entry, token: int) -> bool:
        """Return whether the reservation that ``token`` names still stands."""
        return entry in self.reserved and entry.deliveries == token

    def give_back(self, entry: Entry, token: int) -> None:
        """Return a reserved entry to its old place, if the reservation still stands."""
        if self.owns(entry, token):
            self.reserved.discard(entry)
            self._push(entry)

    def bury(
        self, entry: Entry, cause: Cause, reason: str, final: Envelope | None = None
    ) -> Envelope | None:
        """Append a dead letter and return its envelope."""
        envelope = final or decode_or_none(entry.body)
        self.dead.append(
            MemoryDeadLetter(
                queue=self.config.name,
                body=entry.body,
                cause=cause,
                reason=reason,
                envelope=envelope,
                attempts=attempts_made(envelope, cause),
                died_at=time.time(),
            )
        )
        return envelope

    def clear(self) -> int:
        """Remove what is ready and return how much it was."""
        removed = len(self._ready)
        self._ready.clear()
        return removed

    def next_due(self) -> float | None:
        """Return when the earliest hold ends, or None."""
        return self._held[0][0] if self._held else None

    def waiting(self) -> int:
        """Count what is ready or held."""
        return len(self._ready) + len(self._held)

    def deferred(self) -> int:
        """Count what is held by a deferral."""
        return sum(item[2].deferral for item in self._held)

    def pending(self) -> list[Entry]:
        """Return what is ready, in the order of delivery."""
        return [item[2] for item in sorted(self._ready, key=lambda item: item[:2])]

    def counts(self) -> Counts:
        """Count the entries."""
        return Counts(
            ready=len(self._ready),
            held=len(self._held),
            reserved=len(self.reserved),
            dead=len(self.dead),
        )

    def _make_ready(self, entry: Entry, since: float) -> None:
        ttl = self.config.message_ttl
        entry.expires_at = None if ttl is None else since + ttl
        self._push(entry)

    def _push(self, entry: Entry) -> None:
        heapq.heappush(self._ready, (-entry.level, entry.number, entry))

    def _bury_expired(self, now: float) -> None:
        fresh = []
        for entry in self.pending():
            if entry.expires_at is not None and entry.expires_at <= now:
                ttl = self.config.message_ttl
                reason = f"not started within its queue's message_ttl of {ttl:g} s"
                envelope = self.bury(entry, "expired", reason)
                name = envelope.job if envelope else "(no envelope)"
                logger.error(
                    "Job %s is now a dead letter (expired): %s",
                    name,
                    reason,
                    extra=log_fields(envelope, self.config.name),
                )
            else:
                fresh.append((-entry.level, entry.number, entry))
        self._ready = fresh
