"""Trials of time limits on a broker: a job that does not end loses neither itself nor others."""

import asyncio
import threading
from collections.abc import Iterator

import pytest

from django_jobq import RetryPolicy, job
from django_jobq.worker import attempt, executor
from tests.backends.rabbitmq.support import PATIENCE, wait_until
from tests.backends.rabbitmq.trials.live import Live


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Block jobs where no exception reaches them, and take them for stuck quickly."""
    monkeypatch.setattr(attempt, "GRACE", 0.2)
    monkeypatch.setattr(executor, "GRACE", 0.2)
    event = threading.Event()
    yield event
    event.set()


def test_b109_a_worker_with_a_blocked_thread_ends_and_gives_back_the_rest(
    live: Live, gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    """It says so, files the job that timed out, and what it had not started is ready again."""

    @job(name="trial.blocked", timeout="50ms")
    def blocked() -> None:
        gate.wait()

    @job(name="trial.ordinary")
    def ordinary() -> None:
        assert ended.wait(PATIENCE)

    ended = threading.Event()
    stuck = blocked.enqueue()
    others = {ordinary.enqueue().id for _ in range(6)}
    with live.working(concurrency=2, shutdown_timeout=1) as worker:
        wait_until(lambda: "takes no more jobs and ends" in caplog.text)
        ended.set()
        wait_until(lambda: worker.stats.dead_lettered == 1)

    assert worker.recycled
    (letter,) = live.letters()
    assert letter.envelope.job_id == stuck.id
    assert "timed out after 50 ms" in letter.reason
    assert worker.stats.succeeded + live.ready() == len(others)
    assert {envelope.job_id for envelope in live.envelopes()} <= others


def test_b109_jobs_that_can_be_interrupted_free_their_slots(live: Live) -> None:
    """Sync and async jobs end at their limit, are retried by policy and filed; others run."""
    done: list[int] = []

    @job(name="trial.sync", timeout="50ms", retry=RetryPolicy.none(2))
    def spins() -> None:
        while True:
            threading.Event().wait(0.001)

    @job(name="trial.async", timeout="50ms", retry=RetryPolicy.none(2))
    async def waits() -> None:
        await asyncio.Event().wait()

    @job(name="trial.ordinary")
    def ordinary(number: int) -> None:
        done.append(number)

    for number in range(4):
        spins.enqueue()
        waits.enqueue()
        ordinary.enqueue(number)
    stats = live.work_until(lambda stats: stats.dead_lettered == 8, concurrency=2)

    assert sorted(done) == [0, 1, 2, 3]
    assert (stats.retried, stats.settle_failures) == (8, 0)
    assert {letter.attempts for letter in live.letters(8)} == {2}
