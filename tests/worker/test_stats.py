"""The counts of a worker."""

import pytest

from django_jobq.worker.outcomes import (
    DeadLettered,
    Deferred,
    HandedBack,
    Held,
    Outcome,
    Retried,
    Succeeded,
)
from django_jobq.worker.stats import WorkerStats


@pytest.mark.contract(202)
@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Succeeded(), WorkerStats(succeeded=1)),
        (Retried(1.0), WorkerStats(retried=1)),
        (Deferred(1.0, "x"), WorkerStats(deferred=1)),
        (DeadLettered("fatal", "x"), WorkerStats(dead_lettered=1)),
        (HandedBack(), WorkerStats(handed_back=1)),
        (Held(1.0), WorkerStats(held=1)),
    ],
)
def test_each_outcome_has_a_counter(outcome: Outcome, expected: WorkerStats) -> None:
    stats = WorkerStats()
    stats.count(outcome)

    assert stats == expected
