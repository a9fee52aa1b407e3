"""The log line and the signal of each outcome."""

import logging
import uuid
from typing import Any

import pytest

from django_jobq import Defer, Fatal, JobContext, job, signals
from django_jobq.backends.base import Cause, Delivery
from django_jobq.envelope import Envelope
from django_jobq.jobs import Job
from django_jobq.worker import events
from django_jobq.worker.attempt import Attempt, Execution
from django_jobq.worker.events import Result
from django_jobq.worker.failures import describe
from django_jobq.worker.outcomes import (
    DeadLettered,
    Deferred,
    HandedBack,
    Held,
    Outcome,
    Retried,
    Succeeded,
)

JOB_ID = uuid.UUID("5a1f0c1e-9d1b-4d0e-8a83-0d3cf3c1a001")
SECRET = "hunter2"


class Settled(Delivery):
    """A delivery that is only looked at."""

    async def _ack(self) -> None: ...

    async def _replace(self, successor: Envelope, delay: float, *, front: bool) -> None: ...

    async def _dead_letter(self, cause: Cause, reason: str, final: Envelope | None) -> None: ...

    async def _release(self) -> None: ...


@pytest.fixture
def shop_job() -> Job[..., Any]:
    @job(name="tests.shop_job")
    def shop_job(password: str) -> None: ...

    return shop_job


def result_of(
    outcome: Outcome,
    made: Job[..., Any],
    error: BaseException | None = None,
    *,
    attempt: int = 2,
    deferrals: int = 3,
) -> Result:
    envelope = Envelope(
        job_id=JOB_ID,
        job=made.name,
        queue="email",
        attempt=attempt,
        deferrals=deferrals,
        enqueued_at=1,
        args=[SECRET],
    )
    context = JobContext(
        job=made.name, attempt=attempt, max_attempts=5, deferrals=deferrals, job_id=JOB_ID
    )
    failure = None if error is None else describe(error)
    return Result(
        delivery=Settled("email", envelope.encode(), 1),
        outcome=outcome,
        envelope=envelope,
        attempt=Attempt(job=made, context=context, args=[SECRET], kwargs={}, timeout=None),
        execution=Execution(duration=0.25, error=error, failure=failure),
        max_attempts=5,
    )


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001
        return caught


@pytest.mark.contract(104, 201)
@pytest.mark.parametrize(
    ("outcome", "error", "level", "words"),
    [
        (Succeeded(), None, "INFO", ["tests.shop_job", "250 ms"]),
        (Deferred(30.0, "rate limited"), Defer("30s"), "INFO", ["30 s", "4th", "rate limited"]),
        (Retried(90.0), ValueError("x"), "WARNING", ["2 of 5", "90 s", "ValueError: x"]),
        (Held(30.0), None, "WARNING", ["tests.shop_job", "30 s"]),
        (
            DeadLettered("exhausted", "gave up"),
            ValueError("x"),
            "ERROR",
            ["exhausted", "gave up", "Traceback"],
        ),
        (DeadLettered("fatal", "no such order"), Fatal("no such order"), "ERROR", ["fatal"]),
        (DeadLettered("no_handler", "unknown"), None, "ERROR", ["no_handler", "unknown"]),
    ],
)
def test_line_of_an_outcome(
    caplog: pytest.LogCaptureFixture,
    shop_job: Job[..., Any],
    outcome: Outcome,
    error: BaseException | None,
    level: str,
    words: list[str],
) -> None:
    caplog.set_level(logging.DEBUG, "django_jobq")

    events.log(result_of(outcome, shop_job, error and raised(error)))

    (record,) = caplog.records
    assert record.name == "django_jobq.jobs"
    assert record.levelname == level
    for word in words:
        assert word in record.getMessage()


@pytest.mark.contract(200)
@pytest.mark.parametrize(
    "outcome",
    [
        Succeeded(),
        Deferred(1.0, "x"),
        Retried(1.0),
        Held(1.0),
        DeadLettered("fatal", "x"),
    ],
)
def test_line_has_the_fixed_fields_and_no_arguments(
    caplog: pytest.LogCaptureFixture, shop_job: Job[..., Any], outcome: Outcome
) -> None:
    caplog.set_level(logging.INFO, "django_jobq")

    events.log(result_of(outcome, shop_job))

    (record,) = caplog.records
    fields = (record.job_id, record.job, record.queue, record.attempt)  # type: ignore[attr-defined]
    assert fields == (JOB_ID, "tests.shop_job", "email", 2)
    assert SECRET not in record.getMessage()


def test_handed_back_has_neither_line_nor_signal(
    caplog: pytest.LogCaptureFixture, shop_job: Job[..., Any]
) -> None:
    caplog.set_level(logging.DEBUG, "django_jobq")
    result = result_of(HandedBack(), shop_job)

    events.log(result)

    assert caplog.records == []
    assert events.signal_of(result) is None


