"""One delivery: from its body to its settled outcome, its line, its hook and its signal."""

import asyncio
import contextvars
import gc
import json
import logging
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from asgiref.sync import async_to_sync

from django_jobq import Defer, Fatal, JobContext, JobTimeout, Retry, RetryPolicy, job, signals
from django_jobq.backends.base import MAX_REASON, Cause, Delivery
from django_jobq.backends.memory import ManualClock, MemoryBackend
from django_jobq.backends.memory.consumer import MemoryDelivery
from django_jobq.conf import AliasSettings
from django_jobq.envelope import Envelope
from django_jobq.exceptions import AlreadySettled, BackendUnavailable
from django_jobq.queues import QueueConfig
from django_jobq.worker import runner as runner_module
from django_jobq.worker.attempt import Attempt, Execution, run_async, run_sync
from django_jobq.worker.executor import CallerExecutor, Executor, LaneExecutor
from django_jobq.worker.outcomes import (
    Retried,
)
from django_jobq.worker.runner import JobRunner
from django_jobq.worker.stats import WorkerStats

DEADLINE = 20.0

hooked: list[dict[str, Any]] = []


class Inline(Executor):
    """Run everything at once, where the test runs; remember what was called."""

    def __init__(self) -> None:
        self.calls = 0

    async def run(self, attempt: Attempt) -> Execution:
        if attempt.job.is_async:
            return await run_async(attempt, owned=False)
        return contextvars.copy_context().run(run_sync, attempt, None, owned=False)

    async def call(self, func: Callable[[], None]) -> None:
        self.calls += 1
        func()


class Failing(MemoryBackend):
    """Raise what it is told to instead of settling."""

    error: BaseException | None = None

    def ack(self, delivery: MemoryDelivery) -> None:
        self._fail()
        super().ack(delivery)

    def replace(self, delivery: MemoryDelivery, *args: Any, **kwargs: Any) -> None:
        self._fail()
        super().replace(delivery, *args, **kwargs)

    def bury(self, delivery: MemoryDelivery, *args: Any) -> None:
        self._fail()
        super().bury(delivery, *args)

    def _fail(self) -> None:
        if self.error is not None:
            raise self.error


def envelope_of(name: str, **fields: Any) -> Envelope:
    given = {"job_id": uuid.uuid4(), "queue": "default", "enqueued_at": 1, **fields}
    return Envelope(job=name, **given)


async def deliver(backend: MemoryBackend, queue: str = "default") -> Delivery:
    consumer = backend.consume(queue, 0)
    return await asyncio.wait_for(anext(consumer), DEADLINE)


async def process(
    backend: MemoryBackend, times: int = 1, executor: Executor | None = None
) -> JobRunner:
    """Run the next deliveries, each to its settled end."""
    runner = JobRunner(backend, executor or Inline())
    for _ in range(times):
        delivery = await deliver(backend)
        assert await asyncio.wait_for(runner.process(delivery), DEADLINE) is None
    return runner


@contextmanager
def listening(*listened: str) -> Iterator[list[tuple[str, Any, dict[str, Any]]]]:
    """Record the named signals as (name, sender, keyword arguments)."""
    heard: list[tuple[str, Any, dict[str, Any]]] = []
    receivers: dict[str, Callable[..., None]] = {}
    for name in listened:

        def receive(sender: Any, signal: Any, name: str = name, **kwargs: Any) -> None:
            heard.append((name, sender, kwargs))

        receivers[name] = receive
        getattr(signals, name).connect(receive)
    try:
        yield heard
    finally:
        for name, receiver in receivers.items():
            getattr(signals, name).disconnect(receiver)


ALL = ("job_started", "job_succeeded", "job_retried", "job_deferred", "job_dead_lettered")


@pytest.fixture
def backend(make_memory: Callable[..., MemoryBackend], clock: ManualClock) -> MemoryBackend:
    """Return a backend of one queue on a clock that the test moves."""
    return make_memory("default", clock=clock)


@pytest.fixture
def failing(clock: ManualClock) -> Failing:
    settings = AliasSettings(
        alias="default", backend="memory", queues={"default": QueueConfig(name="default")}
    )
    return Failing(settings, clock=clock)


