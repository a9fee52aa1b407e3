"""One attempt: how it ends, and what it leaves behind on a thread that runs the next."""

import asyncio
import contextvars
import gc
import logging
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from asgiref.sync import sync_to_async
from django.db import connections, transaction
from django.utils import timezone, translation

from django_jobq import Defer, Fatal, JobContext, JobTimeout, Retry, current_job, job, signals
from django_jobq.context import JobLogFilter
from django_jobq.jobs import Job
from django_jobq.worker import attempt as attempt_module
from django_jobq.worker.attempt import Attempt, Execution, run_async, run_sync
from django_jobq.worker.lanes import AsyncLanes, ThreadLanes
from django_jobq.worker.time_limit import TimeLimit

DEADLINE = 20.0

R = TypeVar("R")


def attempt_of(made: Job[..., Any], *args: Any, timeout: float | None = None) -> Attempt:
    context = JobContext(job=made.name, attempt=2, max_attempts=5, queue="email")
    return Attempt(job=made, context=context, args=list(args), kwargs={}, timeout=timeout)


def log_fields(record: Any) -> tuple[str, str, int]:
    return record.job, record.queue, record.attempt


def here(attempt: Attempt) -> Execution:
    """Run a sync attempt on the test's thread, as a caller's, in a context of its own."""
    return contextvars.copy_context().run(run_sync, attempt, None, owned=False)


def run_here(made: Job[..., Any], *args: Any) -> Execution:
    return here(attempt_of(made, *args))


def in_lane(*calls: Callable[[], Any]) -> list[Any]:
    """Run calls one after the other on one thread of the worker's own."""

    async def run() -> list[Any]:
        lanes = ThreadLanes(1)
        lanes.start()
        try:
            return [await asyncio.wait_for(lanes.submit(call).future, DEADLINE) for call in calls]
        finally:
            await lanes.stop(DEADLINE)

    return asyncio.run(run())


def in_async_lane(*attempts: Attempt) -> list[Execution]:
    """Run async attempts one after the other on one lane."""

    async def run() -> list[Execution]:
        lanes = AsyncLanes(1)
        try:
            return [
                await asyncio.wait_for(lanes.run(partial(run_async, each, owned=True)), DEADLINE)
                for each in attempts
            ]
        finally:
            await lanes.stop()

    return asyncio.run(run())


@pytest.fixture
def file_database(tmp_path: Path, django_db_blocker: Any) -> Iterator[str]:
    """Return an alias whose connections really open and close, with a table of notes."""
    connections.settings["file"] = {
        **connections.settings["default"],
        "NAME": str(tmp_path / "attempt.sqlite3"),
        "CONN_MAX_AGE": 300,
    }
    with django_db_blocker.unblock():
        with connections["file"].cursor() as cursor:
            cursor.execute("CREATE TABLE notes (text TEXT)")
        yield "file"
        connections["file"].close()
    del connections["file"], connections.settings["file"]


def write_note(text: str) -> None:
    with connections["file"].cursor() as cursor:
        cursor.execute("INSERT INTO notes VALUES (%s)", [text])


def read_notes() -> list[str]:
    with connections["file"].cursor() as cursor:
        cursor.execute("SELECT text FROM notes ORDER BY rowid")
        return [text for (text,) in cursor.fetchall()]


# How sync jobs end


def test_job_that_returns() -> None:
    @job(name="tests.returns")
    def returns(number: int) -> int:
        return number

    execution = run_here(returns, 3)

    assert execution.error is None
    assert execution.failure is None
    assert not execution.stuck
    assert 0 <= execution.duration < DEADLINE


@pytest.mark.contract(60)
@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        Fatal("x"),
        Retry("1s"),
        Defer("1s"),
        StopIteration(),
        GeneratorExit(),
        SystemExit(3),
        asyncio.CancelledError(),
    ],
)
def test_whatever_a_job_raises_is_its_ending(error: BaseException) -> None:
    @job(name="tests.raises")
    def raises() -> None:
        raise error

    execution = run_here(raises)

    assert execution.error is error
    assert execution.failure is not None
    assert execution.failure.kind.endswith(type(error).__name__)
    assert "in raises" in execution.failure.traceback


