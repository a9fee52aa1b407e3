"""Trials of time limits: a job that does not end never makes the worker silent."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from django_jobq import RetryPolicy, job
from django_jobq.backends.base import Counts
from django_jobq.backends.handler import backends
from django_jobq.backends.memory import MemoryBackend
from django_jobq.worker import attempt, executor
from django_jobq.worker.worker import Worker
from tests.trials.project import Project, within


@pytest.fixture(autouse=True)
def _short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a job for one that never returns after a fraction of the usual patience."""
    monkeypatch.setattr(attempt, "GRACE", 0.2)
    monkeypatch.setattr(executor, "GRACE", 0.2)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Block jobs where no exception reaches them; the end of the test lets them go."""
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.contract(57, 61)
def test_b109_threads_that_do_not_return_are_replaced_in_process(
    gate: threading.Event, memory: MemoryBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker inside another process gives up blocked threads, says so, and runs what follows."""
    done = []

    @job(name="trial.blocked", timeout="50ms")
    def blocked() -> None:
        gate.wait()

    @job(name="trial.ordinary")
    def ordinary(number: int) -> None:
        done.append(number)

    for _ in range(4):
        blocked.enqueue()
    for number in range(3):
        ordinary.enqueue(number)
    worker = Worker(memory, concurrency=2, burst=True, in_process=True)
    stats = within(10, lambda: asyncio.run(worker.run()))

    assert sorted(done) == [0, 1, 2]
    assert (stats.succeeded, stats.dead_lettered) == (3, 4)
    assert memory.counts("default") == Counts(ready=0, held=0, reserved=0, dead=4)
    assert not worker.recycled
    given_up = [r for r in caplog.records if "did not return after its timeout" in r.getMessage()]
    assert [record.levelno for record in given_up] == [logging.ERROR] * 4
    assert {(r.job, r.queue, r.attempt) for r in given_up} == {("trial.blocked", "default", 1)}  # type: ignore[attr-defined]
    assert all(
        "timed out after 50 ms" in letter.reason for letter in memory.dead_letters("default")
    )


