"""Trials of retries: as many runs as were asked for, of the same job, told as they were."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import pytest
from django.test import override_settings

from django_jobq import JobContext, RetryPolicy, job, signals
from django_jobq.backends.handler import backends
from django_jobq.backends.memory import ManualClock, MemoryBackend


@pytest.fixture
def told() -> Iterator[list[tuple[Any, ...]]]:
    """Collect the signals of failures: kind, attempt, limit and whether it was the last."""
    seen: list[tuple[Any, ...]] = []

    def retried(context: JobContext, next_attempt: int, **_: Any) -> None:
        seen.append(("retried", context.attempt, context.max_attempts, next_attempt))

    def dead(context: JobContext, max_attempts: int, **_: Any) -> None:
        seen.append(("dead", context.attempt, context.max_attempts, max_attempts))

    signals.job_retried.connect(retried)
    signals.job_dead_lettered.connect(dead)
    yield seen
    signals.job_retried.disconnect(retried)
    signals.job_dead_lettered.disconnect(dead)


@pytest.mark.contract(80, 81)
@pytest.mark.parametrize("attempts", [1, 2, 4])
@pytest.mark.parametrize("kind", ["sync", "async"])
@pytest.mark.parametrize("runner", ["work", "drain"])
def test_b89_a_job_runs_as_often_as_its_policy_says(
    attempts: int, kind: str, runner: str, memory: MemoryBackend, request: pytest.FixtureRequest
) -> None:
    """A job that always fails runs exactly as often as its limit says, in every kind of worker."""
    runs = []

    def fail() -> None:
        runs.append(1)
        raise ValueError("no")

    async def fail_async() -> None:
        fail()

    made = job(
        fail if kind == "sync" else fail_async,
        name="trial.fails",
        retry=RetryPolicy.none(attempts),
    )
    made.enqueue()
    request.getfixturevalue(runner)()

    assert len(runs) == attempts
    [letter] = memory.dead_letters("default")
    assert (letter.attempts, letter.cause) == (attempts, "exhausted")
    assert len(memory.retried("default")) == attempts - 1


@pytest.mark.contract(82)
def test_b89_limits_that_are_no_number_of_runs_are_refused() -> None:
    """A limit below one run, or that is no whole number, is refused where it is written."""
    for value in (0, -1, 2.0, True, None):
        with pytest.raises(Exception, match="max_attempts"):
            RetryPolicy.none(value)  # type: ignore[arg-type]


class NeedsArguments(Exception):
    def __init__(self, first: str, *, second: int) -> None:
        super().__init__(first)
        self.second = second


class HoldsALock(Exception):
    def __init__(self) -> None:
        self.lock = threading.Lock()
        super().__init__("lock", self.lock)


class Unpicklable(Exception):
    def __reduce__(self) -> NoReturn:
        raise RuntimeError("no copies")


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


class ExitsWhenShown(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


def _raise_holding_a_socket() -> None:
    with socket.socket() as held:
        raise ValueError("socket", held)


def _raise_local() -> None:
    class Local(Exception):
        pass

    raise Local("local")


def _raise_group() -> None:
    raise ExceptionGroup("several", [ValueError("one"), ExceptionGroup("more", [KeyError("two")])])


def _raise(error: BaseException) -> Callable[[], None]:
    def call() -> None:
        raise error

    return call


HOSTILE: dict[str, tuple[Callable[[], None], str]] = {
    "arguments": (lambda: _raise(NeedsArguments("first", second=2))(), "NeedsArguments: first"),
    "lock": (lambda: _raise(HoldsALock())(), "HoldsALock: ('lock'"),
    "socket": (_raise_holding_a_socket, "ValueError: ('socket'"),
    "reduce": (lambda: _raise(Unpicklable("x"))(), "Unpicklable: x"),
    "group": (_raise_group, "ExceptionGroup: several (2 sub-exceptions)"),
    "local": (_raise_local, "_raise_local.<locals>.Local: local"),
    "str": (lambda: _raise(Mute())(), "Mute: <its message cannot be shown: RuntimeError>"),
    "exit": (lambda: _raise(ExitsWhenShown())(), "<its message cannot be shown: SystemExit>"),
    "long": (lambda: _raise(ValueError("x" * 5_000_000))(), "ValueError: xxx"),
    "text": (lambda: _raise(ValueError("nul \0 and half \ud800"))(), "nul \0 and half \ud800"),
    "bare": (lambda: _raise(ValueError())(), "ValueError"),
    "bytes": (lambda: _raise(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"))(), "decode byte"),
}


@pytest.mark.contract(60, 118)
@pytest.mark.parametrize("kind", HOSTILE)
def test_b93_any_exception_is_described_and_retried(
    kind: str, memory: MemoryBackend, work: Callable[..., Any]
) -> None:
    """Whatever a job raises is kept as short text and retried like any failure."""
    fail, text = HOSTILE[kind]
    runs = []

    @job(name="trial.hostile", retry=RetryPolicy.none(2))
    def hostile() -> None:
        runs.append(1)
        fail()

    hostile.enqueue()
    stats = work()

    assert (len(runs), stats.retried, stats.dead_lettered, stats.settle_failures) == (2, 1, 1, 0)
    [letter] = memory.dead_letters("default")
    assert text in letter.reason
    assert len(letter.reason) <= 4_000
    assert letter.envelope is not None
    history = letter.envelope.headers["errors"]
    assert [entry["attempt"] for entry in history] == [1, 2]
    assert all(len(entry["message"]) <= 1_000 for entry in history)
    assert len(history[1]["traceback"]) <= 8_100
    assert len(letter.envelope.encode()) < 60_000


def test_b93_the_history_of_errors_is_bounded(
    memory: MemoryBackend, work: Callable[..., Any]
) -> None:
    """However often a job fails, its envelope keeps only the last few errors."""

    @job(name="trial.many", retry=RetryPolicy.none(40))
    def many() -> None:
        raise ValueError("y" * 3_000)

    many.enqueue()
    work()

    [letter] = memory.dead_letters("default")
    assert letter.envelope is not None
    assert [entry["attempt"] for entry in letter.envelope.headers["errors"]] == [36, 37, 38, 39, 40]
    assert len(letter.envelope.encode()) < 20_000


@override_settings(
    JOBQ={
        "default": {
            "BACKEND": "django_jobq.backends.memory.MemoryBackend",
            "QUEUES": {"slow": {"retry": {"max_attempts": 9}}, "default": {}},
        }
    }
)
@pytest.mark.contract(31, 50, 87, 88, 91)
def test_b95_a_retry_keeps_every_option_of_the_call(
    work: Callable[..., Any],
) -> None:
    """Id, queue, priority, limit, correlation and first time of a job are the same to its end."""
    seen: list[JobContext] = []

    @job(name="trial.options", priority=1, retry=5, timeout="1s", takes_context=True)
    def options(context: JobContext, *args: Any, **kwargs: Any) -> None:
        seen.append(context)
        raise ValueError

    call = options.using(
        queue="slow",
        priority=7,
        timeout="99s",
        correlation_id="order-1",
        retry=RetryPolicy.none(3),
    )
    handle = call.enqueue(1, key={"a": [2]})
    memory = backends["default"]
    assert isinstance(memory, MemoryBackend)
    [first] = memory.pending("slow")
    work()

    assert [context.attempt for context in seen] == [1, 2, 3]
    for context in seen:
        assert context.job_id == handle.id
        assert (context.queue, context.priority, context.max_attempts) == ("slow", 7, 3)
        assert (context.correlation_id, context.enqueued_at) == ("order-1", first.enqueued_at)
    [letter] = memory.dead_letters("slow")
    assert letter.envelope is not None
    final = letter.envelope
    assert (final.job_id, final.queue, final.priority) == (handle.id, "slow", 7)
    assert (final.args, final.kwargs) == (first.args, first.kwargs)
    assert (final.correlation_id, final.enqueued_at) == ("order-1", first.enqueued_at)
    assert final.headers["timeout"] == 99.0
    assert final.headers["retry"] == first.headers["retry"]


def test_b95_a_timeout_of_the_call_holds_on_every_attempt(
    memory: MemoryBackend, work: Callable[..., Any]
) -> None:
    """A timeout given with a call limits its retries too."""
    attempts = []

    @job(name="trial.timeout", retry=RetryPolicy.none(2), takes_context=True)
    async def waits(context: JobContext) -> None:
        attempts.append(context.attempt)
        await _forever()

    waits.using(timeout="50ms").enqueue()
    work()

    assert attempts == [1, 2]
    [letter] = memory.dead_letters("default")
    assert "timed out after 50 ms" in letter.reason


async def _forever() -> None:
    await asyncio.Event().wait()


@pytest.mark.contract(77, 88, 196)
def test_b97_receivers_see_the_attempt_that_failed(
    told: list[tuple[Any, ...]], work: Callable[..., Any]
) -> None:
    """Signals count attempts from one up to the limit, and tell the end exactly once."""
    last: list[bool] = []

    @job(name="trial.told", retry=RetryPolicy.none(3), takes_context=True)
    def fails(context: JobContext) -> None:
        last.append(context.is_last_attempt)
        raise ValueError

    fails.enqueue()
    work()

    assert told == [("retried", 1, 3, 2), ("retried", 2, 3, 3), ("dead", 3, 3, 3)]
    assert last == [False, False, True]


@pytest.mark.contract(87)
def test_b99_the_declaration_of_today_rules_a_job_of_yesterday(
    clocked: MemoryBackend,
    clock: ManualClock,
    told: list[tuple[Any, ...]],
    work: Callable[..., Any],
) -> None:
    """A deploy that changes a job's policy changes it for the jobs that are on their way."""

    def declare(policy: RetryPolicy) -> Any:
        @job(name="trial.deployed", retry=policy)
        def deployed() -> None:
            raise ValueError

        return deployed

    old = declare(RetryPolicy.fixed(20, delay="10s"))
    old.enqueue()
    for _ in range(5):
        work()
        clock.advance(10)
    declare(RetryPolicy.none(3))
    work()

    assert told[-2:] == [("retried", 5, 20, 6), ("dead", 6, 3, 3)]
    [letter] = clocked.dead_letters("default")
    assert (letter.attempts, letter.cause) == (6, "exhausted")
    assert "after attempt 6 of 3" in letter.reason