def test_interrupt_in_a_thread_of_our_own_is_a_failure() -> None:
    @job(name="tests.interrupts")
    def interrupts() -> None:
        raise KeyboardInterrupt

    (execution,) = in_lane(partial(run_sync, attempt_of(interrupts), None, owned=True))

    assert isinstance(execution.error, KeyboardInterrupt)


def test_interrupt_on_the_callers_thread_is_the_callers() -> None:
    @job(name="tests.interrupts")
    def interrupts() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_here(interrupts)


def test_arguments_that_do_not_fit_are_a_failure() -> None:
    @job(name="tests.no_arguments")
    def no_arguments() -> None: ...

    execution = run_here(no_arguments, 1, 2)

    assert isinstance(execution.error, TypeError)


@pytest.mark.contract(77)
def test_context_is_passed_and_current() -> None:
    seen: list[JobContext | None] = []

    @job(name="tests.context", takes_context=True)
    def with_context(context: JobContext, number: int) -> None:
        seen.extend([context, current_job()])
        assert number == 7

    attempt = attempt_of(with_context, 7)
    execution = here(attempt)

    assert execution.error is None
    assert seen == [attempt.context, attempt.context]


def test_coroutine_returned_by_a_sync_job_is_a_failure() -> None:
    async def forgotten() -> None: ...

    @job(name="tests.forgets")
    def forgets() -> Any:
        return forgotten()

    execution = run_here(forgets)

    assert isinstance(execution.error, TypeError)
    assert "async def" in str(execution.error)


def test_error_keeps_no_frame_alive() -> None:
    class Payload: ...

    watched: list[weakref.ref[Payload]] = []

    @job(name="tests.holds")
    def holds() -> None:
        payload = Payload()
        watched.append(weakref.ref(payload))
        raise ValueError("x")

    execution = run_here(holds)
    gc.collect()

    assert execution.error is not None
    assert watched[0]() is None


@pytest.mark.contract(61)
def test_timeout_names_the_limit_and_where_it_hit() -> None:
    @job(name="tests.slow", timeout="90s")
    def slow() -> None:
        threading.Thread(target=limit.expire, daemon=True).start()
        end = time.monotonic() + DEADLINE
        while time.monotonic() < end:
            pass

    limit = TimeLimit(lambda expire: None)
    (execution,) = in_lane(partial(run_sync, attempt_of(slow, timeout=90.0), limit, owned=True))

    assert isinstance(execution.error, JobTimeout)
    assert str(execution.error) == "timed out after 90 s"
    assert execution.failure is not None
    assert execution.failure.text == "JobTimeout: timed out after 90 s"
    assert "in slow" in execution.failure.traceback


def test_job_may_raise_job_timeout_with_a_text_of_its_own() -> None:
    @job(name="tests.own_timeout")
    def own_timeout() -> None:
        raise JobTimeout("the supplier took too long")

    execution = run_here(own_timeout)

    assert str(execution.error) == "the supplier took too long"


# How async jobs end


async def test_async_job_that_returns() -> None:
    seen: list[object] = []

    @job(name="tests.async_returns", takes_context=True)
    async def returns(context: JobContext, number: int) -> None:
        await asyncio.sleep(0)
        seen.extend([context, current_job(), number])

    attempt = attempt_of(returns, 3)
    execution = await run_async(attempt, owned=False)

    assert (execution.error, execution.stuck) == (None, False)
    assert seen == [attempt.context, attempt.context, 3]


@pytest.mark.contract(60)
@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        Fatal("x"),
        SystemExit(3),
        KeyboardInterrupt(),
        asyncio.CancelledError(),
        GeneratorExit(),
    ],
)
async def test_whatever_an_async_job_raises_is_its_ending(error: BaseException) -> None:
    @job(name="tests.async_raises")
    async def raises() -> None:
        await asyncio.sleep(0)
        raise error

    execution = await asyncio.wait_for(run_async(attempt_of(raises), owned=False), DEADLINE)

    assert execution.error is error
    assert execution.failure is not None
    assert "in raises" in execution.failure.traceback


