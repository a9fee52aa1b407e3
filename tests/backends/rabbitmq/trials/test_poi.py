"""Trials of what a worker cannot run on a broker: named, filed or bounded, never in the way."""

import signal
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from django_jobq import JobContext, RetryPolicy, job
from django_jobq.queues import QueueConfig
from django_jobq.registry import registry
from tests.backends.rabbitmq.support import (
    BackendFactory,
    WorkerProcess,
    channel,
    letters,
    ready,
    send,
    wait_until,
)
from tests.backends.rabbitmq.trials.live import Live
from tests.trials.test_poi import CHANGES, FAILING_POISON, POISON, body


def inject(live: Live, *bodies: bytes) -> None:
    """Publish bodies as another program would."""
    with channel(live.url) as ch:
        for item in bodies:
            ch.basic_publish(live.topology.entrance, "default", item)


def test_b123_a_body_that_cannot_be_read_is_filed_once(live: Live) -> None:
    """Each body runs nothing, is filed whole and once, and lets those behind it pass."""
    live.declare()
    ran: list[Any] = []

    @job(name="trial.known", retry=RetryPolicy.none(3))
    def known(*args: Any, **kwargs: Any) -> None:
        ran.append(args)

    inject(live, *POISON.values())
    known.enqueue("good")
    stats = live.work_until(
        lambda stats: stats.succeeded == 1 and stats.dead_lettered == len(POISON), concurrency=1
    )

    assert ran == [("good",)]
    assert (stats.settle_failures, stats.handed_back) == (0, 0)
    filed = live.letters(len(POISON))
    assert {letter.cause for letter in filed} == {"decode"}
    assert sorted(letter.body for letter in filed) == sorted(POISON.values())


def test_b123_a_failing_job_with_odd_fields_runs_as_often_as_allowed(live: Live) -> None:
    """No field of a body makes a job run for ever or break the publisher: it is filed."""
    live.declare()
    runs: Counter[uuid.UUID] = Counter()

    @job(name="trial.known", retry=RetryPolicy.none(2), takes_context=True)
    def known(context: JobContext) -> None:
        runs[context.job_id] += 1
        raise ValueError

    odd: list[dict[str, Any]] = [
        *FAILING_POISON.values(),
        {"attempt": 10**30},
        {"deferrals": 10**30},
        {"correlation_id": "half \ud800"},
    ]
    inject(live, *(body(job_id=str(uuid.uuid4()), **fields) for fields in odd))
    stats = live.work_until(lambda stats: stats.dead_lettered == len(odd), concurrency=1)

    assert (stats.settle_failures, stats.handed_back) == (0, 0)
    assert all(number <= 2 for number in runs.values())
    live.letters(len(odd))
    assert live.ready() == 0


def test_b125_an_unknown_job_becomes_a_dead_letter_with_its_name(
    make: BackendFactory, go_live: Callable[..., Live]
) -> None:
    """Jobs that nobody knows are filed under their names after the grace, with no attempt made."""
    live = go_live(make, unknown_job_grace="1s")
    live.declare()

    @job(name="trial.known")
    def known() -> None: ...

    names = ["trial.unknown", "half \ud800", "x" * 400, "a\0b"]
    inject(live, *(body(job=name, job_id=str(uuid.uuid4()), args=[7]) for name in names))
    known.enqueue()
    stats = live.work_until(lambda stats: stats.dead_lettered == 4 and stats.succeeded == 1)

    assert (stats.held >= 4, stats.retried, stats.settle_failures) == (True, 0, 0)
    letters = live.letters(4)
    assert sorted(letter.envelope.job for letter in letters) == sorted(names)
    for letter in letters:
        assert letter.cause == "no_handler"
        assert (letter.envelope.args, letter.envelope.attempt, letter.attempts) == ([7], 1, 0)


def test_b125_a_job_that_a_deploy_brings_meanwhile_runs(
    make: BackendFactory, go_live: Callable[..., Live], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that is unknown for a while waits on the broker and runs on its first attempt."""
    monkeypatch.setattr("django_jobq.worker.preparation._UNKNOWN_STEP", 1.0)
    live = go_live(make)
    live.declare()
    inject(live, body(job="trial.new", args=[3]))
    live.work_until(lambda stats: stats.held >= 1)
    seen: list[tuple[int, int, int]] = []

    @job(name="trial.new", takes_context=True)
    def new(context: JobContext, number: int) -> None:
        seen.append((context.attempt, context.deferrals, number))

    live.work_until(lambda stats: stats.succeeded == 1)
    assert seen == [(1, 0, 3)]


def test_b131_arguments_that_no_longer_fit_are_a_bounded_failure(live: Live) -> None:
    """A job whose function changed fails by its policy, with both sides named."""
    for how in CHANGES:

        @job(name=f"trial.{how}")
        def deployed(a: int, b: int, x: int = 0) -> None: ...

        deployed.enqueue(1, 2, x=3)
        del registry._jobs[f"trial.{how}"]
        job(CHANGES[how](), name=f"trial.{how}", retry=RetryPolicy.none(3))
    stats = live.work_until(lambda stats: stats.dead_lettered == len(CHANGES))

    assert stats.retried == 2 * len(CHANGES)
    for letter in live.letters(len(CHANGES)):
        assert (letter.attempts, letter.cause) == (3, "exhausted")
        assert "TypeError" in letter.reason


class TestQuorum:
    """On quorum queues the broker counts deliveries by itself, which must not decide anything."""

    backend_name = "rabbitmq"

    @pytest.mark.slow
    @pytest.mark.contract(76, 108)
    def test_b67_b127_b129_a_job_that_kills_its_worker_is_filed(
        self, make: BackendFactory, tmp_path: Path
    ) -> None:
        backend = make(QueueConfig(name="a", prefetch=10), queue_type="quorum", delivery_limit=2)
        (killer,) = send(backend, 1, job="tests.kill")
        innocents = send(backend, 9, job="tests.take")
        with WorkerProcess(backend, tmp_path, "--concurrency", "1") as worker:
            give_up = time.monotonic() + 60
            while not letters(make.url, backend.topology):
                assert time.monotonic() < give_up, worker.output
                if worker.poll() is not None:
                    assert worker.poll() == -signal.SIGKILL, worker.output
                    worker.start()
                time.sleep(0.05)
            wait_until(lambda: len(set(worker.noted("ended"))) == 9)
        assert 1 <= worker.noted("started").count(killer.job_id) <= 3
        assert set(worker.noted("ended")) == {envelope.job_id for envelope in innocents}
        (letter,) = letters(make.url, backend.topology)
        assert (letter.envelope.job_id, letter.cause) == (killer.job_id, "delivery_limit")
        assert ready(make.url, backend.topology.work_queue(backend.queue("a"))) == 0
