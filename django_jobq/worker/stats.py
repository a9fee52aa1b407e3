"""What a worker counts."""

from __future__ import annotations

import dataclasses

from django_jobq.worker.outcomes import (
    DeadLettered,
    Deferred,
    HandedBack,
    Held,
    Outcome,
    Retried,
    Succeeded,
)


@dataclasses.dataclass(slots=True)
class WorkerStats:
    """Count what a worker did."""

    succeeded: int = 0
    retried: int = 0
    deferred: int = 0
    dead_lettered: int = 0
    handed_back: int = 0
    held: int = 0
    settle_failures: int = 0

    def count(self, outcome: Outcome) -> None:
        """Add one settled outcome."""
        name = _STAT_OF[type(outcome)]
        setattr(self, name, getattr(self, name) + 1)


_STAT_OF: dict[type, str] = {
    Succeeded: "succeeded",
    Retried: "retried",
    Deferred: "deferred",
    DeadLettered: "dead_lettered",
    HandedBack: "handed_back",
    Held: "held",
}