async def test_async_job_that_cancels_itself() -> None:
    @job(name="tests.async_cancels")
    async def cancels() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    execution = await asyncio.wait_for(run_async(attempt_of(cancels), owned=False), DEADLINE)

    assert isinstance(execution.error, asyncio.CancelledError)


async def test_async_arguments_that_do_not_fit_are_a_failure() -> None:
    @job(name="tests.async_no_arguments")
    async def no_arguments() -> None: ...

    execution = await run_async(attempt_of(no_arguments, 1), owned=False)

    assert isinstance(execution.error, TypeError)


@pytest.mark.contract(61)
async def test_async_timeout_cancels_the_job_and_names_the_limit() -> None:
    seen: list[str] = []

    @job(name="tests.async_slow")
    async def slow() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("cleaned up")

    execution = await asyncio.wait_for(
        run_async(attempt_of(slow, timeout=0.02), owned=False), DEADLINE
    )

    assert isinstance(execution.error, JobTimeout)
    assert str(execution.error) == "timed out after 20 ms"
    assert not execution.stuck
    assert seen == ["cleaned up"]


@pytest.mark.contract(61)
async def test_async_job_that_survives_its_cancellation_is_stuck(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(attempt_module, "GRACE", 0.05)
    gate = asyncio.Event()
    over = asyncio.Event()

    @job(name="tests.async_stubborn")
    async def stubborn() -> None:
        while not gate.is_set():
            try:
                await gate.wait()
            except asyncio.CancelledError:
                continue
        over.set()

    execution = await asyncio.wait_for(
        run_async(attempt_of(stubborn, timeout=0.02), owned=False), DEADLINE
    )
    gate.set()
    await asyncio.wait_for(over.wait(), DEADLINE)

    assert execution.stuck
    assert isinstance(execution.error, JobTimeout)
    assert execution.failure is not None
    assert "timed out after 20 ms" in execution.failure.text


@pytest.mark.contract(61)
def test_async_job_whose_thread_does_not_return_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cancelled job may leave a blocking call behind, which holds the lane's only thread."""
    monkeypatch.setattr(attempt_module, "GRACE", 0.05)
    gate = threading.Event()

    @job(name="tests.async_blocks")
    async def blocks() -> None:
        await sync_to_async(gate.wait)(DEADLINE)

    seen: list[Execution] = []

    async def run() -> None:
        lanes = AsyncLanes(1)
        call = partial(run_async, attempt_of(blocks, timeout=0.02), owned=True)
        running = asyncio.create_task(lanes.run(call))
        done, _ = await asyncio.wait({running}, timeout=5)
        seen.extend(task.result() for task in done)
        gate.set()
        await asyncio.wait({running}, timeout=DEADLINE)
        await lanes.stop()

    asyncio.run(run())

    assert seen, "the attempt waits for the blocked thread for ever"
    assert seen[0].stuck
    assert isinstance(seen[0].error, JobTimeout)


async def test_cancelled_attempt_cancels_the_job() -> None:
    seen: list[str] = []
    started = asyncio.Event()

    @job(name="tests.async_waits")
    async def waits() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            seen.append("cancelled")
            raise

    running = asyncio.create_task(run_async(attempt_of(waits), owned=False))
    await asyncio.wait_for(started.wait(), DEADLINE)
    running.cancel()
    await asyncio.wait({running}, timeout=DEADLINE)

    assert running.cancelled()
    assert seen == ["cancelled"]


# What the receivers see


@pytest.mark.contract(197)
def test_start_is_told_before_the_job_runs() -> None:
    order: list[object] = []

    @job(name="tests.starts")
    def starts() -> None:
        order.append("job")

    def receive(sender: Any, context: JobContext, **_: Any) -> None:
        order.extend([sender is starts, context, current_job() == context])

    signals.job_started.connect(receive)
    try:
        attempt = attempt_of(starts)
        here(attempt)
    finally:
        signals.job_started.disconnect(receive)

    assert order == [True, attempt.context, True, "job"]


@pytest.mark.contract(197)
async def test_start_of_an_async_job_is_told() -> None:
    order: list[object] = []

    @job(name="tests.async_starts")
    async def starts() -> None:
        order.append("job")

    def receive(sender: Any, context: JobContext, **_: Any) -> None:
        order.append(context)

    signals.job_started.connect(receive, sender=starts)
    try:
        attempt = attempt_of(starts)
        await run_async(attempt, owned=False)
    finally:
        signals.job_started.disconnect(receive, sender=starts)

    assert order == [attempt.context, "job"]


@pytest.mark.contract(198)
@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3)])
def test_receiver_of_the_start_that_raises_changes_nothing(error: BaseException) -> None:
    ran: list[bool] = []

    @job(name="tests.starts_anyway")
    def starts() -> None:
        ran.append(True)

    def receive(**_: Any) -> None:
        raise error

    signals.job_started.connect(receive)
    try:
        execution = run_here(starts)
    finally:
        signals.job_started.disconnect(receive)

    assert execution.error is None
    assert ran == [True]


