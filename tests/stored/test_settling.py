"""What a worker puts back waits as a row, committed before the delivery is acknowledged."""

import asyncio
import logging
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import OperationalError, connections

from django_jobq import Defer, JobContext, RetryPolicy, job
from django_jobq.backends.memory.consumer import MemoryDelivery
from django_jobq.envelope import Envelope
from django_jobq.exceptions import BackendUnavailable
from django_jobq.store import holds, rows
from django_jobq.worker import relay as relay_module
from django_jobq.worker.stats import WorkerStats
from django_jobq.worker.worker import Worker
from tests.store.tools import USING, elapse, envelope, put, stored
from tests.stored.conftest import PATIENCE, StoringBackend

pytestmark = pytest.mark.django_db(transaction=True, databases=[USING])

AN_HOUR = 3600.0
Burst = Callable[..., WorkerStats]


def defer_for_an_hour() -> list[JobContext]:
    """Register a job that always defers, and return the contexts it saw."""
    seen: list[JobContext] = []

    @job(name="tests.defers", takes_context=True)
    def defers(context: JobContext) -> None:
        seen.append(context)
        raise Defer("1h", "rate limited")

    return seen


@pytest.mark.contract(32, 97, 100)
def test_a_deferral_waits_as_a_row_and_comes_back_in_front(
    storing: StoringBackend, burst: Burst
) -> None:
    seen = defer_for_an_hour()
    storing.publish(envelope(job="tests.defers"))
    stats = burst()

    (row,) = stored()
    assert stats == WorkerStats(deferred=1)
    assert storing.counts("default").held == 0
    assert (row.kind, row.front, row.attempt, row.deferrals) == ("hold", True, 1, 1)
    assert row.reason == "rate limited"
    assert AN_HOUR - 60 < (row.due_at - row.created_at).total_seconds() <= AN_HOUR
    elapse(AN_HOUR)
    burst()
    assert [context.deferrals for context in seen] == [0, 1]


@pytest.mark.contract(31, 91, 92)
def test_a_retry_waits_as_a_row_with_its_error(storing: StoringBackend, burst: Burst) -> None:
    @job(name="tests.fails", retry=RetryPolicy.fixed(3, delay="1h"))
    def fails() -> None:
        raise ValueError("half past")

    storing.publish(envelope(job="tests.fails", priority=4, correlation_id="c"))
    stats = burst()

    (row,) = stored()
    waits = Envelope.decode(bytes(row.body))
    assert stats == WorkerStats(retried=1)
    assert (row.kind, row.front, row.attempt, row.reason) == (
        "hold",
        False,
        2,
        "ValueError: half past",
    )
    assert (waits.attempt, waits.priority, waits.correlation_id) == (2, 4, "c")
    assert waits.headers["errors"][0]["message"] == "half past"


@pytest.mark.contract(58)
def test_a_job_that_nobody_knows_waits_as_a_row(storing: StoringBackend, burst: Burst) -> None:
    storing.publish(envelope(job="tests.unknown"))
    assert burst() == WorkerStats(held=1)

    (row,) = stored()
    assert (row.attempt, row.deferrals, row.reason) == (1, 0, "no such job in the worker")
    assert "unknown_since" in Envelope.decode(bytes(row.body)).headers


@pytest.mark.contract(80, 98)
def test_a_whole_life_with_retries_and_deferrals_of_no_delay(
    storing: StoringBackend, burst: Burst
) -> None:
    runs = []

    @job(name="tests.often", retry=RetryPolicy.none(3), takes_context=True)
    def often(context: JobContext) -> None:
        runs.append((context.attempt, context.deferrals))
        if context.deferrals < 2:
            raise Defer("0s")
        raise ValueError

    storing.publish(envelope(job="tests.often"))
    stats = burst()

    assert runs == [(1, 0), (1, 1), (1, 2), (2, 2), (3, 2)]
    assert stats == WorkerStats(deferred=2, retried=2, dead_lettered=1)
    assert stored() == []