@pytest.mark.contract(61, 65)
def test_b109_a_worker_of_its_own_ends_and_hands_back_the_rest(
    gate: threading.Event, memory: MemoryBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker with a blocked thread takes no more jobs, settles that one by policy, and ends."""

    @job(name="trial.blocked", timeout="50ms", retry=RetryPolicy.fixed(2, delay="1h"))
    def blocked() -> None:
        gate.wait()

    for _ in range(6):
        blocked.enqueue()
    worker = Worker(memory, concurrency=2, shutdown_timeout=0.5)
    stats = within(10, lambda: asyncio.run(worker.run()))

    assert worker.recycled
    assert 1 <= stats.retried <= 2
    counts = memory.counts("default")
    assert (counts.reserved, counts.dead, counts.held) == (0, 0, stats.retried)
    assert counts.ready == 6 - stats.retried
    told = [record for record in caplog.records if "takes no more jobs" in record.getMessage()]
    assert {record.job for record in told} == {"trial.blocked"}  # type: ignore[attr-defined]


@pytest.mark.contract(57, 61)
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_b109_a_job_that_can_be_interrupted_frees_its_slot(
    kind: str, memory: MemoryBackend, work: Callable[..., Any]
) -> None:
    """A job that Python can interrupt ends at its limit, cleans up, and never overlaps another."""
    running, most, cleaned = 0, 0, []
    lock = threading.Lock()

    def enter() -> None:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)

    def leave() -> None:
        nonlocal running
        with lock:
            running -= 1
        cleaned.append(1)

    def spins() -> None:
        enter()
        try:
            while True:
                time.sleep(0.001)
        finally:
            leave()

    async def waits() -> None:
        enter()
        try:
            await asyncio.Event().wait()
        finally:
            leave()

    limited = job(
        spins if kind == "sync" else waits,
        name="trial.limited",
        timeout="50ms",
        retry=RetryPolicy.none(2),
    )
    for _ in range(4):
        limited.enqueue()
    stats = within(10, lambda: work(concurrency=2))

    assert (stats.retried, stats.dead_lettered, stats.settle_failures) == (4, 4, 0)
    assert (len(cleaned), running, most) == (8, 0, 2)
    for letter in memory.dead_letters("default"):
        assert letter.cause == "exhausted"
        assert "timed out after 50 ms" in letter.reason


@pytest.mark.contract(61)
def test_b109_a_broad_except_does_not_swallow_the_limit(
    memory: MemoryBackend, work: Callable[..., Any]
) -> None:
    """A job that catches every Exception is interrupted all the same."""

    @job(name="trial.broad", timeout="50ms")
    def broad() -> None:
        while True:
            try:
                time.sleep(0.001)
            except Exception:  # noqa: BLE001 - what the trial is about
                continue

    broad.enqueue()
    stats = within(10, work)

    assert stats.dead_lettered == 1
    assert "timed out after 50 ms" in memory.dead_letters("default")[0].reason


def test_b109_a_limit_never_reaches_what_runs_next(work: Callable[..., Any]) -> None:
    """An interrupt that comes as a job ends hits neither the library nor the next job."""
    ran = []

    @job(name="trial.edge", timeout="5ms", retry=RetryPolicy.none(1))
    def edge(number: int) -> None:
        until = time.perf_counter() + 0.005
        while time.perf_counter() < until:
            pass

    @job(name="trial.ordinary")
    def ordinary(number: int) -> None:
        for _ in range(100):
            time.perf_counter()
        ran.append(number)

    for number in range(100):
        edge.enqueue(number)
        ordinary.enqueue(number)
    stats = within(30, lambda: work(concurrency=1))

    assert ran == list(range(100))
    assert stats.succeeded + stats.dead_lettered == 200
    assert (stats.handed_back, stats.settle_failures) == (0, 0)


@pytest.mark.contract(61)
def test_b109_an_async_job_that_defies_its_cancellation_ends_the_worker(
    memory: MemoryBackend,
) -> None:
    """An async job that goes on after its cancellation does not keep the worker from ending."""
    released = asyncio.Event()

    @job(name="trial.defiant", timeout="50ms")
    async def defiant() -> None:
        while not released.is_set():
            try:
                await asyncio.wait_for(released.wait(), 0.05)
            except (TimeoutError, asyncio.CancelledError):
                continue

    defiant.enqueue()
    worker = Worker(memory, concurrency=2, shutdown_timeout=0.5)

    async def run() -> bool:
        await worker.run()
        released.set()
        return worker.recycled

    assert within(10, lambda: asyncio.run(run())) is True
    [letter] = memory.dead_letters("default")
    assert "timed out after 50 ms" in letter.reason


def test_b109_a_call_in_a_thread_that_outlives_its_async_job(
    gate: threading.Event, memory: MemoryBackend
) -> None:
    """An async job whose thread does not return is given up; other async jobs go on."""
    done = []

    @job(name="trial.in-thread", timeout="50ms")
    async def in_thread() -> None:
        await sync_to_async(gate.wait)()

    @job(name="trial.ordinary")
    async def ordinary() -> None:
        done.append(await sync_to_async(lambda: "done")())

    in_thread.enqueue()
    for _ in range(4):
        ordinary.enqueue()
    worker = Worker(memory, concurrency=2, burst=True, in_process=True)

    async def run() -> Any:
        stats = await worker.run()
        gate.set()
        return stats

    stats = within(10, lambda: asyncio.run(run()))

    assert done == ["done"] * 4
    assert (stats.succeeded, stats.dead_lettered) == (4, 1)


JOBS = """
import asyncio, threading, time

from asgiref.sync import sync_to_async

from django_jobq import job
from django_jobq.worker import attempt, executor

attempt.GRACE = executor.GRACE = 0.3


@job(timeout="100ms")
def blocked():
    threading.Event().wait()


@job(timeout="100ms")
async def defiant():
    while True:
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            pass


@job(timeout="100ms")
async def in_thread():
    await sync_to_async(threading.Event().wait)()
"""


@pytest.mark.contract(61)
@pytest.mark.parametrize("name", ["blocked", "defiant", "in_thread"])
def test_b109_the_worker_process_ends_with_its_own_status(name: str, project: Project) -> None:
    """A worker process whose job never returns files it, says so, and ends with status 75."""
    project.write("shop/jobs.py", JOBS)
    project.write(
        "shop/first.py",
        f"from shop.jobs import {name}\n\n\ndef first_jobs():\n    return [{name}.prepare()]\n",
    )

    worker = project.django("runworker", "--shutdown-timeout", "1s")
    worker.wait_for(f"Job shop.jobs.{name} is now a dead letter", 15)

    assert worker.wait(10) == 75
    assert "this worker takes no more jobs and ends" in worker.output
    assert "timed out after 100 ms" in worker.output


@pytest.mark.contract(61)
def test_b109_both_kinds_of_job_tell_a_timeout_alike(
    gate: threading.Event, memory: MemoryBackend, work: Callable[..., Any]
) -> None:
    """A timeout reads the same whether the job was interrupted, cancelled or given up."""

    @job(name="trial.a", timeout="50ms")
    async def cancelled() -> None:
        await asyncio.Event().wait()

    @job(name="trial.b", timeout="50ms")
    def interrupted() -> None:
        while True:
            time.sleep(0.001)

    @job(name="trial.c", timeout="50ms")
    def given_up() -> None:
        gate.wait()

    for one in (cancelled, interrupted, given_up):
        one.enqueue()
        worker = Worker(backends["default"], burst=True, in_process=True, concurrency=1)
        within(10, lambda worker=worker: asyncio.run(worker.run()))  # type: ignore[misc]

    assert len({letter.reason for letter in memory.dead_letters("default")}) == 1