@pytest.mark.contract(200)
def test_records_that_a_job_writes_carry_its_fields() -> None:
    records: list[logging.LogRecord] = []
    logger = logging.getLogger("tests.project")
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    handler.addFilter(JobLogFilter())
    job_id = uuid.uuid4()

    @job(name="tests.writes")
    def writes() -> None:
        logger.error("from the job")

    context = JobContext(job="tests.writes", attempt=4, queue="email", job_id=job_id)
    attempt = Attempt(job=writes, context=context, args=[], kwargs={}, timeout=None)
    logger.addHandler(handler)
    try:
        in_lane(partial(run_sync, attempt, None, owned=True), partial(logger.error, "outside"))
    finally:
        logger.removeHandler(handler)

    fields = [(r.job_id, r.job, r.queue, r.attempt) for r in records]  # type: ignore[attr-defined]
    assert fields == [(job_id, "tests.writes", "email", 4), ("", "", "", "")]


# Database connections of the worker's own threads


@pytest.mark.parametrize(("max_age", "kept"), [(300, True), (None, True), (0, False)])
def test_connection_of_a_thread_lives_as_long_as_its_settings_say(
    file_database: str, max_age: int | None, kept: bool
) -> None:
    connections.settings[file_database]["CONN_MAX_AGE"] = max_age
    seen: list[Any] = []

    @job(name="tests.connects")
    def connects() -> None:
        write_note("x")
        seen.append(connections["file"].connection)

    after: list[Any] = []

    def look() -> None:
        after.append(connections["file"].connection)

    run = partial(run_sync, attempt_of(connects), None, owned=True)
    in_lane(run, look, run)

    assert (after[0] is seen[0]) is kept
    assert (after[0] is not None) is kept
    assert (seen[1] is seen[0]) is kept


def test_stale_connection_is_replaced_before_a_job(file_database: str) -> None:
    seen: list[Any] = []

    @job(name="tests.connects")
    def connects() -> None:
        write_note("x")
        seen.append(connections["file"].connection)

    def expire() -> None:
        connections["file"].close_at = time.monotonic() - 1

    run = partial(run_sync, attempt_of(connects), None, owned=True)
    in_lane(run, expire, run)

    assert seen[0] is not seen[1]
    assert read_notes() == ["x", "x"]


def test_transaction_left_open_does_not_swallow_the_next_jobs_writes(
    file_database: str, caplog: pytest.LogCaptureFixture
) -> None:
    @job(name="tests.leaves_open")
    def leaves_open() -> None:
        transaction.atomic(using="file").__enter__()
        write_note("left open")

    @job(name="tests.writes")
    def writes(text: str) -> None:
        write_note(text)

    def run(made: Job[..., Any], *args: Any) -> Callable[[], Execution]:
        return partial(run_sync, attempt_of(made, *args), None, owned=True)

    executions = in_lane(run(writes, "before"), run(leaves_open), run(writes, "after"))

    assert [execution.error for execution in executions] == [None, None, None]
    assert read_notes() == ["before", "after"]
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 1
    assert "'file'" in errors[0].getMessage()