@pytest.mark.contract(201)
def test_body_that_is_no_envelope(caplog: pytest.LogCaptureFixture) -> None:
    result = Result(
        delivery=Settled("email", b"{", 1), outcome=DeadLettered("decode", "malformed envelope: x")
    )

    events.log(result)

    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert "malformed envelope: x" in record.getMessage()
    assert (record.job_id, record.job, record.queue, record.attempt) == (  # type: ignore[attr-defined]
        None,
        None,
        "email",
        None,
    )


def test_giving_up_on_purpose_shows_no_traceback(
    caplog: pytest.LogCaptureFixture, shop_job: Job[..., Any]
) -> None:
    events.log(result_of(DeadLettered("fatal", "no"), shop_job, raised(Fatal("no"))))

    assert "Traceback" not in caplog.text


@pytest.mark.contract(199)
def test_success_line_is_not_built_when_nobody_reads_it(
    caplog: pytest.LogCaptureFixture, shop_job: Job[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(seconds: float) -> str:
        raise AssertionError("built")

    caplog.set_level(logging.WARNING, "django_jobq")
    monkeypatch.setattr(events, "format_seconds", refuse)

    events.log(result_of(Succeeded(), shop_job))

    assert caplog.records == []


@pytest.mark.parametrize(
    ("deferrals", "text"),
    [
        (0, "1st"),
        (1, "2nd"),
        (2, "3rd"),
        (3, "4th"),
        (10, "11th"),
        (11, "12th"),
        (12, "13th"),
        (20, "21st"),
        (110, "111th"),
        (121, "122nd"),
    ],
)
@pytest.mark.contract(104)
def test_deferrals_are_counted_in_words(
    caplog: pytest.LogCaptureFixture, shop_job: Job[..., Any], deferrals: int, text: str
) -> None:
    caplog.set_level(logging.INFO, "django_jobq")

    events.log(result_of(Deferred(1.0, "x"), shop_job, deferrals=deferrals))

    assert f" {text} " in caplog.text


@pytest.mark.contract(196, 197)
def test_signal_of_success(shop_job: Job[..., Any]) -> None:
    result = result_of(Succeeded(), shop_job)
    assert result.attempt is not None

    assert events.signal_of(result) == (
        signals.job_succeeded,
        {"context": result.attempt.context, "duration": 0.25},
    )
    assert result.attempt.context.max_attempts == 5


@pytest.mark.contract(196, 197)
def test_signal_of_a_retry(shop_job: Job[..., Any]) -> None:
    error = ValueError("x")
    result = result_of(Retried(9.0), shop_job, error)
    assert result.attempt is not None

    assert events.signal_of(result) == (
        signals.job_retried,
        {
            "context": result.attempt.context,
            "duration": 0.25,
            "error": error,
            "delay": 9.0,
            "next_attempt": 3,
        },
    )


@pytest.mark.contract(104, 197)
def test_signal_of_a_deferral(shop_job: Job[..., Any]) -> None:
    result = result_of(Deferred(9.0, "busy"), shop_job, Defer("9s", reason="busy"))
    assert result.attempt is not None

    assert events.signal_of(result) == (
        signals.job_deferred,
        {
            "context": result.attempt.context,
            "duration": 0.25,
            "delay": 9.0,
            "reason": "busy",
            "deferrals": 4,
        },
    )


@pytest.mark.contract(196, 197)
def test_signal_of_a_dead_letter(shop_job: Job[..., Any]) -> None:
    error = ValueError("x")
    result = result_of(DeadLettered("exhausted", "gave up"), shop_job, error)
    assert result.attempt is not None
    found = events.signal_of(result)
    assert found is not None
    signal, kwargs = found

    assert signal is signals.job_dead_lettered
    assert kwargs["envelope"] is result.envelope
    assert kwargs["context"] is result.attempt.context
    assert (kwargs["cause"], kwargs["reason"]) == ("exhausted", "gave up")
    assert (kwargs["max_attempts"], kwargs["duration"]) == (5, 0.25)


def test_signal_of_a_body_that_is_no_envelope() -> None:
    found = events.signal_of(
        Result(delivery=Settled("email", b"{", 1), outcome=DeadLettered("decode", "malformed"))
    )
    assert found is not None
    signal, kwargs = found

    assert signal is signals.job_dead_lettered
    assert kwargs["envelope"] is kwargs["context"] is kwargs["duration"] is None
    assert kwargs["max_attempts"] is None
    assert kwargs["cause"] == "decode"


def test_held_job_has_no_signal(shop_job: Job[..., Any]) -> None:
    assert events.signal_of(result_of(Held(1.0), shop_job)) is None
