"""A job that is delivered again: done already, or counted before it starts, and forgotten after."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from django.db import OperationalError

from django_jobq import Defer, JobContext, RetryPolicy, job
from django_jobq.backends.base import DeliveryLimitReached
from django_jobq.backends.memory.consumer import MemoryDelivery
from django_jobq.envelope import Envelope
from django_jobq.models import JobStart
from django_jobq.store import holds, starts
from django_jobq.worker import runner as runner_module
from django_jobq.worker import worker as worker_module
from django_jobq.worker.stats import WorkerStats
from tests.store.tools import USING, envelope, put, stored
from tests.stored.conftest import PATIENCE, StoringBackend

pytestmark = pytest.mark.django_db(transaction=True, databases=[USING])

AN_HOUR = 3600.0
Burst = Callable[..., WorkerStats]


@pytest.fixture
def seen() -> list[JobContext]:
    """Register the job tests.runs, and return what it saw."""
    found: list[JobContext] = []

    @job(name="tests.runs", takes_context=True)
    def runs(context: JobContext) -> None:
        found.append(context)

    return found


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """Return the numbers of the starts that deliveries were told; the fifth is refused."""
    numbers: list[int | None] = []

    async def begin(self: MemoryDelivery, start: int | None = None) -> bool:
        numbers.append(start)
        if start is not None and start >= 5:
            raise DeliveryLimitReached(start - 1)
        return True

    monkeypatch.setattr(MemoryDelivery, "begin", begin)
    return numbers


def deliver_again(backend: StoringBackend, job: Envelope) -> None:
    """Publish a job and let a consumer die with it."""
    backend.publish(job)

    async def take() -> None:
        consumer = backend.consume("default", 1)
        await asyncio.wait_for(anext(consumer), PATIENCE)
        await consumer.aclose()

    asyncio.run(take())


def counted() -> dict[str, int]:
    return {str(row.job_id): row.starts for row in JobStart.objects.using(USING).all()}


@pytest.mark.contract(116)
def test_what_finds_its_successor_stored_is_dropped(
    storing: StoringBackend, burst: Burst, seen: list[JobContext], caplog: pytest.LogCaptureFixture
) -> None:
    """So a worker that died between the row and the acknowledgement leaves one chain."""
    first = envelope(job="tests.runs")
    put(first.deferred(), AN_HOUR, front=True)
    deliver_again(storing, first)
    with caplog.at_level(logging.INFO):
        stats = burst()

    assert (seen, stats) == ([], WorkerStats())
    assert storing.counts("default").ready == 0
    assert "came again after its outcome had been stored; dropped" in caplog.text
    (row,) = stored()
    assert row.deferrals == 1
    assert counted() == {}


def test_the_first_delivery_asks_the_database_nothing(
    storing: StoringBackend,
    burst: Burst,
    seen: list[JobContext],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[object] = []
    for module, name in ((holds, "has_successor"), (starts, "read"), (starts, "count")):
        monkeypatch.setattr(module, name, lambda *args, **_: asked.append(args))
    storing.publish(envelope(job="tests.runs"))

    assert burst() == WorkerStats(succeeded=1)
    assert (len(seen), asked) == (1, [])


@pytest.mark.contract(76)
def test_the_start_is_counted_before_the_job_runs_and_forgotten_with_its_outcome(
    storing: StoringBackend, burst: Burst, begun: list[int | None]
) -> None:
    during: list[dict[str, int]] = []

    @job(name="tests.looks")
    def looks() -> None:
        during.append(counted())

    again = envelope(job="tests.looks")
    deliver_again(storing, again)
    assert burst() == WorkerStats(succeeded=1)

    assert (begun, during) == ([1], [{str(again.job_id): 1}])
    assert counted() == {}


@pytest.mark.contract(76)
@pytest.mark.parametrize("raised", [None, ValueError(), Defer("1h")], ids=["ok", "retry", "defer"])
def test_every_outcome_forgets_the_starts(
    storing: StoringBackend, burst: Burst, raised: Exception | None
) -> None:
    @job(name="tests.ends", retry=RetryPolicy.fixed(2, delay="1h"))
    def ends() -> None:
        if raised is not None:
            raised.__traceback__ = None
            raise raised

    again = envelope(job="tests.ends")
    starts.count("default", again.job_id, using=USING)
    deliver_again(storing, again)
    burst()

    assert counted() == {}


@pytest.mark.contract(76)
def test_a_job_started_too_often_is_a_dead_letter_and_does_not_run(
    storing: StoringBackend, burst: Burst, begun: list[int | None], seen: list[JobContext]
) -> None:
    poison = envelope(job="tests.runs")
    for _ in range(4):
        starts.count("default", poison.job_id, using=USING)
    deliver_again(storing, poison)
    stats = burst()

    assert (stats, seen, begun) == (WorkerStats(dead_lettered=1), [], [5])
    (letter,) = storing.dead_letters("default")
    assert letter.cause == "delivery_limit"
    assert counted() == {}


@pytest.mark.contract(76)
def test_a_job_that_was_started_for_nothing_runs_alone(
    storing: StoringBackend, burst: Burst, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside: list[int] = []
    running = 0

    @job(name="tests.meets")
    def meets(alone: bool) -> None:
        nonlocal running
        running += 1
        if alone:
            beside.append(running)
        running -= 1

    suspect = envelope(job="tests.meets", args=[True])
    starts.count("default", suspect.job_id, using=USING)
    deliver_again(storing, suspect)
    for _ in range(20):
        storing.publish(envelope(job="tests.meets", args=[False]))

    assert burst().succeeded == 21
    assert beside == [1]


@pytest.mark.contract(76)
def test_a_suspect_that_finds_no_quiet_moment_waits_and_stays_one(
    storing: StoringBackend, burst: Burst, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is put aside is a fresh message, so it says itself that it may kill its worker."""
    monkeypatch.setattr(worker_module, "_ISOLATION_PATIENCE", 3.0)
    suspect = envelope(job="tests.waits")

    @job(name="tests.waits")
    def waits() -> None: ...

    @job(name="tests.long")
    def long() -> None:
        while not stored():
            pass

    starts.count("default", suspect.job_id, using=USING)
    deliver_again(storing, suspect)
    storing.publish(envelope(job="tests.long", priority=1))
    burst(concurrency=2)

    assert counted() == {str(suspect.job_id): 1}
    (held,) = [Envelope.decode(bytes(row.body)) for row in stored()]
    assert (held.job_id, held.headers["starts"]) == (suspect.job_id, 1)


def test_while_the_database_is_away_the_start_waits(
    storing: StoringBackend,
    burst: Burst,
    seen: list[JobContext],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(runner_module, "_FIRST_PAUSE", 0.01)
    count, calls = starts.count, iter(range(3))

    def count_later(*args: Any, **kwargs: Any) -> int:
        if next(calls, None) is not None:
            assert seen == []
            raise OperationalError("the database is gone")
        return count(*args, **kwargs)

    monkeypatch.setattr(starts, "count", count_later)
    deliver_again(storing, envelope(job="tests.runs"))
    stats = burst()

    assert (stats.succeeded, len(seen)) == (1, 1)
    assert caplog.text.count("cannot be looked up, so it is handed back: the database is") == 3