def test_transaction_left_open_by_an_async_job_does_not_either(file_database: str) -> None:
    def begin() -> None:
        transaction.atomic(using="file").__enter__()
        write_note("left open")

    @job(name="tests.async_leaves_open")
    async def leaves_open() -> None:
        await sync_to_async(begin)()

    @job(name="tests.async_writes")
    async def writes() -> None:
        await sync_to_async(write_note)("after")

    executions = in_async_lane(attempt_of(leaves_open), attempt_of(writes))

    assert [execution.error for execution in executions] == [None, None]
    assert read_notes() == ["after"]


def test_autocommit_left_off_does_not_swallow_the_next_jobs_writes(file_database: str) -> None:
    @job(name="tests.leaves_autocommit_off")
    def leaves_off() -> None:
        transaction.set_autocommit(False, using="file")
        write_note("never committed")

    @job(name="tests.writes")
    def writes() -> None:
        write_note("after")

    in_lane(
        partial(run_sync, attempt_of(leaves_off), None, owned=True),
        partial(run_sync, attempt_of(writes), None, owned=True),
    )

    assert read_notes() == ["after"]


def test_timeout_inside_a_transaction_rolls_it_back(file_database: str) -> None:
    @job(name="tests.slow")
    def slow() -> None:
        with transaction.atomic(using="file"):
            write_note("interrupted")
            threading.Thread(target=limit.expire, daemon=True).start()
            end = time.monotonic() + DEADLINE
            while time.monotonic() < end:
                pass

    @job(name="tests.writes")
    def writes() -> None:
        write_note("after")

    limit = TimeLimit(lambda expire: None)
    first, _ = in_lane(
        partial(run_sync, attempt_of(slow, timeout=1.0), limit, owned=True),
        partial(run_sync, attempt_of(writes), None, owned=True),
    )

    assert isinstance(first.error, JobTimeout)
    assert read_notes() == ["after"]


@pytest.mark.parametrize(("debug", "kept"), [(True, 0), (False, 1)])
def test_query_log_is_emptied_under_debug(
    file_database: str, settings: Any, debug: bool, kept: int
) -> None:
    settings.DEBUG = debug

    @job(name="tests.queries")
    def queries() -> None:
        connections["file"].force_debug_cursor = True
        write_note("x")
        assert len(connections["file"].queries_log) == 1

    execution, count = in_lane(
        partial(run_sync, attempt_of(queries), None, owned=True),
        lambda: len(connections["file"].queries_log),
    )

    assert execution.error is None
    assert count == kept


def test_cleaning_that_fails_is_logged_and_hides_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise OSError("the database is gone")

    @job(name="tests.fails")
    def fails() -> None:
        raise ValueError("the job's own")

    monkeypatch.setattr(attempt_module, "close_old_connections", fail)
    (execution,) = in_lane(partial(run_sync, attempt_of(fails), None, owned=True))

    assert str(execution.error) == "the job's own"
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]
    assert [log_fields(record) for record in caplog.records] == [("tests.fails", "email", 2)] * 2


# The thread of a caller


def test_callers_connections_and_query_log_are_left_alone(
    file_database: str, settings: Any
) -> None:
    settings.DEBUG = True
    connections.settings[file_database]["CONN_MAX_AGE"] = 0

    @job(name="tests.writes")
    def writes() -> None:
        write_note("from the job")

    with transaction.atomic(using="file"):
        write_note("uncommitted")
        connection = connections["file"].connection
        logged = len(connections["file"].queries_log)
        execution = run_here(writes)

        assert execution.error is None
        assert connections["file"].in_atomic_block
        assert connections["file"].connection is connection
        assert len(connections["file"].queries_log) == logged + 1
        assert read_notes() == ["uncommitted", "from the job"]
    connections["file"].queries_log.clear()


