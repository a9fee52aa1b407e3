"""Trials of what jobs and receivers may raise: it ends the attempt, never the worker."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.core.management.base import BaseCommand
from django.dispatch import Signal
from django.test import override_settings

from django_jobq import Defer, Fatal, Retry, RetryPolicy, job, signals
from django_jobq.backends.base import Counts
from django_jobq.backends.memory import MemoryBackend
from django_jobq.exceptions import InvalidArguments
from django_jobq.worker.stats import WorkerStats
from tests.trials.project import within

NOTHING = Counts(ready=0, held=0, reserved=0, dead=0)
ONE_DEAD = Counts(ready=0, held=0, reserved=0, dead=1)


class Failing(BaseCommand):
    def handle(self, *args: Any, **options: Any) -> None:
        raise CommandError("no", returncode=7)


class Exiting(BaseCommand):
    def handle(self, *args: Any, **options: Any) -> None:
        sys.exit(4)


def _stop_iterating() -> None:
    next(iter(()))


def _exit_in_a_finaliser() -> None:
    try:
        raise ValueError("first")
    finally:
        sys.exit("second")


ENDS: dict[str, tuple[Callable[[], Any], str]] = {
    "exit 0": (lambda: sys.exit(0), "SystemExit: 0"),
    "exit 3": (lambda: sys.exit(3), "SystemExit: 3"),
    "exit text": (lambda: sys.exit("text"), "SystemExit: text"),
    "exit": (sys.exit, "SystemExit"),
    "exit in finally": (_exit_in_a_finaliser, "SystemExit: second"),
    "command error": (lambda: call_command(Failing()), "CommandError: no"),
    "command exit": (lambda: call_command(Exiting()), "SystemExit: 4"),
    "bad option": (lambda: call_command("check", "--no-such-option"), "unrecognized arguments"),
    "interrupt": (lambda: _raise(KeyboardInterrupt()), "KeyboardInterrupt"),
    "generator exit": (lambda: _raise(GeneratorExit()), "GeneratorExit"),
    "cancelled": (lambda: _raise(asyncio.CancelledError("mine")), "CancelledError: mine"),
    "stop iteration": (_stop_iterating, ""),
    "base exception": (lambda: _raise(BaseException("bare")), "BaseException: bare"),
    "base group": (
        lambda: _raise(BaseExceptionGroup("several", [SystemExit(1)])),
        "BaseExceptionGroup: several",
    ),
}


def _raise(error: BaseException) -> None:
    raise error


@pytest.mark.contract(60)
@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_b101_a_job_that_exits_has_failed(
    how: str, kind: str, memory: MemoryBackend, work: Callable[..., WorkerStats]
) -> None:
    """A job that exits, even with status 0, has failed; the jobs behind it run."""
    end, text = ENDS[how]
    runs: list[str] = []

    def ends() -> None:
        runs.append("ends")
        end()

    async def ends_async() -> None:
        ends()

    @job(name="trial.ordinary")
    def ordinary() -> None:
        runs.append("ordinary")

    ending = job(
        ends if kind == "sync" else ends_async, name="trial.ends", retry=RetryPolicy.none(2)
    )
    ending.enqueue()
    ordinary.enqueue()
    stats = within(8, lambda: work(concurrency=1))

    assert sorted(runs) == ["ends", "ends", "ordinary"]
    assert (stats.succeeded, stats.retried, stats.dead_lettered) == (1, 1, 1)
    [letter] = memory.dead_letters("default")
    assert letter.cause == "exhausted"
    assert text in letter.reason


def _recurse() -> None:
    _recurse()


def _chain(links: int) -> None:
    error: BaseException = ValueError("link 0")
    for number in range(1, links):
        link = ValueError(f"link {number}")
        link.__cause__ = error
        error = link
    raise error


def _chain_in_a_circle() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    raise first


def _wide_group() -> None:
    raise ExceptionGroup("wide", [ValueError("x" * 1_000) for _ in range(500)])


def _deep_group() -> None:
    error: Exception = ValueError("innermost")
    for _ in range(300):
        error = ExceptionGroup("level", [error])
    raise error


@pytest.mark.parametrize(
    ("fail", "text"),
    [
        (_recurse, "RecursionError"),
        (lambda: _chain(5_000), "link 4999"),
        (_chain_in_a_circle, "ValueError: first"),
        (_wide_group, "wide (500 sub-exceptions)"),
        (_deep_group, "level (1 sub-exception)"),
    ],
    ids=["recursion", "chain", "circle", "wide group", "deep group"],
)
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_b103_an_endless_error_is_recorded_in_short(
    fail: Callable[[], None],
    text: str,
    kind: str,
    memory: MemoryBackend,
    work: Callable[..., WorkerStats],
) -> None:
    """An error without end is kept with a traceback of bounded length; the worker goes on."""

    def fails() -> None:
        fail()

    async def fails_async() -> None:
        fail()

    @job(name="trial.ordinary")
    def ordinary() -> None: ...

    job(fails if kind == "sync" else fails_async, name="trial.fails").enqueue()
    ordinary.enqueue()
    stats = within(20, work)

    assert (stats.succeeded, stats.dead_lettered, stats.settle_failures) == (1, 1, 0)
    [letter] = memory.dead_letters("default")
    assert text in letter.reason
    assert letter.envelope is not None
    [entry] = letter.envelope.headers["errors"]
    assert 0 < len(entry["traceback"]) <= 8_100


def test_b103_deep_arguments_are_refused_at_the_call(memory: MemoryBackend) -> None:
    """Arguments nested without end are refused by name at the call; a deep result does no harm."""

    @job(name="trial.deep")
    def deep(tree: Any) -> None: ...

    for levels in (101, 10_000):
        tree: list[Any] = []
        for _ in range(levels):
            tree = [tree]
        with pytest.raises(InvalidArguments, match=r"argument tree.* nested deeper than 100"):
            deep.enqueue(tree)
    endless: dict[str, Any] = {}
    endless["self"] = endless
    with pytest.raises(InvalidArguments, match="nested deeper than 100"):
        deep.enqueue(endless)
    assert memory.counts("default") == NOTHING


def test_b103_the_deepest_accepted_arguments_arrive(work: Callable[..., WorkerStats]) -> None:
    """What the call accepts at its limit of nesting also arrives, from a deep stack too."""
    seen = []

    @job(name="trial.deep")
    def deep(tree: Any) -> None:
        seen.append(tree)

    tree: Any = "leaf"
    for _ in range(99):
        tree = {"$t": [tree]} if isinstance(tree, str) else [tree]
    deep.enqueue(tree)
    stats = within(8, work)

    assert stats.succeeded == 1
    assert seen == [tree]


async def _raise_timeout() -> None:
    raise TimeoutError("the job's own")


async def _wait_too_long() -> None:
    await asyncio.wait_for(asyncio.Event().wait(), 0.01)


async def _await_a_cancelled_child() -> None:
    child = asyncio.create_task(asyncio.Event().wait())
    await asyncio.sleep(0)
    child.cancel()
    await child


async def _cancel_itself() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)


async def _cancel_itself_at_the_end() -> None:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()


async def _fail_in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(asyncio.Event().wait())
        group.create_task(_raise_timeout())


@pytest.mark.contract(57, 60)
@pytest.mark.parametrize("timeout", [None, "30s"])
@pytest.mark.parametrize(
    ("fail", "text"),
    [
        (_raise_timeout, "TimeoutError: the job's own"),
        (_wait_too_long, "TimeoutError"),
        (_await_a_cancelled_child, "CancelledError"),
        (_cancel_itself, "CancelledError"),
        (_cancel_itself_at_the_end, "CancelledError"),
        (_fail_in_a_group, "ExceptionGroup"),
    ],
)
def test_b105_an_async_job_may_raise_what_the_loop_uses(
    fail: Callable[[], Any],
    text: str,
    timeout: str | None,
    memory: MemoryBackend,
    work: Callable[..., WorkerStats],
) -> None:
    """Timeouts and cancellations of a job's own are its failures, retried by its policy."""
    runs = []

    @job(name="trial.own", retry=RetryPolicy.none(2), timeout=timeout)
    async def own() -> None:
        runs.append(1)
        await fail()

    @job(name="trial.ordinary")
    async def ordinary() -> None: ...

    own.enqueue()
    ordinary.enqueue()
    stats = within(8, lambda: work(concurrency=1))

    assert len(runs) == 2
    assert (stats.succeeded, stats.retried, stats.dead_lettered) == (1, 1, 1)
    [letter] = memory.dead_letters("default")
    assert text in letter.reason
    assert "timed out after" not in letter.reason