@pytest.fixture
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hand a job whose settling failed back at once."""
    monkeypatch.setattr(runner_module, "_FIRST_PAUSE", 0.0)


@pytest.fixture
def hook(settings: Any) -> list[dict[str, Any]]:
    """Record the calls of the dead-letter hook."""
    hooked.clear()
    settings.JOBQ_ON_DEAD_LETTER = lambda **kwargs: hooked.append(kwargs)
    return hooked


def hook_by_path(**kwargs: Any) -> None:
    hooked.append(kwargs)


# Outcomes


@pytest.mark.contract(53)
async def test_returned_job_is_acked_once_and_gone(backend: MemoryBackend) -> None:
    @job(name="tests.returns")
    def returns() -> None: ...

    envelope = envelope_of("tests.returns")
    backend.publish(envelope)
    runner = await process(backend)

    assert backend.settled("default") == [(envelope, "succeeded")]
    assert backend.counts("default").ready == backend.counts("default").reserved == 0
    assert runner.stats == WorkerStats(succeeded=1)


@pytest.mark.contract(31, 50, 60, 80, 92)
async def test_failed_job_is_retried_after_its_backoff(
    backend: MemoryBackend, clock: ManualClock
) -> None:
    seen: list[tuple[int, str | None]] = []

    @job(name="tests.fails", retry=RetryPolicy.fixed(3, delay="10s"), takes_context=True)
    def fails(context: JobContext) -> None:
        seen.append((context.attempt, context.correlation_id))
        raise ValueError("x")

    envelope = envelope_of("tests.fails", correlation_id="c-1", priority=4)
    backend.publish(envelope)
    runner = await process(backend)
    assert backend.counts("default").held == 1
    clock.advance(9.9)
    assert backend.counts("default").ready == 0
    clock.advance(0.2)
    assert backend.counts("default").ready == 1

    await process(backend)
    clock.advance(10.1)
    await process(backend)

    assert runner.stats == WorkerStats(retried=1)
    assert seen == [(1, "c-1"), (2, "c-1"), (3, "c-1")]
    (letter,) = backend.dead_letters("default")
    assert letter.envelope is not None
    assert (letter.cause, letter.attempts) == ("exhausted", 3)
    assert (letter.envelope.job_id, letter.envelope.priority) == (envelope.job_id, 4)
    assert letter.envelope.correlation_id == "c-1"


@pytest.mark.contract(82)
async def test_without_a_policy_there_is_one_attempt(backend: MemoryBackend) -> None:
    @job(name="tests.fails")
    def fails() -> None:
        raise ValueError("x")

    backend.publish(envelope_of("tests.fails"))
    runner = await process(backend)

    assert runner.stats == WorkerStats(dead_lettered=1)
    assert [letter.attempts for letter in backend.dead_letters("default")] == [1]


@pytest.mark.contract(50, 97, 98, 99)
async def test_deferred_job_is_uncounted_however_often(
    backend: MemoryBackend, clock: ManualClock
) -> None:
    seen: list[tuple[int, int, str | None]] = []

    @job(name="tests.defers", takes_context=True)
    def defers(context: JobContext) -> None:
        seen.append((context.attempt, context.deferrals, context.correlation_id))
        if len(seen) <= 7:
            raise Defer("5s")

    backend.publish(envelope_of("tests.defers", correlation_id="c"))
    runner = JobRunner(backend, Inline())
    for _ in range(8):
        await runner.process(await deliver(backend))
        clock.advance(5)

    assert seen == [(1, number, "c") for number in range(8)]
    assert runner.stats == WorkerStats(succeeded=1, deferred=7)
    assert backend.dead_letters("default") == []


@pytest.mark.contract(97, 100)
async def test_deferred_job_overtakes_what_came_meanwhile(
    backend: MemoryBackend, clock: ManualClock
) -> None:
    order: list[str] = []

    @job(name="tests.defers_once", takes_context=True)
    def defers_once(context: JobContext) -> None:
        order.append(f"deferred {context.deferrals}")
        if not context.deferrals:
            raise Defer("5s")

    @job(name="tests.other")
    def other(name: str) -> None:
        order.append(name)

    backend.publish(envelope_of("tests.defers_once"))
    await process(backend)
    backend.publish(envelope_of("tests.other", args=["urgent"], priority=9))
    backend.publish(envelope_of("tests.other", args=["normal"]))
    clock.advance(5)
    await process(backend, 3)

    assert order == ["deferred 0", "deferred 1", "urgent", "normal"]


@pytest.mark.contract(91, 101)
async def test_failure_after_a_deferral(backend: MemoryBackend, clock: ManualClock) -> None:
    seen: list[tuple[int, int]] = []

    @job(name="tests.both", retry=RetryPolicy.none(2), takes_context=True)
    def both(context: JobContext) -> None:
        seen.append((context.attempt, context.deferrals))
        if not context.deferrals:
            raise Defer("1s")
        if context.attempt == 1:
            raise ValueError("x")

    backend.publish(envelope_of("tests.both", priority=2))
    await process(backend)
    clock.advance(1)
    await process(backend)
    (waiting,) = backend.pending("default")
    assert (waiting.attempt, waiting.deferrals, waiting.priority) == (2, 1, 2)
    backend.publish(envelope_of("tests.both", priority=3, deferrals=1, attempt=2))

    await process(backend, 2)

    assert [(e.priority, kind) for e, kind in backend.settled("default")] == [
        (2, "deferred"),
        (2, "retried"),
        (3, "succeeded"),  # the retry came back at its own priority, not in front
        (2, "succeeded"),
    ]
    assert seen == [(1, 0), (1, 1), (2, 1), (2, 1)]


@pytest.mark.contract(102)
async def test_deferred_job_returns_on_a_queue_without_levels(
    make_memory: Callable[..., MemoryBackend], clock: ManualClock
) -> None:
    seen: list[int] = []

    @job(name="tests.defers_once", takes_context=True)
    def defers_once(context: JobContext) -> None:
        seen.append(context.deferrals)
        if not context.deferrals:
            raise Defer("5s")

    backend = make_memory(QueueConfig(name="default", max_priority=0), clock=clock)
    backend.publish(envelope_of("tests.defers_once"))
    await process(backend)
    clock.advance(5)
    assert [envelope.priority for envelope in backend.pending("default")] == [0]
    await process(backend)

    assert seen == [0, 1]


@pytest.mark.contract(104, 106)
async def test_bare_deferral_has_a_reason_and_no_failure_event(
    backend: MemoryBackend, caplog: pytest.LogCaptureFixture
) -> None:
    @job(name="tests.defers")
    def defers() -> None:
        raise Defer("90s")

    caplog.set_level(logging.INFO, "django_jobq")
    backend.publish(envelope_of("tests.defers", deferrals=2))
    with listening(*ALL) as heard:
        await process(backend)

    (record,) = [record for record in caplog.records if record.name == "django_jobq.jobs"]
    assert record.levelname == "INFO"
    for word in ("90 s", "3rd", "deferred"):
        assert word in record.getMessage()
    assert [name for name, _, _ in heard] == ["job_started", "job_deferred"]
    assert heard[1][2]["reason"] == "deferred"
    assert (heard[1][2]["delay"], heard[1][2]["deferrals"]) == (90.0, 3)


@pytest.mark.contract(93)
async def test_fatal_gives_up_on_the_first_of_many_attempts(backend: MemoryBackend) -> None:
    @job(name="tests.fatal", retry=9)
    def fatal() -> None:
        raise Fatal("no such order")

    backend.publish(envelope_of("tests.fatal"))
    await process(backend)

    (letter,) = backend.dead_letters("default")
    assert (letter.cause, letter.attempts) == ("fatal", 1)
    assert "no such order" in letter.reason


async def test_retry_may_choose_its_wait(backend: MemoryBackend, clock: ManualClock) -> None:
    @job(name="tests.asks", retry=RetryPolicy.fixed(2, delay="1h"))
    def asks() -> None:
        raise Retry("5s")

    backend.publish(envelope_of("tests.asks"))
    await process(backend)
    clock.advance(4.9)
    assert backend.counts("default").ready == 0
    clock.advance(0.2)

    assert [envelope.attempt for envelope in backend.pending("default")] == [2]


# Policies


@pytest.mark.contract(87, 88)
@pytest.mark.parametrize(
    ("of_call", "of_job", "of_queue", "limit"),
    [
        (RetryPolicy.none(2), RetryPolicy.none(3), RetryPolicy.none(4), 2),
        (None, RetryPolicy.none(3), RetryPolicy.none(4), 3),
        (None, None, RetryPolicy.none(4), 4),
        (None, None, None, 1),
        (RetryPolicy.none(1), RetryPolicy.none(3), None, 1),
    ],
)
async def test_policy_of_the_call_then_the_job_then_the_queue(
    make_memory: Callable[..., MemoryBackend],
    of_call: RetryPolicy | None,
    of_job: RetryPolicy | None,
    of_queue: RetryPolicy | None,
    limit: int,
) -> None:
    shown: list[tuple[int, bool]] = []

    @job(name="tests.fails", retry=of_job, takes_context=True)
    def fails(context: JobContext) -> None:
        shown.append((context.max_attempts, context.is_last_attempt))
        raise ValueError("x")

    backend = make_memory(QueueConfig(name="default", retry=of_queue))
    headers = {} if of_call is None else {"retry": of_call.to_json()}
    backend.publish(envelope_of("tests.fails", headers=headers))
    await process(backend, limit)

    assert shown == [(limit, number == limit) for number in range(1, limit + 1)]
    assert [letter.attempts for letter in backend.dead_letters("default")] == [limit]


@pytest.mark.parametrize(
    "header",
    [5, "3", [], {"max_attempts": 0}, {"backoff": "sometimes"}, {"backoff": []}, {"delay": "1s"}],
)
async def test_policy_that_cannot_be_read_is_a_dead_letter(
    backend: MemoryBackend, header: object
) -> None:
    ran: list[bool] = []

    @job(name="tests.runs")
    def runs() -> None:
        ran.append(True)

    backend.publish(envelope_of("tests.runs", headers={"retry": header}))
    await process(backend)

    (letter,) = backend.dead_letters("default")
    assert letter.cause == "decode"
    assert "'retry'" in letter.reason
    assert ran == []


# Timeouts


@pytest.mark.parametrize(
    ("of_job", "header", "expected"),
    [
        ("30s", {}, 30.0),
        ("30s", {"timeout": 5}, 5.0),
        (None, {"timeout": 2.5}, 2.5),
        (None, {}, None),
    ],
)
async def test_timeout_of_the_call_goes_before_the_jobs(
    backend: MemoryBackend, of_job: str | None, header: dict[str, Any], expected: float | None
) -> None:
    seen: list[float | None] = []

    class Looking(Inline):
        async def run(self, attempt: Attempt) -> Execution:
            seen.append(attempt.timeout)
            return await super().run(attempt)

    @job(name="tests.limited", timeout=of_job)
    def limited() -> None: ...

    backend.publish(envelope_of("tests.limited", headers=header))
    await process(backend, executor=Looking())

    assert seen == [expected]


@pytest.mark.parametrize("header", ["5s", 0, -1, []])
async def test_timeout_that_cannot_be_read_is_a_dead_letter(
    backend: MemoryBackend, header: object
) -> None:
    @job(name="tests.limited")
    def limited() -> None: ...

    backend.publish(envelope_of("tests.limited", headers={"timeout": header}))
    await process(backend)

    assert [letter.cause for letter in backend.dead_letters("default")] == ["decode"]


@pytest.mark.contract(61)
async def test_timeout_is_a_retryable_failure_that_names_the_limit(
    backend: MemoryBackend, caplog: pytest.LogCaptureFixture
) -> None:
    @job(name="tests.slow", timeout="20ms", retry=RetryPolicy.none(2))
    async def slow() -> None:
        await asyncio.Event().wait()

    backend.publish(envelope_of("tests.slow"))
    await process(backend)
    assert [envelope.attempt for envelope in backend.pending("default")] == [2]
    assert "timed out after 20 ms" in caplog.text
    await process(backend)

    (letter,) = backend.dead_letters("default")
    assert letter.cause == "exhausted"
    assert "timed out after 20 ms" in letter.reason


async def test_stuck_job_is_returned_and_not_settled(backend: MemoryBackend) -> None:
    class Stuck(Inline):
        async def run(self, attempt: Attempt) -> Execution:
            return Execution(duration=1.0, error=JobTimeout("timed out after 1 s"), stuck=True)

    @job(name="tests.stuck", retry=RetryPolicy.none(2))
    def stuck() -> None: ...

    backend.publish(envelope_of("tests.stuck"))
    runner = JobRunner(backend, Stuck())
    delivery = await deliver(backend)
    result = await runner.process(delivery)

    assert result is not None
    assert not delivery.settled
    assert result.outcome == Retried(0.0)
    await runner.settle(result)
    assert [envelope.attempt for envelope in backend.pending("default")] == [2]
    assert runner.stats == WorkerStats(retried=1)


# Unknown jobs


@pytest.mark.contract(58)
async def test_unknown_job_is_held_uncounted(
    backend: MemoryBackend, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    backend.publish(
        envelope_of("tests.later", headers={"retry": RetryPolicy.none(1).to_json()}, priority=3)
    )
    before = time.time_ns() // 1_000_000
    with listening(*ALL) as heard:
        runner = await process(backend)

    assert runner.stats == WorkerStats(held=1)
    assert heard == []
    assert backend.settled("default")[0][1] == "held"
    clock.advance(29.9)
    assert backend.pending("default") == []
    clock.advance(0.2)
    (waiting,) = backend.pending("default")
    assert (waiting.attempt, waiting.deferrals, waiting.priority) == (1, 0, 3)
    assert before <= waiting.headers["unknown_since"] <= time.time_ns() // 1_000_000
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "tests.later" in caplog.text


@pytest.mark.contract(58)
async def test_unknown_job_keeps_its_first_sighting(
    backend: MemoryBackend, clock: ManualClock
) -> None:
    since = time.time_ns() // 1_000_000 - 100_000
    backend.publish(envelope_of("tests.later", headers={"unknown_since": since}))

    await process(backend)
    clock.advance(30)
    (waiting,) = backend.pending("default")
    assert waiting.headers["unknown_since"] == since


@pytest.mark.contract(58)
async def test_last_hold_of_an_unknown_job_ends_with_the_grace(
    backend: MemoryBackend, clock: ManualClock
) -> None:
    since = time.time_ns() // 1_000_000 - 290_000
    backend.publish(envelope_of("tests.later", headers={"unknown_since": since}))

    await process(backend)
    clock.advance(10)

    assert len(backend.pending("default")) == 1


@pytest.mark.contract(58, 108)
@pytest.mark.parametrize(("grace", "age"), [("5m", 301), (0, 0), (0, -60), ("1s", 3600)])
async def test_unknown_job_beyond_the_grace_is_a_dead_letter(
    make_memory: Callable[..., MemoryBackend],
    hook: list[dict[str, Any]],
    grace: object,
    age: int,
) -> None:
    backend = make_memory("default", options={"unknown_job_grace": grace})
    since = time.time_ns() // 1_000_000 - age * 1000
    envelope = envelope_of(
        "tests.never", headers={"unknown_since": since, "retry": RetryPolicy.none(9).to_json()}
    )
    backend.publish(envelope)
    runner = await process(backend)

    (letter,) = backend.dead_letters("default")
    assert letter.cause == "no_handler"
    assert "tests.never" in letter.reason
    assert runner.stats == WorkerStats(dead_lettered=1)
    assert [call["max_attempts"] for call in hook] == [None]


@pytest.mark.contract(58)
async def test_job_that_becomes_known_runs_and_forgets_that_it_was_not(
    backend: MemoryBackend, clock: ManualClock
) -> None:
    backend.publish(envelope_of("tests.later"))
    await process(backend)
    clock.advance(30)

    @job(name="tests.later", retry=RetryPolicy.none(2))
    def later() -> None:
        raise ValueError("x")

    await process(backend)

    (waiting,) = backend.pending("default")
    assert waiting.attempt == 2
    assert "unknown_since" not in waiting.headers


# Bodies that are none


@pytest.mark.contract(59, 119)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"job_id": 3}',
        b'{"job_id": "x", "job": "tests.behind", "queue": "default", "attempt": 1}',
        b"[" * 100_000,
    ],
)
async def test_body_that_is_no_envelope_is_filed_and_stalls_nothing(
    backend: MemoryBackend, hook: list[dict[str, Any]], body: bytes
) -> None:
    ran: list[bool] = []

    @job(name="tests.behind", retry=5)
    def behind() -> None:
        ran.append(True)

    backend.inject("default", body)
    backend.publish(envelope_of("tests.behind"))
    runner = await process(backend, 2)

    (letter,) = backend.dead_letters("default")
    assert (letter.cause, letter.body, letter.envelope) == ("decode", body, None)
    assert letter.reason.startswith("malformed envelope")
    assert ran == [True]
    assert runner.stats == WorkerStats(succeeded=1, dead_lettered=1)
    assert [(call["envelope"], call["max_attempts"]) for call in hook] == [(None, None)]


@pytest.mark.contract(59, 119)
async def test_argument_that_does_not_decode_never_reaches_the_job(backend: MemoryBackend) -> None:
    ran: list[bool] = []

    @job(name="tests.behind", retry=5)
    def behind(value: object) -> None:
        ran.append(True)

    envelope = envelope_of("tests.behind", args=[{"$t": "from the future", "v": 1}])
    backend.publish(envelope)
    await process(backend)

    (letter,) = backend.dead_letters("default")
    assert (letter.cause, letter.envelope) == ("decode", envelope)
    assert ran == []


@pytest.mark.contract(59, 119)
@pytest.mark.parametrize("depth", [600, 900, 5_000])
async def test_arguments_nested_too_deeply_are_filed(backend: MemoryBackend, depth: int) -> None:
    """A foreign publisher may send what JSON reads and the decoding of arguments does not."""

    @job(name="tests.deep")
    def deep(value: object) -> None: ...

    body = json.loads(envelope_of("tests.deep").encode())
    text = json.dumps(body).replace('"args": []', f'"args": [{"[" * depth}{"]" * depth}]')
    backend.inject("default", text.encode())
    runner = JobRunner(backend, Inline())
    await runner.process(await deliver(backend))

    assert sum((runner.stats.succeeded, runner.stats.dead_lettered)) == 1
    assert backend.counts("default").ready == 0


@pytest.mark.contract(60)
@pytest.mark.parametrize("errors", [5, "text", {"a": 1}, [1, 2]])
async def test_foreign_history_of_errors_does_not_keep_a_job_from_ending(
    backend: MemoryBackend, no_pause: None, errors: object
) -> None:
    @job(name="tests.fails")
    def fails() -> None:
        raise ValueError("x")

    backend.publish(envelope_of("tests.fails", headers={"errors": errors}))
    runner = await process(backend)

    assert runner.stats == WorkerStats(dead_lettered=1)
    (letter,) = backend.dead_letters("default")
    assert letter.envelope is not None
    assert letter.envelope.headers["errors"][-1]["message"] == "x"


# Settling


@pytest.mark.contract(69, 201, 202)
@pytest.mark.parametrize("ending", [None, ValueError("x"), Defer("1s"), Fatal("x")])
async def test_settle_that_fails_is_counted_and_the_job_comes_again(
    failing: Failing,
    no_pause: None,
    caplog: pytest.LogCaptureFixture,
    ending: Exception | None,
) -> None:
    runs: list[int] = []

    @job(name="tests.ends", retry=RetryPolicy.none(3), takes_context=True)
    def ends(context: JobContext) -> None:
        runs.append(context.attempt)
        if ending is not None:
            raise ending

    failing.publish(envelope_of("tests.ends"))
    failing.error = BackendUnavailable("the broker is gone")
    with listening(*ALL) as heard:
        runner = await process(failing)

    assert runner.stats == WorkerStats(settle_failures=1)
    (record,) = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "the broker is gone" in caplog.text
    assert (record.job, record.queue, record.attempt) == ("tests.ends", "default", 1)  # type: ignore[attr-defined]
    assert [name for name, _, _ in heard] == ["job_started"]
    assert failing.settled("default") == []

    failing.error = None
    await runner.process(await deliver(failing))

    assert runs == [1, 1]
    assert len(failing.settled("default")) == 1
    assert runner.stats.settle_failures == 1


async def test_failed_settle_does_not_bring_the_job_back_in_a_tight_loop(
    failing: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    @job(name="tests.returns")
    def returns() -> None: ...

    monkeypatch.setattr(runner_module, "_FIRST_PAUSE", 0.2)
    failing.publish(envelope_of("tests.returns"))
    failing.error = BackendUnavailable("gone")
    started = time.perf_counter()
    await process(failing)

    assert time.perf_counter() - started >= 0.2


async def test_hand_back_that_fails_is_logged_and_counted(
    backend: MemoryBackend, caplog: pytest.LogCaptureFixture
) -> None:
    @job(name="tests.returns")
    def returns() -> None: ...

    backend.publish(envelope_of("tests.returns"))
    delivery = await deliver(backend)
    await delivery.ack()
    runner = JobRunner(backend, Inline())
    await runner.hand_back(delivery)

    assert runner.stats == WorkerStats(handed_back=1)
    assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.contract(107, 116)
async def test_dead_letter_is_complete(backend: MemoryBackend) -> None:
    @job(name="tests.fails", retry=RetryPolicy.none(2))
    def fails(number: int) -> None:
        raise ValueError(f"attempt of {number}")

    before = time.time()
    envelope = envelope_of("tests.fails", args=[7], correlation_id="c-9", deferrals=3)
    backend.publish(envelope)
    await process(backend, 2)

    (letter,) = backend.dead_letters("default")
    final = letter.envelope
    assert final is not None
    assert (final.job_id, final.args, final.correlation_id) == (envelope.job_id, [7], "c-9")
    assert (final.attempt, final.deferrals) == (2, 3)
    assert (letter.queue, letter.cause, letter.attempts) == ("default", "exhausted", 2)
    assert "ValueError: attempt of 7" in letter.reason
    assert before <= letter.died_at <= time.time()
    history = final.headers["errors"]
    assert [(entry["attempt"], entry["type"]) for entry in history] == [
        (1, "builtins.ValueError"),
        (2, "builtins.ValueError"),
    ]
    assert [("traceback" in entry) for entry in history] == [False, True]
    assert "in fails" in history[1]["traceback"]


async def test_history_holds_the_last_five_errors(backend: MemoryBackend) -> None:
    @job(name="tests.fails", retry=RetryPolicy.none(8), takes_context=True)
    def fails(context: JobContext) -> None:
        raise ValueError(f"number {context.attempt}")

    backend.publish(envelope_of("tests.fails"))
    await process(backend, 8)

    (letter,) = backend.dead_letters("default")
    assert letter.envelope is not None
    messages = [entry["message"] for entry in letter.envelope.headers["errors"]]
    assert messages == [f"number {number}" for number in range(4, 9)]


@pytest.mark.contract(118)
async def test_long_reason_is_clipped_and_stored(backend: MemoryBackend) -> None:
    @job(name="tests.verbose")
    def verbose() -> None:
        raise Fatal("x" * 50_000)

    backend.publish(envelope_of("tests.verbose"))
    await process(backend)

    (letter,) = backend.dead_letters("default")
    assert len(letter.reason) == MAX_REASON
    assert "xxx" in letter.reason
    assert "50,0" in letter.reason


@pytest.mark.contract(28, 116)
async def test_dead_letter_is_always_somewhere(failing: Failing, no_pause: None) -> None:
    places: list[tuple[int | None, int | None]] = []

    @job(name="tests.fails")
    def fails() -> None:
        raise ValueError("x")

    def look() -> None:
        counts = failing.counts("default")
        places.append(((counts.ready or 0) + (counts.reserved or 0), counts.dead))

    failing.publish(envelope_of("tests.fails"))
    look()
    failing.error = BackendUnavailable("gone")
    await process(failing)
    look()
    failing.error = None
    await process(failing)
    look()

    assert places == [(1, 0), (1, 0), (0, 1)]


@pytest.mark.contract(23, 116)
async def test_filing_twice_changes_nothing(backend: MemoryBackend) -> None:
    backend.publish(envelope_of("tests.any"))
    delivery = await deliver(backend)
    await delivery.dead_letter("fatal", "first")

    with pytest.raises(AlreadySettled):
        await delivery.dead_letter("fatal", "second")

    assert [letter.reason for letter in backend.dead_letters("default")] == ["first"]


# The dead-letter hook


@pytest.mark.contract(110)
@pytest.mark.parametrize("attempts", [1, 3])
async def test_hook_gets_envelope_cause_reason_and_limit(
    backend: MemoryBackend, hook: list[dict[str, Any]], attempts: int
) -> None:
    @job(name="tests.fails", retry=RetryPolicy.none(attempts))
    def fails() -> None:
        raise ValueError("x")

    envelope = envelope_of("tests.fails")
    backend.publish(envelope)
    await process(backend, attempts)

    (call,) = hook
    assert call["envelope"].job_id == envelope.job_id
    assert call["envelope"].attempt == attempts
    assert call["cause"] == "exhausted"
    assert "ValueError: x" in call["reason"]
    assert call["max_attempts"] == attempts
    assert sorted(call) == ["cause", "envelope", "max_attempts", "reason"]


@pytest.mark.contract(111)
async def test_hook_runs_before_the_job_is_filed(backend: MemoryBackend, settings: Any) -> None:
    seen: list[tuple[int | None, int | None]] = []

    @job(name="tests.fails")
    def fails() -> None:
        raise ValueError("x")

    def look(**_: Any) -> None:
        counts = backend.counts("default")
        seen.append((counts.reserved, counts.dead))

    settings.JOBQ_ON_DEAD_LETTER = look
    backend.publish(envelope_of("tests.fails"))
    await process(backend)

    assert seen == [(1, 0)]
    assert backend.counts("default").dead == 1


@pytest.mark.contract(112)
@pytest.mark.parametrize("error", [ValueError("x"), Fatal("x"), StopIteration()])
async def test_hook_that_raises_is_logged_and_changes_nothing(
    backend: MemoryBackend, settings: Any, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    @job(name="tests.fails")
    def fails() -> None:
        raise RuntimeError("the job's own")

    def hook(**_: Any) -> None:
        raise error

    settings.JOBQ_ON_DEAD_LETTER = hook
    backend.publish(envelope_of("tests.fails"))
    runner = await process(backend)

    assert runner.stats == WorkerStats(dead_lettered=1)
    assert backend.counts("default").dead == 1
    assert "JOBQ_ON_DEAD_LETTER" in caplog.text
    worker_errors = [r for r in caplog.records if r.name == "django_jobq.worker"]
    assert [record.levelname for record in worker_errors] == ["ERROR"]


@pytest.mark.contract(112)
@pytest.mark.parametrize("kind", ["lanes", "caller"])
@pytest.mark.parametrize("error", [SystemExit(3), StopIteration()])
def test_hook_that_exits_on_a_thread_is_logged_and_changes_nothing(
    backend: MemoryBackend,
    settings: Any,
    caplog: pytest.LogCaptureFixture,
    error: BaseException,
    kind: str,
) -> None:
    """What a hook raises may neither end the worker's loop nor leave the job waiting.

    A future refuses StopIteration, so that one must not be what the loop gets to see.
    """

    @job(name="tests.fails")
    def fails() -> None:
        raise RuntimeError("the job's own")

    def hook(**_: Any) -> None:
        raise error

    async def run() -> bool:
        executor: Executor = LaneExecutor(1) if kind == "lanes" else CallerExecutor()
        executor.start()
        running = asyncio.create_task(JobRunner(backend, executor).process(await deliver(backend)))
        done, _ = await asyncio.wait({running}, timeout=5)
        running.cancel()
        await executor.stop()
        return bool(done)

    settings.JOBQ_ON_DEAD_LETTER = hook
    backend.publish(envelope_of("tests.fails"))
    try:
        ended = async_to_sync(run)()
    except SystemExit:
        pytest.fail("the hook ended the loop")

    assert ended, "the job waits for its hook for ever"
    assert backend.counts("default").dead == 1
    assert "JOBQ_ON_DEAD_LETTER" in caplog.text


@pytest.mark.contract(112)
async def test_hook_that_cannot_be_imported_is_logged_and_changes_nothing(
    backend: MemoryBackend, settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    @job(name="tests.fails")
    def fails() -> None:
        raise ValueError("x")

    settings.JOBQ_ON_DEAD_LETTER = "tests.no_such_module.hook"
    backend.publish(envelope_of("tests.fails"))
    runner = await process(backend)

    assert runner.stats == WorkerStats(dead_lettered=1)
    assert "no_such_module" in caplog.text


@pytest.mark.contract(113)
async def test_hook_is_not_called_for_anything_else(
    backend: MemoryBackend, hook: list[dict[str, Any]]
) -> None:
    @job(name="tests.ends", retry=RetryPolicy.none(2), takes_context=True)
    def ends(context: JobContext, how: str) -> None:
        if how == "defers" and not context.deferrals:
            raise Defer("0s")
        if how == "fails" and context.attempt == 1:
            raise ValueError("x")

    for how in ("returns", "defers", "fails"):
        backend.publish(envelope_of("tests.ends", args=[how]))
    runner = await process(backend, 5)

    assert runner.stats == WorkerStats(succeeded=3, retried=1, deferred=1)
    assert hook == []


async def test_hook_may_be_named_by_its_path(backend: MemoryBackend, settings: Any) -> None:
    @job(name="tests.fails")
    def fails() -> None:
        raise ValueError("x")

    hooked.clear()
    settings.JOBQ_ON_DEAD_LETTER = f"{__name__}.hook_by_path"
    backend.publish(envelope_of("tests.fails"))
    await process(backend)

    assert [call["cause"] for call in hooked] == ["exhausted"]


async def test_hook_may_be_async(backend: MemoryBackend, settings: Any) -> None:
    seen: list[str] = []

    @job(name="tests.fails")
    def fails() -> None:
        raise ValueError("x")

    async def hook(*, cause: str, **_: Any) -> None:
        await asyncio.sleep(0)
        seen.append(cause)

    settings.JOBQ_ON_DEAD_LETTER = hook
    backend.publish(envelope_of("tests.fails"))
    executor = LaneExecutor(1)
    executor.start()
    await process(backend, executor=executor)
    await executor.stop()

    assert seen == ["exhausted"]
    assert backend.counts("default").dead == 1


@pytest.mark.contract(114)
async def test_hook_runs_again_if_the_process_dies_before_the_job_is_filed(
    failing: Failing, hook: list[dict[str, Any]]
) -> None:
    @job(name="tests.fails")
    def fails() -> None:
        raise ValueError("x")

    envelope = envelope_of("tests.fails")
    failing.publish(envelope)
    failing.error = GeneratorExit()  # what ends the task in the middle of its work
    runner = JobRunner(failing, Inline())
    with pytest.raises(GeneratorExit):
        await runner.process(await deliver(failing))
    gc.collect()
    assert failing.counts("default").dead == 0

    failing.error = None
    await runner.process(await deliver(failing))

    assert [call["envelope"].job_id for call in hook] == [envelope.job_id] * 2
    assert failing.counts("default").dead == 1


# Signals


@pytest.mark.contract(196, 197)
async def test_every_finished_attempt_is_told_after_it_is_settled(backend: MemoryBackend) -> None:
    @job(name="tests.ends", retry=RetryPolicy.none(3), takes_context=True)
    def ends(context: JobContext) -> None:
        if context.attempt < 3:
            raise ValueError(f"number {context.attempt}")

    told: list[tuple[int, int]] = []

    def count(**_: Any) -> None:
        told.append((len(backend.settled("default")), backend.counts("default").reserved or 0))

    signals.job_retried.connect(count)
    signals.job_succeeded.connect(count)
    try:
        backend.publish(envelope_of("tests.ends"))
        with listening(*ALL) as heard:
            await process(backend, 3)
    finally:
        signals.job_retried.disconnect(count)
        signals.job_succeeded.disconnect(count)

    assert [name for name, _, _ in heard] == [
        "job_started",
        "job_retried",
        "job_started",
        "job_retried",
        "job_started",
        "job_succeeded",
    ]
    assert {sender for _, sender, _ in heard} == {ends}
    finished = [kwargs for name, _, kwargs in heard if name != "job_started"]
    assert [kwargs["context"].attempt for kwargs in finished] == [1, 2, 3]
    assert {kwargs["context"].max_attempts for kwargs in finished} == {3}
    assert all(kwargs["duration"] >= 0 for kwargs in finished)
    assert [kwargs["next_attempt"] for kwargs in finished[:2]] == [2, 3]
    assert [str(kwargs["error"]) for kwargs in finished[:2]] == ["number 1", "number 2"]
    assert told == [(1, 0), (2, 0), (3, 0)]


@pytest.mark.contract(196, 197)
async def test_giving_up_is_told_as_such(backend: MemoryBackend) -> None:
    @job(name="tests.fails")
    def fails() -> None:
        raise ValueError("x")

    backend.publish(envelope_of("tests.fails"))
    backend.inject("default", b"{")
    with listening(*ALL) as heard:
        await process(backend, 2)

    names = [name for name, _, _ in heard]
    assert names == ["job_started", "job_dead_lettered", "job_dead_lettered"]
    ran, undecodable = heard[1], heard[2]
    assert ran[1] is fails
    assert (ran[2]["cause"], ran[2]["max_attempts"], ran[2]["context"].attempt) == (
        "exhausted",
        1,
        1,
    )
    assert ran[2]["duration"] >= 0
    assert undecodable[1] is None
    assert (undecodable[2]["cause"], undecodable[2]["envelope"]) == ("decode", None)


@pytest.mark.contract(198)
@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), Fatal("x")])
async def test_receivers_that_raise_change_nothing(
    backend: MemoryBackend, error: BaseException
) -> None:
    def receive(**_: Any) -> None:
        raise error

    @job(name="tests.ends", retry=RetryPolicy.none(2))
    def ends(how: str) -> None:
        if how == "fails":
            raise ValueError("x")

    listened = [getattr(signals, name) for name in ALL]
    for signal in listened:
        signal.connect(receive)
    try:
        for how in ("returns", "fails"):
            backend.publish(envelope_of("tests.ends", args=[how]))
        runner = await process(backend, 3)
    finally:
        for signal in listened:
            signal.disconnect(receive)

    assert runner.stats == WorkerStats(succeeded=1, retried=1, dead_lettered=1)


@pytest.mark.contract(199)
async def test_nothing_is_sent_when_nobody_listens(backend: MemoryBackend) -> None:
    @job(name="tests.ends", retry=RetryPolicy.none(2), takes_context=True)
    def ends(context: JobContext, how: str) -> None:
        if how == "fails":
            raise ValueError("x")
        if how == "defers" and not context.deferrals:
            raise Defer("0s")

    for how in ("returns", "fails", "defers"):
        backend.publish(envelope_of("tests.ends", args=[how]))
    executor = Inline()
    await process(backend, 5, executor)
    assert executor.calls == 0

    backend.publish(envelope_of("tests.ends", args=["returns"]))
    with listening("job_succeeded"):
        await process(backend, 1, executor)
    assert executor.calls == 1


@pytest.mark.contract(199)
async def test_listeners_of_another_job_are_nobody(backend: MemoryBackend) -> None:
    @job(name="tests.ends")
    def ends() -> None: ...

    @job(name="tests.other")
    def other() -> None: ...

    def receive(**_: Any) -> None:
        raise AssertionError

    signals.job_succeeded.connect(receive, sender=other)
    executor = Inline()
    try:
        backend.publish(envelope_of("tests.ends"))
        await process(backend, 1, executor)
    finally:
        signals.job_succeeded.disconnect(receive, sender=other)

    assert executor.calls == 0


# Lines and counters


@pytest.mark.contract(200, 201)
@pytest.mark.parametrize(
    ("ending", "levels"),
    [
        (None, ["INFO"]),
        (Defer("1s"), ["INFO"]),
        (ValueError("x"), ["WARNING"]),
        (Fatal("x"), ["ERROR"]),
    ],
)
async def test_level_and_fields_of_the_line_of_a_job(
    backend: MemoryBackend,
    caplog: pytest.LogCaptureFixture,
    ending: Exception | None,
    levels: list[str],
) -> None:
    @job(name="tests.ends", retry=RetryPolicy.none(2))
    def ends(password: str) -> None:
        if ending is not None:
            raise ending

    caplog.set_level(logging.INFO, "django_jobq")
    envelope = envelope_of("tests.ends", args=["hunter2"])
    backend.publish(envelope)
    await process(backend)

    records = [record for record in caplog.records if record.name.startswith("django_jobq")]
    assert [record.levelname for record in records] == levels
    fields = (records[0].job_id, records[0].job, records[0].queue, records[0].attempt)  # type: ignore[attr-defined]
    assert fields == (envelope.job_id, "tests.ends", "default", 1)
    assert "hunter2" not in records[0].getMessage()


@pytest.mark.contract(201)
async def test_exhausted_and_undecodable_are_errors(
    backend: MemoryBackend, caplog: pytest.LogCaptureFixture
) -> None:
    @job(name="tests.fails")
    def fails() -> None:
        raise ValueError("x")

    backend.publish(envelope_of("tests.fails"))
    backend.inject("default", b"{")
    await process(backend, 2)

    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]


@pytest.mark.contract(108)
async def test_cause_matches_how_the_job_died(
    make_memory: Callable[..., MemoryBackend],
) -> None:
    @job(name="tests.dies")
    def dies(how: str) -> None:
        raise Fatal("x") if how == "fatal" else ValueError("x")

    backend = make_memory("default", options={"unknown_job_grace": 0})
    expected: list[Cause] = ["fatal", "exhausted", "no_handler", "decode"]
    backend.publish(envelope_of("tests.dies", args=["fatal"]))
    backend.publish(envelope_of("tests.dies", args=["fails"]))
    backend.publish(envelope_of("tests.unknown"))
    backend.inject("default", b"null")
    await process(backend, 4)

    assert [letter.cause for letter in backend.dead_letters("default")] == expected