# Language and time zone


@pytest.mark.parametrize("fails", [False, True])
def test_language_and_time_zone_of_a_sync_job_do_not_leak(fails: bool) -> None:
    @job(name="tests.changes")
    def changes() -> None:
        translation.activate("de")
        timezone.activate("Asia/Tokyo")
        if fails:
            raise ValueError("x")

    def look() -> tuple[str | None, str]:
        return translation.get_language(), timezone.get_current_timezone_name()

    before, execution, after = in_lane(
        look, partial(run_sync, attempt_of(changes), None, owned=True), look
    )

    assert (execution.error is not None) is fails
    assert before == (translation.get_language(), timezone.get_current_timezone_name())
    assert after == before


@pytest.mark.parametrize("fails", [False, True])
def test_language_and_time_zone_of_an_async_job_do_not_leak(fails: bool) -> None:
    seen: list[object] = []

    @job(name="tests.async_changes")
    async def changes() -> None:
        translation.activate("de")
        await sync_to_async(timezone.activate)("Asia/Tokyo")
        seen.append((translation.get_language(), timezone.get_current_timezone_name()))
        if fails:
            raise ValueError("x")

    @job(name="tests.async_looks")
    async def looks() -> None:
        seen.append((translation.get_language(), timezone.get_current_timezone_name()))
        seen.append(await sync_to_async(translation.get_language)())

    first, second = in_async_lane(attempt_of(changes), attempt_of(looks))

    assert (first.error is not None) is fails
    assert second.error is None
    untouched = (translation.get_language(), timezone.get_current_timezone_name())
    assert seen == [("de", "Asia/Tokyo"), untouched, untouched[0]]


async def test_languages_of_interleaved_async_jobs_do_not_mix() -> None:
    both = asyncio.Barrier(2)
    seen: dict[str, list[str | None]] = {}

    @job(name="tests.async_speaks")
    async def speaks(language: str) -> None:
        translation.activate(language)
        await both.wait()
        seen[language] = [
            translation.get_language(),
            await sync_to_async(translation.get_language)(),
        ]
        await both.wait()
        seen[language].append(translation.get_language())

    lanes = AsyncLanes(2)
    await asyncio.wait_for(
        asyncio.gather(
            *(
                lanes.run(partial(run_async, attempt_of(speaks, language), owned=True))
                for language in ("de", "fr")
            )
        ),
        DEADLINE,
    )
    await lanes.stop()

    assert seen == {"de": ["de"] * 3, "fr": ["fr"] * 3}
    assert translation.get_language() == "en-us"


async def test_languages_of_interleaved_sync_jobs_do_not_mix() -> None:
    both = threading.Barrier(2)
    seen: dict[str, str | None] = {}

    @job(name="tests.speaks")
    def speaks(language: str) -> None:
        translation.activate(language)
        both.wait(DEADLINE)
        seen[language] = translation.get_language()
        both.wait(DEADLINE)

    lanes = ThreadLanes(2)
    lanes.start()
    calls = [
        lanes.submit(partial(run_sync, attempt_of(speaks, language), None, owned=True))
        for language in ("de", "fr")
    ]
    await asyncio.wait_for(asyncio.gather(*(call.future for call in calls)), DEADLINE)
    await lanes.stop(DEADLINE)

    assert seen == {"de": "de", "fr": "fr"}


@pytest.mark.contract(79)
def test_age_grows_while_the_job_runs() -> None:
    ages: list[timedelta] = []

    @job(name="tests.ages", takes_context=True)
    def ages_on(context: JobContext) -> None:
        first = context.age
        while context.age == first:
            pass
        ages.extend([first, context.age])

    context = JobContext(job="tests.ages", enqueued_at=time.time_ns() // 1_000_000 - 60_000)
    attempt = Attempt(job=ages_on, context=context, args=[], kwargs={}, timeout=None)
    here(attempt)

    assert timedelta(seconds=60) <= ages[0] < ages[1]