WORKER_SIGNALS: dict[str, Signal] = {
    "job_started": signals.job_started,
    "job_succeeded": signals.job_succeeded,
    "job_retried": signals.job_retried,
    "job_deferred": signals.job_deferred,
    "job_dead_lettered": signals.job_dead_lettered,
}


@contextmanager
def receivers(signal: Signal, *functions: Callable[..., Any]) -> Iterator[None]:
    for function in functions:
        signal.connect(function, weak=False)
    try:
        yield
    finally:
        for function in functions:
            signal.disconnect(function)


def work_through_all_outcomes(work: Callable[..., WorkerStats]) -> WorkerStats:
    """Run one job through a deferral, a retry and its death, and another one to success."""
    steps: list[Exception] = [Defer("0s"), Retry(), ValueError("end")]

    @job(name="trial.steps", retry=RetryPolicy.none(2))
    def steps_job() -> None:
        raise steps.pop(0)

    @job(name="trial.ordinary")
    def ordinary() -> None: ...

    steps_job.enqueue()
    ordinary.enqueue()
    return within(8, lambda: work(concurrency=1))


@pytest.mark.contract(198)
@pytest.mark.parametrize("error", [ValueError, SystemExit, StopIteration, asyncio.CancelledError])
@pytest.mark.parametrize("name", WORKER_SIGNALS)
def test_b107_a_receiver_that_raises_changes_no_outcome(
    name: str,
    error: type[BaseException],
    memory: MemoryBackend,
    work: Callable[..., WorkerStats],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whatever a receiver raises is logged with its name, and the job runs and is settled."""

    def bad_receiver(**_: Any) -> None:
        raise error("receiver")

    with receivers(WORKER_SIGNALS[name], bad_receiver):
        stats = work_through_all_outcomes(work)

    assert (stats.succeeded, stats.deferred, stats.retried, stats.dead_lettered) == (1, 1, 1, 1)
    assert (stats.handed_back, stats.settle_failures) == (0, 0)
    assert memory.counts("default") == ONE_DEAD
    assert "bad_receiver" in caplog.text


@pytest.mark.contract(195, 198)
@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_b107_a_receiver_that_raises_does_not_refuse_the_enqueue(
    error: type[BaseException], memory: MemoryBackend
) -> None:
    """A receiver of job_enqueued that raises neither fails the call nor takes the job back."""

    @job(name="trial.ordinary")
    def ordinary() -> None: ...

    def bad_receiver(**_: Any) -> None:
        raise error("receiver")

    with receivers(signals.job_enqueued, bad_receiver):
        handle = ordinary.enqueue()

    assert [envelope.job_id for envelope in memory.pending("default")] == [handle.id]


@pytest.mark.contract(198)
def test_b107_a_receiver_that_blocks_holds_up_its_own_slot_only(
    work: Callable[..., WorkerStats],
) -> None:
    """While a receiver of one job blocks, other jobs run; then its job is done too."""
    others = threading.Event()
    released = []

    def blocks(context: Any, **_: Any) -> None:
        if context.job == "trial.slow":
            released.append(others.wait(10))

    @job(name="trial.slow")
    def slow() -> None: ...

    @job(name="trial.quick")
    def quick() -> None:
        others.set()

    slow.enqueue()
    quick.enqueue()
    with receivers(signals.job_started, blocks):
        stats = within(20, lambda: work(concurrency=2))

    assert released == [True]
    assert stats.succeeded == 2


def _hook_exits(**_: Any) -> None:
    sys.exit(1)


def _hook_stops(**_: Any) -> None:
    next(iter(()))


def _hook_fails(**_: Any) -> None:
    raise ValueError("hook")


def _hook_is_cancelled(**_: Any) -> None:
    raise asyncio.CancelledError


async def _async_hook_exits(**_: Any) -> None:
    sys.exit(1)


@pytest.mark.contract(112)
@pytest.mark.parametrize(
    "hook", [_hook_fails, _hook_exits, _hook_stops, _hook_is_cancelled, _async_hook_exits]
)
def test_b107_a_dead_letter_hook_that_raises_files_the_job_all_the_same(
    hook: Callable[..., Any],
    memory: MemoryBackend,
    work: Callable[..., WorkerStats],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Whatever the dead-letter hook raises is logged; the job is filed and the worker goes on."""
    runs = []

    @job(name="trial.dies")
    def dies() -> None:
        runs.append(1)
        raise ValueError("end")

    dies.enqueue()
    dies.enqueue()
    with override_settings(JOBQ_ON_DEAD_LETTER=hook):
        stats = within(8, lambda: work(concurrency=1))

    assert len(runs) == 2
    assert (stats.dead_lettered, stats.settle_failures) == (2, 0)
    assert memory.counts("default").dead == 2
    hooked = [r for r in caplog.records if "JOBQ_ON_DEAD_LETTER" in r.getMessage()]
    assert [record.levelno for record in hooked] == [logging.ERROR] * 2


class RateLimited(Defer):
    """Forgets to pass on the delay."""

    def __init__(self, service: str) -> None:
        self.service = service


class Refused(Fatal):
    """Forgets to pass on the reason."""

    def __init__(self, code: int) -> None:
        self.code = code


class TryAgain(Retry):
    """Forgets to pass on anything."""

    def __init__(self, code: int) -> None:
        self.code = code


@pytest.mark.parametrize("error", [RateLimited("api"), Refused(1), TryAgain(1)], ids=repr)
def test_b101_a_half_made_control_exception_is_a_bounded_failure(
    error: Exception, memory: MemoryBackend, work: Callable[..., WorkerStats]
) -> None:
    """A subclass of Retry, Defer or Fatal that lacks its values ends the attempt like any error."""
    runs = []

    @job(name="trial.half", retry=RetryPolicy.none(2))
    def half() -> None:
        runs.append(1)
        raise error

    half.enqueue()
    stats = within(8, lambda: work(max_jobs=10))

    assert len(runs) <= 2
    assert stats.handed_back == 0
    assert memory.counts("default") == ONE_DEAD
