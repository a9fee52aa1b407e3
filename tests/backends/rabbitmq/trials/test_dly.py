"""Trials of delays on a broker: never early, never behind a longer one, never lost."""

import datetime as dt
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from django_jobq import Defer, Job, JobContext, Retry, RetryPolicy, job
from django_jobq.exceptions import InvalidDuration
from tests.backends.rabbitmq.support import (
    PATIENCE,
    ROOT,
    BackendFactory,
    WorkerProcess,
    channel,
    wait_until,
)
from tests.backends.rabbitmq.trials.live import Live


@pytest.fixture
def noted() -> tuple[Job[..., None], dict[str, list[float]]]:
    """Return a job that notes when it runs, and its notes."""
    times: dict[str, list[float]] = {}

    @job(name="trial.note")
    def note(text: str) -> None:
        times.setdefault(text, []).append(time.time())

    return note, times


def test_b75_a_retry_does_not_wait_behind_long_delays(
    live: Live, noted: tuple[Job[..., None], dict[str, list[float]]]
) -> None:
    """Short waits of a running job pass an hour and a minute that were there before them."""
    note, times = noted
    ends: list[tuple[int, int]] = []

    @job(name="trial.fails", retry=RetryPolicy.fixed(3, delay="1s"), takes_context=True)
    def fails(context: JobContext) -> None:
        ends.append((context.attempt, context.deferrals))
        if len(ends) == 1:
            raise Defer("1s")
        if len(ends) == 2:
            raise ValueError

    note.using(delay="1h").enqueue("hour")
    note.using(delay="1m").enqueue("minute")
    fails.enqueue()
    note.using(delay="1s").enqueue("second")
    live.work_until(lambda stats: stats.succeeded == 2, concurrency=2)

    assert ends == [(1, 0), (1, 1), (2, 1)]
    assert set(times) == {"second"}


@pytest.mark.slow
def test_b77_a_job_that_delays_itself_again_and_again_arrives_each_time(
    make: BackendFactory, go_live: Callable[..., Live]
) -> None:
    """Five delays in a row, and a retry behind a delay, are each delivered once, on their queue."""
    live = go_live(make, {"default": {}, "slow": {}})
    rounds: Counter[str] = Counter()

    @job(name="trial.again", retry=RetryPolicy.fixed(2, delay="1s"), takes_context=True)
    def again(context: JobContext, left: int) -> None:
        rounds[f"{context.queue} {left}"] += 1
        if left:
            again.using(queue=context.queue, delay="1s").enqueue(left - 1)
        elif context.attempt == 1:
            raise ValueError

    for queue in ("default", "slow"):
        again.using(queue=queue, delay="1s").enqueue(4)
    live.work_until(lambda stats: stats.succeeded == 10)

    for queue in ("default", "slow"):
        assert [rounds[f"{queue} {left}"] for left in (4, 3, 2, 1, 0)] == [1, 1, 1, 1, 2]


def test_b81_long_delays_are_parked(
    live: Live, noted: tuple[Job[..., None], dict[str, list[float]]]
) -> None:
    """A delay of weeks or years is neither immediate nor refused nor gone."""
    note, _ = noted
    days = (11, 13, 24, 25, 49, 50, 60, 400, 40_000)
    for number in days:
        note.using(delay=dt.timedelta(days=number)).enqueue("later")
    with channel(live.url) as ch:
        holds = [f"{live.topology.prefix}.hold.4.{digit:x}" for digit in range(1, 16)]
        parked = [ch.queue_declare(hold, passive=True).method.message_count for hold in holds]
    assert sum(parked) == len(days)
    assert live.ready() == 0


def test_b81_a_moment_beyond_the_calendar_is_refused(
    live: Live, noted: tuple[Job[..., None], dict[str, list[float]]]
) -> None:
    """A delay that no calendar holds is a ValueError of the call, before anything connects."""
    note, _ = noted
    with pytest.raises(InvalidDuration, match="calendar"):
        note.using(run_after=dt.datetime.max.replace(tzinfo=dt.UTC)).enqueue("never")
    assert live.backend._publisher._engine is None


def test_b85_what_is_due_is_published_at_once(
    live: Live, noted: tuple[Job[..., None], dict[str, list[float]]]
) -> None:
    """No delay, a negative one and a past moment need no hold."""
    note, _ = noted
    past = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    options: list[dict[str, Any]] = [
        {"delay": "0"},
        {"delay": dt.timedelta(seconds=-5)},
        {"run_after": past},
    ]
    for option in options:
        note.using(**option).enqueue("now")
    assert live.ready() == 3


@pytest.mark.slow
def test_b85_a_fraction_is_never_early(
    live: Live, noted: tuple[Job[..., None], dict[str, list[float]]]
) -> None:
    """A delay below or between whole seconds holds for all of it."""
    note, times = noted
    due: dict[str, float] = {}
    with live.working() as worker:
        for seconds in (0.000001, 0.0004, 0.4, 1.000001, 1.9999):
            due[str(seconds)] = time.time() + seconds
            note.using(delay=dt.timedelta(seconds=seconds)).enqueue(str(seconds))
        wait_until(lambda: worker.stats.succeeded == len(due))
    for text, moment in due.items():
        (ran,) = times[text]
        assert ran >= moment


@pytest.mark.slow
def test_b83_producer_and_worker_in_other_time_zones_agree(
    make: BackendFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten hours between two processes' clocks on the wall do not change a delay of two seconds."""
    backend = make("a")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    with WorkerProcess(backend, tmp_path) as worker:
        wait_until(lambda: "Consuming from" in worker.output)
        script = (
            "import datetime as dt, os, time, django\n"
            "django.setup()\n"
            "from tests.backends.rabbitmq.jobs import take\n"
            "moment = dt.datetime.now().astimezone() + dt.timedelta(seconds=2)\n"
            "take.using(run_after=moment).enqueue()\n"
            "take.using(delay='2s').enqueue()\n"
        )
        env = {**worker._env, "TZ": "Europe/Kiev"}
        began = time.time()
        subprocess.run(
            [sys.executable, "-c", script], check=True, cwd=ROOT, env=env, timeout=PATIENCE
        )
        wait_until(lambda: len(worker.noted("ended")) == 2)
        assert 2 <= time.time() - began < 20
        assert "held again" not in worker.output
    assert os.environ["TZ"] == "Asia/Tokyo"


@pytest.mark.parametrize("how", ["defer", "retry"])
def test_b81_a_running_job_may_ask_for_a_distant_time(live: Live, how: str) -> None:
    """A deferral or retry years ahead is parked and the original is gone."""
    distant = timezone.now() + dt.timedelta(days=400) - timezone.now()

    @job(name="trial.later", retry=2)
    def later() -> None:
        raise Defer(distant) if how == "defer" else Retry(after=distant)

    later.enqueue()
    stats = live.work_until(lambda stats: stats.deferred + stats.retried)
    assert stats.settle_failures == 0
    assert live.ready() == 0
