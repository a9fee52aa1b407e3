"""What a job raises to steer its own outcome."""

import datetime as dt
from email.utils import format_datetime
from typing import Any

import pytest

from django_jobq import Defer, Fatal, JobControl, JobTimeout, Retry, job
from django_jobq.backends.handler import backends
from django_jobq.exceptions import InvalidDuration, JobqError


@pytest.mark.contract(106)
def test_a_bare_deferral_has_a_reason() -> None:
    deferral = Defer("30s")
    assert (deferral.delay, deferral.reason, str(deferral)) == (30.0, "deferred", "deferred")


@pytest.mark.parametrize(
    ("control", "reason"),
    [
        (Defer("1s", reason="rate limited"), "rate limited"),
        (Retry(), "retry requested"),
        (Retry(reason="locked"), "locked"),
        (Fatal(), "fatal error"),
        (Fatal("no such customer"), "no such customer"),
    ],
)
def test_the_reason_is_the_text_of_the_error(control: Any, reason: str) -> None:
    assert control.reason == reason
    assert str(control) == reason


@pytest.mark.contract(96)
@pytest.mark.parametrize(
    ("delay", "seconds"),
    [
        ("5m", 300.0),
        ("0s", 0.0),
        ("120", 120.0),
        ("0.0", 0.0),
        ("1.5", 1.5),
        (dt.timedelta(milliseconds=20), 0.02),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 0.0),
    ],
)
def test_a_deferral_takes_a_duration_or_a_retry_after_value(delay: Any, seconds: float) -> None:
    assert Defer(delay).delay == seconds


@pytest.mark.contract(96)
def test_a_deferral_until_an_http_date_is_measured_from_now() -> None:
    moment = dt.datetime.now(dt.UTC) + dt.timedelta(hours=1)
    assert 3590 < Defer(format_datetime(moment, usegmt=True)).delay <= 3600


@pytest.mark.contract(105)
@pytest.mark.parametrize(
    "delay", [5, 1.5, float("inf"), float("nan"), None, "-5s", "-1", "inf", "1.5s", "9999999999d"]
)
def test_a_deferral_refuses_what_is_no_duration(delay: Any) -> None:
    with pytest.raises(InvalidDuration):
        Defer(delay)


@pytest.mark.contract(105)
def test_a_negative_deferral_is_none_at_all() -> None:
    assert Defer(dt.timedelta(seconds=-5)).delay == 0.0


@pytest.mark.parametrize(
    ("after", "seconds"),
    [(None, None), ("0s", 0.0), ("10s", 10.0), (dt.timedelta(minutes=1), 60.0)],
)
def test_a_retry_may_choose_its_wait(after: Any, seconds: float | None) -> None:
    assert Retry(after=after).after == seconds


@pytest.mark.contract(105)
@pytest.mark.parametrize("after", [5, 1.5, "-5s", "1.5", "Sun, 06 Nov 1994 08:49:37 GMT"])
def test_a_retry_refuses_what_is_no_duration(after: Any) -> None:
    with pytest.raises(InvalidDuration):
        Retry(after=after)


@pytest.mark.parametrize("kind", [Retry, Defer, Fatal])
def test_control_is_no_error_of_the_library(kind: type) -> None:
    assert issubclass(kind, JobControl)
    assert issubclass(kind, Exception)
    assert not issubclass(kind, JobqError)


def test_a_timeout_passes_a_broad_except() -> None:
    assert issubclass(JobTimeout, BaseException)
    assert not issubclass(JobTimeout, Exception)


@pytest.mark.contract(93)
def test_a_fatal_error_ends_the_job_on_its_first_attempt(memory, drain) -> None:
    attempts = []

    @job(name="give_up", retry=5, takes_context=True)
    def give_up(context) -> None:
        attempts.append(context.attempt)
        raise Fatal("no such customer")

    handle = give_up.enqueue()
    drain()
    assert attempts == [1]
    [letter] = memory.dead_letters("default")
    assert letter.envelope.job_id == handle.id
    assert letter.cause == "fatal"
    assert "no such customer" in letter.reason


@pytest.mark.contract(93)
def test_a_fatal_error_ends_the_job_whatever_the_call_and_the_queue_say(settings, drain) -> None:
    settings.JOBQ = {"default": {**settings.JOBQ["default"], "QUEUES": {"default": {"retry": 9}}}}
    attempts = []

    @job(name="give_up", retry_on=Exception)
    def give_up() -> None:
        attempts.append(1)
        raise Fatal

    give_up.using(retry=7).enqueue()
    drain()
    assert attempts == [1]
    assert [letter.cause for letter in backends["default"].dead_letters("default")] == ["fatal"]


@pytest.mark.contract(106)
def test_the_default_reason_is_told(memory, drain, caplog) -> None:
    @job(name="wait", takes_context=True)
    def wait(context) -> None:
        if context.deferrals == 0:
            raise Defer("0s")

    wait.enqueue()
    with caplog.at_level("INFO", logger="django_jobq.jobs"):
        drain()
    assert "Job wait deferred for 0 ms, for the 1st time: deferred" in caplog.messages


@pytest.mark.contract(105)
def test_a_negative_deferral_comes_back_at_once_and_not_before(clock, clocked, work) -> None:
    runs = []

    @job(name="wait", takes_context=True)
    def wait(context) -> None:
        runs.append((clock(), context.deferrals))
        if context.deferrals < 1:
            raise Defer(dt.timedelta(seconds=-30))

    wait.enqueue()
    work()
    assert runs == [(0.0, 0), (0.0, 1)]
    assert clocked.counts("default").held == 0