@pytest.mark.contract(87)
def test_b99_the_policy_of_a_call_travels_with_it(
    memory: MemoryBackend, told: list[tuple[Any, ...]], work: Callable[..., Any]
) -> None:
    """A policy given with the call outlives a change of the declaration."""

    def declare(attempts: int) -> Any:
        @job(name="trial.deployed", retry=RetryPolicy.none(attempts))
        def deployed() -> None:
            raise ValueError

        return deployed

    declare(20).using(retry=RetryPolicy.none(2)).enqueue()
    declare(9)
    work()

    assert told == [("retried", 1, 2, 2), ("dead", 2, 2, 2)]


@pytest.mark.contract(87)
@pytest.mark.parametrize(
    ("call", "declared", "queue", "expected"),
    [(2, 3, 4, 2), (None, 3, 4, 3), (None, None, 4, 4), (None, None, None, 1), (1, 3, 4, 1)],
)
def test_b99_precedence_is_call_then_job_then_queue(
    call: int | None,
    declared: int | None,
    queue: int | None,
    expected: int,
    work: Callable[..., Any],
) -> None:
    """The policy of the call comes before that of the job, and that before the queue's."""
    seen: list[tuple[int, int]] = []

    def policy(attempts: int | None) -> RetryPolicy | None:
        return None if attempts is None else RetryPolicy.none(attempts)

    options = {"retry": policy(queue)} if queue else {}
    entry = {
        "BACKEND": "django_jobq.backends.memory.MemoryBackend",
        "QUEUES": {"default": options},
    }
    with override_settings(JOBQ={"default": entry}):

        @job(name="trial.precedence", retry=policy(declared), takes_context=True)
        def fails(context: JobContext) -> None:
            seen.append((context.attempt, context.max_attempts))
            raise ValueError

        fails.using(retry=policy(call)).enqueue()
        work()

    assert seen == [(attempt, expected) for attempt in range(1, expected + 1)]
