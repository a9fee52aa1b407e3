"""Where attempts run, and what becomes of those that outlive their timeout."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async

from django_jobq import JobContext, JobTimeout, job
from django_jobq.jobs import Job
from django_jobq.worker import attempt as attempt_module
from django_jobq.worker import executor as executor_module
from django_jobq.worker.attempt import Attempt, Execution
from django_jobq.worker.executor import CallerExecutor, LaneExecutor

DEADLINE = 20.0


def attempt_of(made: Job[..., Any], *args: Any, timeout: float | None = None) -> Attempt:
    return Attempt(
        job=made, context=JobContext(job=made.name), args=list(args), kwargs={}, timeout=timeout
    )


def spin_until(condition: Callable[[], bool]) -> None:
    """Run bytecode until a condition holds, so that an exception from outside can arrive."""
    give_up = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < give_up


@pytest.fixture
async def lanes() -> AsyncIterator[LaneExecutor]:
    executor = LaneExecutor(2)
    executor.start()
    yield executor
    await executor.stop()


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> float:
    """Give jobs a moment instead of seconds to end after their timeout."""
    for module in (attempt_module, executor_module):
        monkeypatch.setattr(module, "GRACE", 0.1)
    return 0.1


async def test_sync_job_runs_on_a_thread_and_async_job_on_the_loop(lanes: LaneExecutor) -> None:
    seen: list[int] = []

    @job(name="tests.sync_thread")
    def on_thread() -> None:
        seen.append(threading.get_ident())

    @job(name="tests.async_thread")
    async def on_loop() -> None:
        seen.append(threading.get_ident())

    await lanes.run(attempt_of(on_thread))
    await lanes.run(attempt_of(on_loop))

    assert seen[0] != threading.get_ident()
    assert seen[1] == threading.get_ident()


async def test_call_runs_on_a_thread(lanes: LaneExecutor) -> None:
    seen: list[int] = []

    await lanes.call(lambda: seen.append(threading.get_ident()))

    assert seen != [threading.get_ident()]


async def test_call_raises_what_was_raised(lanes: LaneExecutor) -> None:
    with pytest.raises(ZeroDivisionError):
        await lanes.call(lambda: 1 / 0)  # type: ignore[arg-type, return-value]


@pytest.mark.contract(61)
async def test_sync_job_is_interrupted_at_its_timeout(lanes: LaneExecutor) -> None:
    @job(name="tests.spins")
    def spins() -> None:
        spin_until(lambda: False)

    started = time.perf_counter()
    execution = await lanes.run(attempt_of(spins, timeout=0.1))

    assert time.perf_counter() - started >= 0.1
    assert str(execution.error) == "timed out after 100 ms"
    assert isinstance(execution.error, JobTimeout)
    assert not execution.stuck


async def test_timer_starts_with_the_job_not_with_its_wait_for_a_thread() -> None:
    """A job is not charged for the time until a thread takes it."""
    executor = LaneExecutor(1)
    executor.start()
    gate = threading.Event()

    @job(name="tests.blocks")
    def blocks() -> None:
        assert gate.wait(DEADLINE)

    @job(name="tests.quick")
    def quick() -> None: ...

    first = asyncio.create_task(executor.run(attempt_of(blocks)))
    second = asyncio.create_task(executor.run(attempt_of(quick, timeout=0.5)))
    await asyncio.wait({second}, timeout=0.8)
    gate.set()
    executions = await asyncio.wait_for(asyncio.gather(first, second), DEADLINE)
    await executor.stop()

    assert [execution.error for execution in executions] == [None, None]


async def test_job_without_timeout_is_not_interrupted(
    lanes: LaneExecutor, short_grace: float
) -> None:
    gate = threading.Event()

    @job(name="tests.blocks")
    def blocks() -> None:
        assert gate.wait(DEADLINE)

    running = asyncio.create_task(lanes.run(attempt_of(blocks)))
    done, _ = await asyncio.wait({running}, timeout=3 * short_grace)
    assert not done
    gate.set()

    assert (await asyncio.wait_for(running, DEADLINE)).error is None


@pytest.mark.contract(61)
async def test_sync_job_that_does_not_return_is_stuck(short_grace: float) -> None:
    executor = LaneExecutor(1)
    executor.start()
    gate, entered = threading.Event(), threading.Event()

    @job(name="tests.stuck")
    def stuck() -> None:
        entered.set()
        assert gate.wait(DEADLINE)  # a call into C: the exception waits for its return

    execution = await asyncio.wait_for(executor.run(attempt_of(stuck, timeout=0.1)), DEADLINE)

    assert entered.is_set()
    assert execution.stuck
    assert isinstance(execution.error, JobTimeout)
    assert str(execution.error) == "timed out after 100 ms"
    gate.set()
    await executor.stop()


@pytest.mark.contract(61)
async def test_stuck_job_is_described_like_any_other_failure(short_grace: float) -> None:
    executor = LaneExecutor(1)
    executor.start()
    gate = threading.Event()

    @job(name="tests.stuck")
    def stuck() -> None:
        assert gate.wait(DEADLINE)

    execution = await asyncio.wait_for(executor.run(attempt_of(stuck, timeout=0.1)), DEADLINE)
    gate.set()
    await executor.stop()

    assert execution.failure is not None
    assert execution.failure.text == "JobTimeout: timed out after 100 ms"


@pytest.mark.contract(61)
async def test_replaced_thread_takes_the_next_job(short_grace: float) -> None:
    executor = LaneExecutor(1)
    executor.start()
    gate = threading.Event()
    seen: list[int] = []

    @job(name="tests.stuck")
    def stuck() -> None:
        seen.append(threading.get_ident())
        assert gate.wait(DEADLINE)

    @job(name="tests.next")
    def following() -> None:
        seen.append(threading.get_ident())

    first = await asyncio.wait_for(executor.run(attempt_of(stuck, timeout=0.1)), DEADLINE)
    second = await asyncio.wait_for(executor.run(attempt_of(following)), DEADLINE)
    gate.set()
    await executor.stop()

    assert first.stuck
    assert not second.stuck
    assert seen[0] != seen[1]


async def test_cancelled_run_leaves_the_thread_to_the_job(lanes: LaneExecutor) -> None:
    gate, entered, finished = threading.Event(), threading.Event(), threading.Event()

    @job(name="tests.blocks")
    def blocks() -> None:
        entered.set()
        assert gate.wait(DEADLINE)
        finished.set()

    running = asyncio.create_task(lanes.run(attempt_of(blocks, timeout=60.0)))
    await sync_to_async(entered.wait)(DEADLINE)
    running.cancel()
    await asyncio.wait({running}, timeout=DEADLINE)
    gate.set()

    assert running.cancelled()
    assert await sync_to_async(finished.wait)(DEADLINE)


# On the thread of a caller


def on_caller(*attempts: Attempt) -> list[Execution]:
    async def run() -> list[Execution]:
        executor = CallerExecutor()
        executor.start()
        try:
            # Each in a task, and so a context, of its own, as the worker does it.
            return [await asyncio.create_task(executor.run(attempt)) for attempt in attempts]
        finally:
            await executor.stop()

    return async_to_sync(run)()


def test_caller_runs_sync_jobs_on_its_own_thread() -> None:
    seen: list[int] = []

    @job(name="tests.sync_thread")
    def on_thread() -> None:
        seen.append(threading.get_ident())

    on_caller(attempt_of(on_thread))

    assert seen == [threading.get_ident()]


def test_caller_runs_the_sync_parts_of_async_jobs_on_its_own_thread() -> None:
    seen: list[int] = []

    @job(name="tests.async_thread")
    async def on_loop() -> None:
        seen.append(await sync_to_async(threading.get_ident)())

    on_caller(attempt_of(on_loop))

    assert seen == [threading.get_ident()]


def test_caller_calls_hooks_on_its_own_thread() -> None:
    seen: list[int] = []

    async_to_sync(CallerExecutor().call)(lambda: seen.append(threading.get_ident()))

    assert seen == [threading.get_ident()]


@pytest.mark.contract(61)
def test_timeout_on_the_callers_thread() -> None:
    @job(name="tests.spins")
    def spins() -> None:
        spin_until(lambda: False)

    @job(name="tests.async_waits")
    async def waits() -> None:
        await asyncio.Event().wait()

    @job(name="tests.quick")
    def quick() -> None: ...

    executions = on_caller(
        attempt_of(spins, timeout=0.1),
        attempt_of(quick, timeout=10.0),
        attempt_of(waits, timeout=0.1),
    )

    assert [str(execution.error) for execution in executions] == [
        "timed out after 100 ms",
        "None",
        "timed out after 100 ms",
    ]


def test_interrupt_reaches_the_caller() -> None:
    @job(name="tests.interrupts")
    def interrupts() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        on_caller(attempt_of(interrupts))
