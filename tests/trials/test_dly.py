"""Trials of delays: never early, never lost, and refused where they make no sense."""

from __future__ import annotations

import datetime as dt
import math
import time
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from django.db import transaction
from django.test import override_settings
from django.utils import timezone

from django_jobq import Defer, Job, Retry, job
from django_jobq.backends.base import Counts
from django_jobq.backends.memory import ManualClock, MemoryBackend
from django_jobq.durations import parse_retry_after
from django_jobq.exceptions import InvalidDuration, InvalidJob

NOTHING = Counts(ready=0, held=0, reserved=0, dead=0)
DAY = 86_400


@pytest.fixture
def note() -> Job[..., None]:
    @job(name="trial.note")
    def note(*args: Any) -> None: ...

    return note


@pytest.mark.contract(10, 121)
@pytest.mark.parametrize("days", [24, 25, 49, 50, 60, 400, 40_000])
def test_b81_a_long_delay_is_held_to_the_day(
    days: int, clocked: MemoryBackend, clock: ManualClock, note: Job[..., None]
) -> None:
    """A delay beyond any counter of milliseconds holds for all of its days and then ends."""
    note.using(delay=f"{days}d").enqueue()
    note.using(delay=dt.timedelta(days=days)).enqueue()

    for moment in (60, DAY, 2**31 / 1000, 2**32 / 1000, days * DAY - 1):
        if moment < days * DAY:
            clock.advance(moment - clock())
            assert clocked.counts("default") == Counts(ready=0, held=2, reserved=0, dead=0)
    clock.advance(days * DAY + 1 - clock())
    assert clocked.counts("default") == Counts(ready=2, held=0, reserved=0, dead=0)


@pytest.mark.contract(12)
def test_b81_a_worker_may_wait_for_a_distant_job(
    clocked: MemoryBackend, note: Job[..., None], work: Callable[..., Any]
) -> None:
    """A worker whose next job is years away goes on with the others."""
    note.using(delay="2900000d").enqueue()
    note.enqueue()

    assert work().succeeded == 1
    assert clocked.counts("default").held == 1


@pytest.mark.parametrize(
    "option",
    [
        {"run_after": dt.datetime.max.replace(tzinfo=dt.UTC)},
        {"run_after": dt.datetime.max.replace(tzinfo=dt.timezone(-dt.timedelta(hours=12)))},
        {"delay": dt.timedelta.max},
        {"delay": "3652059d"},
        {"delay": "99999999999999999999d"},
        {"delay": "9" * 30 + "ms"},
    ],
    ids=repr,
)
def test_b81_a_moment_beyond_the_calendar_is_refused(
    option: dict[str, Any], memory: MemoryBackend, note: Job[..., None]
) -> None:
    """A delay that ends beyond the calendar is refused at the call, before anything is stored."""
    with pytest.raises(InvalidDuration, match="calendar") as caught:
        note.using(**option).enqueue()

    assert isinstance(caught.value, ValueError)
    assert memory.counts("default") == NOTHING


@pytest.mark.contract(10)
@pytest.mark.parametrize("zone", ["Europe/Kiev", "Asia/Tokyo", "America/St_Johns"])
def test_b83_a_moment_is_the_same_in_every_time_zone(
    zone: str, clocked: MemoryBackend, clock: ManualClock, note: Job[..., None]
) -> None:
    """A delay of 10 s is 10 s, whatever zones the process, the project and the moment are in."""
    with override_settings(TIME_ZONE=zone):
        note.using(delay="10s").enqueue("delay")
        moment = timezone.now() + dt.timedelta(seconds=10)
        for offset in (dt.UTC, dt.timezone(dt.timedelta(hours=9)), timezone.get_default_timezone()):
            note.using(run_after=moment.astimezone(offset)).enqueue("moment")
    with override_settings(TIME_ZONE="Pacific/Auckland"):
        clock.advance(8)
        assert clocked.counts("default").held == 4
        clock.advance(2)
        assert clocked.counts("default").ready == 4


@pytest.mark.contract(96)
@pytest.mark.parametrize("zone", ["UTC", "Asia/Tokyo", "America/Chicago"])
def test_b83_a_date_without_a_zone_in_a_header_is_utc(zone: str) -> None:
    """The three forms of an HTTP date denote one moment, wherever the process believes to be."""
    noon = dt.datetime(2050, 11, 6, 8, 49, 37, tzinfo=dt.UTC).timestamp()

    with override_settings(TIME_ZONE=zone):
        waits = [
            parse_retry_after(text, now=lambda: noon - 30)
            for text in (
                "Sun, 06 Nov 2050 08:49:37 GMT",
                "Sunday, 06-Nov-50 08:49:37 GMT",
                "Sun Nov  6 08:49:37 2050",
                "Sun, 06 Nov 2050 08:49:37 -0000",
            )
        ]

    assert waits == [30.0] * 4