@pytest.mark.contract(26, 27)
def test_the_row_is_committed_before_the_delivery_is_acknowledged(
    storing: StoringBackend, burst: Burst, monkeypatch: pytest.MonkeyPatch
) -> None:
    defer_for_an_hour()
    there: list[int] = []
    acknowledge = storing.ack

    def look_and_ack(delivery: MemoryDelivery) -> None:
        look = threading.Thread(target=in_thread, args=(lambda: there.append(len(stored())),))
        look.start()
        look.join(PATIENCE)
        acknowledge(delivery)

    monkeypatch.setattr(storing, "ack", look_and_ack)
    storing.publish(envelope(job="tests.defers"))
    burst()

    assert there == [1]


@pytest.mark.contract(103)
def test_a_row_that_the_database_refuses_waits_with_the_transport(
    storing: StoringBackend,
    burst: Burst,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    defer_for_an_hour()

    def refuse(*_: object, **__: object) -> None:
        raise OperationalError("disk full")

    monkeypatch.setattr(rows, "insert", refuse)
    monkeypatch.setattr(holds, "insert", refuse)
    storing.publish(envelope(job="tests.defers"))
    stats = burst()

    assert stats == WorkerStats(deferred=1)
    assert (storing.counts("default").held, storing.deferred("default")) == (1, 1)
    assert "waits with the transport, since the database did not store it: disk full" in caplog.text


def test_with_holds_of_the_broker_there_is_no_row(
    make_storing: Callable[..., StoringBackend],
) -> None:
    defer_for_an_hour()
    backend = make_storing(holds="broker")
    backend.publish(envelope(job="tests.defers"))
    asyncio.run(asyncio.wait_for(Worker(backend, burst=True).run(), PATIENCE))

    assert backend.counts("default").held == 1
    assert stored() == []


@pytest.mark.contract(97)
async def test_what_is_due_in_a_moment_wakes_the_relay(
    storing: StoringBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker comes back to what it defers at once, not when the relay looks the next time."""
    monkeypatch.setattr(relay_module, "_LONGEST_SLEEP", 600.0)
    runs: list[int] = []

    @job(name="tests.soon", takes_context=True)
    def soon(context: JobContext) -> None:
        runs.append(context.deferrals)
        if context.deferrals < 5:
            raise Defer("1ms")

    worker = Worker(storing, shutdown_timeout=5)
    running = asyncio.create_task(worker.run())
    storing.publish(envelope(job="tests.soon"))
    async with asyncio.timeout(PATIENCE):
        while len(runs) < 6:  # noqa: ASYNC110 - threads tell nobody
            await asyncio.sleep(0.01)
    worker.shutdown()
    await asyncio.wait_for(running, PATIENCE)

    assert runs == list(range(6))


async def test_a_worker_waits_out_an_outage_of_its_relay_and_says_so_once(
    storing: StoringBackend, caplog: pytest.LogCaptureFixture
) -> None:
    runs: list[int] = []

    @job(name="tests.runs")
    def runs_once() -> None:
        runs.append(1)

    outages = iter([BackendUnavailable("gone"), BackendUnavailable("still gone")])
    storing.refuse = lambda _: next(outages, None)
    put_job = envelope(job="tests.runs")
    await asyncio.to_thread(in_thread, put, put_job)
    worker = Worker(storing, shutdown_timeout=5)
    with caplog.at_level(logging.INFO):
        running = asyncio.create_task(worker.run())
        async with asyncio.timeout(PATIENCE):
            while "works again" not in caplog.text:  # noqa: ASYNC110 - threads tell nobody
                await asyncio.sleep(0.01)
            while not runs:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.01)
        worker.shutdown()
        await asyncio.wait_for(running, PATIENCE)

    told = [r.getMessage() for r in caplog.records if "relay" in r.getMessage()]
    assert told == ["The relay waits for an outage to end: gone", "The relay works again"]


async def test_a_fault_of_a_service_ends_the_worker(
    storing: StoringBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise KeyError("a fault")

    monkeypatch.setattr(rows, "claim", fail)
    with pytest.raises(KeyError, match="a fault"):
        await asyncio.wait_for(Worker(storing, shutdown_timeout=5).run(), PATIENCE)


def in_thread(func: Callable[..., Any], *args: Any) -> Any:
    """Call and give up the connection of this thread."""
    try:
        return func(*args)
    finally:
        connections.close_all()
