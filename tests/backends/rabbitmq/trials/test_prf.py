"""Trials of load on a broker: priorities show, and finished jobs leave nothing behind."""

import gc
import threading
import weakref
from typing import Any

import pytest

from django_jobq import Defer, Job, RetryPolicy, job
from django_jobq.backends.rabbitmq.consumer import RabbitMQDelivery
from django_jobq.exceptions import InvalidJob
from django_jobq.worker.attempt import Attempt, Execution
from tests.backends.rabbitmq.support import PATIENCE, wait_until
from tests.backends.rabbitmq.trials.live import Live
from tests.lane import lane


@pytest.fixture
def noted() -> tuple[Job[..., None], list[str]]:
    order: list[str] = []

    @job(name="trial.note")
    def note(text: str) -> None:
        order.append(text)

    return note, order


def test_b165_a_high_priority_is_next_but_the_prefetched(
    live: Live, noted: tuple[Job[..., None], list[str]]
) -> None:
    """With one slot and a prefetch of two, a high job waits for the running and one other."""
    note, order = noted
    started, go = threading.Event(), threading.Event()

    @job(name="trial.blocks", priority=9)
    def blocks() -> None:
        started.set()
        assert go.wait(PATIENCE)

    blocks.enqueue()
    for number in range(10):
        note.enqueue(f"low {number}")
    with live.working(concurrency=1) as worker:
        assert started.wait(PATIENCE)
        wait_until(lambda: live.ready() == 9)
        note.using(priority=5).enqueue("high")
        note.using(priority=9).enqueue("higher")
        note.defer("0s", "front")
        go.set()
        wait_until(lambda: worker.stats.succeeded == 14)

    urgent = [("front", 10), ("higher", 9), ("high", 5)]
    waiting = [*((f"low {number}", 0) for number in range(1, 10)), *reversed(urgent)]
    possible = [
        lane(live.url).in_order(waiting, lambda item: item[1], since_low=number)
        for number in range(3)
    ]
    assert order in [["low 0", *(text for text, _ in expected)] for expected in possible]
    for priority in (-1, 10, 255):
        with pytest.raises(InvalidJob, match="priorit"):
            note.using(priority=priority).enqueue("none")


def test_b165_delayed_and_retried_jobs_keep_their_priority(live: Live) -> None:
    """After a hold a job is as urgent as before; after a deferral it comes first."""
    order: list[str] = []

    @job(name="trial.steps", retry=RetryPolicy.fixed(2, delay="1s"))
    def steps(text: str) -> None:
        order.append(text)
        if order.count(text) == 1 and text.endswith("retried"):
            raise ValueError
        if order.count(text) == 1 and text.endswith("deferred"):
            raise Defer("1s")

    steps.enqueue("low retried")
    steps.using(priority=8).enqueue("high retried")
    steps.enqueue("low deferred")
    live.work_until(lambda stats: stats.retried == 2 and stats.deferred == 1, concurrency=1)
    steps.using(delay="1s", priority=3).enqueue("middle delayed")
    steps.using(delay="1s", front=True).enqueue("low front")
    wait_until(lambda: live.ready() == 5)
    steps.using(priority=5).enqueue("fresh")
    before = len(order)
    live.work_until(lambda stats: stats.succeeded == 6, concurrency=1)

    if lane(live.url).priorities != "strict":  # one class for all of them
        assert len(order) == before + 6
        return
    held = lane(live.url).held_level
    back = [
        ("low deferred", 10),
        ("low front", 10),
        ("high retried", 8),
        ("low retried", held),
        ("middle delayed", max(3, held)),
        ("fresh", 5),
    ]
    expected = lane(live.url).in_order(back, lambda item: item[1])
    assert order[before:] == [text for text, _ in expected]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["succeeds", "fails"])
def test_b167_a_worker_keeps_nothing_of_finished_jobs(live: Live, kind: str) -> None:
    """Thousands of jobs later, neither deliveries nor attempts nor publishes are left in memory."""
    held: weakref.WeakSet[Any] = weakref.WeakSet()

    class Payload(str):
        __slots__ = ("__weakref__",)

    @job(name="trial.many", retry=RetryPolicy.none(1))
    def many(text: str) -> None:
        payload = Payload(text)
        held.add(payload)
        if kind == "fails":
            raise ValueError(payload)

    number = 600
    futures = [many.prepare("x").publication().envelope for _ in range(number)]
    live.declare()
    for future in [live.backend.publish(envelope) for envelope in futures]:
        future.result(PATIENCE)
    with live.working() as worker:
        wait_until(lambda: worker.stats.succeeded + worker.stats.dead_lettered == number)
        gc.collect()
        kinds = (RabbitMQDelivery, Attempt, Execution)
        left = [item for item in gc.get_objects() if type(item) in kinds]
        # What the lanes and the client's last callbacks still name is bounded by the slots.
        assert len(left) < 100
        assert len(held) < 50
        engine = live.backend._publisher._engine
        assert engine is not None
        assert not engine._confirms