@pytest.mark.contract(105)
@pytest.mark.parametrize(
    "option",
    [
        {"delay": "0"},
        {"delay": "0ms"},
        {"delay": dt.timedelta(0)},
        {"delay": dt.timedelta(seconds=-5)},
        {"delay": dt.timedelta.min},
        {"run_after": dt.datetime(1970, 1, 1, tzinfo=dt.UTC)},
        {"run_after": dt.datetime.min.replace(tzinfo=dt.timezone(dt.timedelta(hours=14)))},
    ],
    ids=repr,
)
def test_b85_what_is_not_in_the_future_is_due_at_once(
    option: dict[str, Any], clocked: MemoryBackend, note: Job[..., None]
) -> None:
    """No delay, a negative one and a moment that has passed all mean now."""
    note.using(**option).enqueue()

    assert clocked.counts("default") == Counts(ready=1, held=0, reserved=0, dead=0)


@pytest.mark.contract(10, 92)
@pytest.mark.parametrize("seconds", [0.000001, 0.0004, 0.0019999, 0.4, 1.9999, 29.999999], ids=repr)
def test_b85_a_fraction_is_never_early(
    seconds: float, clocked: MemoryBackend, clock: ManualClock, note: Job[..., None]
) -> None:
    """A delay with a fraction is held for all of it, and for no more than a millisecond longer."""
    note.using(delay=dt.timedelta(seconds=seconds)).enqueue()

    assert clocked.counts("default").held == 1
    clock.advance(seconds * 0.999)
    assert clocked.counts("default").held == 1
    clock.advance(seconds * 0.001 + 0.001)
    assert clocked.counts("default").ready == 1


@pytest.mark.contract(95, 96)
@pytest.mark.parametrize(
    "value",
    [
        5,
        5.0,
        True,
        Decimal("1.5"),
        math.nan,
        math.inf,
        10**30,
        "1.5s",
        "-5s",
        "+5s",
        "5 weeks",
        "nan",
        "inf",
        "1e3",
        "",
        "٣s",
        b"5s",
        [5],
        dt.datetime(2030, 1, 1),
    ],
    ids=repr,
)
def test_b85_what_is_no_duration_is_refused_at_the_call(
    value: Any, memory: MemoryBackend, note: Job[..., None]
) -> None:
    """A delay that is no clear duration is refused at the call, in each way of giving one."""
    for call in (
        lambda: note.using(delay=value),
        lambda: note.enqueue_after(value, 1),
        lambda: note.defer(value, 1),
        lambda: Retry(after=value),
    ):
        with pytest.raises(InvalidDuration) as caught:
            call()
        assert isinstance(caught.value, ValueError)
        assert repr(value) in str(caught.value)
    assert memory.counts("default") == NOTHING


@pytest.mark.parametrize("moment", [dt.datetime(2030, 1, 1), dt.date(2030, 1, 1), "2030-01-01", 0])
def test_b85_a_moment_is_an_aware_datetime(moment: Any, note: Job[..., None]) -> None:
    """A moment without a zone, or that is no datetime, is refused with an example."""
    with pytest.raises(InvalidDuration, match=r"aware datetime.*timezone\.now\(\)"):
        note.using(run_after=moment)


def test_b85_a_delay_and_a_moment_are_not_both_given(note: Job[..., None]) -> None:
    """A call with a delay and a moment is refused, also when one was set earlier."""
    moment = timezone.now() + dt.timedelta(hours=1)

    with pytest.raises(InvalidJob, match="either delay or run_after"):
        note.using(run_after=moment).enqueue_after("5m")


@pytest.mark.django_db(transaction=True)
@pytest.mark.contract(122)
def test_b85_a_delay_runs_from_the_call_not_from_the_commit(
    memory: MemoryBackend, note: Job[..., None]
) -> None:
    """A transaction that takes longer than the delay publishes its job as due at once."""
    with transaction.atomic():
        called = time.monotonic()
        note.using(delay="30ms").enqueue("short")
        note.using(delay="1h").enqueue("long")
        while time.monotonic() < called + 0.05:
            assert memory.counts("default") == NOTHING

    assert memory.counts("default") == Counts(ready=1, held=1, reserved=0, dead=0)


@pytest.mark.contract(105)
@pytest.mark.parametrize("delay", [dt.timedelta.max, dt.timedelta(days=400), "1000000d"], ids=repr)
def test_b81_a_running_job_may_ask_for_a_distant_time(
    delay: Any, clocked: MemoryBackend, clock: ManualClock, work: Callable[..., Any]
) -> None:
    """A deferral or retry for years ahead is held; the worker neither fails nor runs it early."""

    @job(name="trial.later", retry=2)
    def later(kind: str) -> None:
        raise Defer(delay) if kind == "defer" else Retry(after=delay)

    later.enqueue("defer")
    later.enqueue("retry")
    stats = work()
    clock.advance(DAY * 300)

    assert (stats.deferred, stats.retried, stats.settle_failures) == (1, 1, 0)
    assert clocked.counts("default") == Counts(ready=0, held=2, reserved=0, dead=0)
