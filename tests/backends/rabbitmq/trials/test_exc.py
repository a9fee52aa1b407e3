"""Trials of what jobs and receivers raise on a broker: it ends the attempt and nothing else."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from django_jobq import Defer, Retry, RetryPolicy, job, signals
from tests.backends.rabbitmq.trials.live import Live
from tests.trials import test_exc as memory_trials
from tests.trials.test_exc import ENDS, WORKER_SIGNALS, receivers

ASYNC_ENDS: list[Callable[[], Any]] = [
    memory_trials._raise_timeout,
    memory_trials._wait_too_long,
    memory_trials._await_a_cancelled_child,
    memory_trials._cancel_itself,
    memory_trials._cancel_itself_at_the_end,
    memory_trials._fail_in_a_group,
]
ENDLESS: list[Callable[[], Any]] = [
    memory_trials._recurse,
    lambda: memory_trials._chain(5_000),
    memory_trials._chain_in_a_circle,
    memory_trials._wide_group,
    memory_trials._deep_group,
]


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_b101_b103_b105_a_job_that_ends_oddly_has_failed(live: Live, kind: str) -> None:
    """Exits, endless errors, timeouts and cancellations are failures: two runs, then filed."""
    ends = [end for end, _ in ENDS.values()] + ENDLESS
    runs: list[int] = []

    if kind == "sync":

        @job(name="trial.ends", retry=RetryPolicy.none(2))
        def ending(number: int) -> None:
            runs.append(number)
            ends[number]()
    else:

        @job(name="trial.ends", retry=RetryPolicy.none(2))
        async def ending(number: int) -> None:
            runs.append(number)
            if number < len(ENDS) + len(ENDLESS):
                ends[number]()
            await ASYNC_ENDS[number - len(ends)]()

    number = len(ends) + (len(ASYNC_ENDS) if kind == "async" else 0)
    for which in range(number):
        ending.enqueue(which)

    @job(name="trial.ordinary")
    def ordinary() -> None: ...

    ordinary.enqueue()
    stats = live.work_until(lambda stats: stats.dead_lettered == number)

    assert sorted(runs) == sorted([*range(number)] * 2)
    assert (stats.retried, stats.succeeded) == (number, 1)
    assert (stats.settle_failures, stats.handed_back) == (0, 0)
    for letter in live.letters(number):
        assert (letter.cause, letter.attempts) == ("exhausted", 2)
        assert len(letter.body) < 60_000


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_b107_receivers_that_raise_change_no_outcome(
    live: Live, error: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever the receivers of all signals raise is logged, and every job is run and settled."""
    steps: list[Exception] = [Defer("0s"), Retry(), ValueError("end")]

    @job(name="trial.steps", retry=RetryPolicy.none(2))
    def steps_job() -> None:
        raise steps.pop(0)

    @job(name="trial.ordinary")
    def ordinary() -> None: ...

    def bad_receiver(**_: Any) -> None:
        raise error("receiver")

    for signal in (*WORKER_SIGNALS.values(), signals.job_enqueued):
        signal.connect(bad_receiver)
    try:
        steps_job.enqueue()
        ordinary.enqueue()
        stats = live.work_until(lambda stats: stats.dead_lettered == stats.succeeded == 1)
    finally:
        for signal in (*WORKER_SIGNALS.values(), signals.job_enqueued):
            signal.disconnect(bad_receiver)

    assert (stats.deferred, stats.retried) == (1, 1)
    assert (stats.settle_failures, stats.handed_back) == (0, 0)
    assert caplog.text.count("bad_receiver") >= 5
    live.letters(1)
    assert live.ready() == 0


def test_b107_a_receiver_that_blocks_holds_up_its_own_slot_only(live: Live) -> None:
    """While a receiver of one job blocks, other jobs run, and acknowledgements arrive."""
    others = threading.Event()
    released: list[bool] = []

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
        live.work_until(lambda stats: stats.succeeded == 2, concurrency=2)
    assert released == [True]
