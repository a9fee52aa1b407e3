"""Trials of load: priorities show, and finished jobs leave nothing behind."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from django_jobq import Defer, Job, RetryPolicy, job
from django_jobq.backends.handler import backends
from django_jobq.backends.memory import ManualClock, MemoryBackend
from django_jobq.backends.memory.backend import MemoryDelivery
from django_jobq.backends.memory.state import Entry
from django_jobq.exceptions import InvalidJob
from django_jobq.worker.attempt import Attempt, Execution
from django_jobq.worker.events import Result
from django_jobq.worker.lanes import ThreadCall
from django_jobq.worker.worker import Worker
from tests.trials.project import wait_until, within


class Busy:
    """A worker of one slot whose first job blocks until it is let go."""

    def __init__(self) -> None:
        self.order: list[str] = []
        self.started = threading.Event()
        self.go = threading.Event()
        self.backend = backends["default"]
        self.worker = Worker(self.backend, concurrency=1, shutdown_timeout=5)
        self.thread = threading.Thread(target=lambda: asyncio.run(self.worker.run()))

        @job(name="trial.blocks", priority=9)
        def blocks() -> None:
            self.started.set()
            self.go.wait(20)

        @job(name="trial.note")
        def note(text: str) -> None:
            self.order.append(text)

        self.note = note
        blocks.enqueue()

    def start(self) -> None:
        self.thread.start()
        assert self.started.wait(20)

    def finish(self, jobs: int) -> list[str]:
        self.go.set()
        try:
            wait_until(lambda: len(self.order) >= jobs)
        finally:
            self.worker.shutdown()
            self.thread.join(20)
        return self.order


@pytest.mark.contract(7)
def test_b165_a_high_priority_is_next_but_one_at_the_latest() -> None:
    """With one slot, a job of high priority is behind the running and one buffered job at most."""
    busy = Busy()
    for number in range(10):
        busy.note.enqueue(f"low {number}")
    busy.start()
    wait_until(lambda: busy.backend.counts("default").reserved == 2)
    busy.note.using(priority=5).enqueue("high")
    busy.note.using(priority=9).enqueue("higher")

    order = busy.finish(12)

    assert order[0] == "low 0"
    assert order[1:3] == ["higher", "high"]
    assert order[3:] == [f"low {number}" for number in range(1, 10)]


@pytest.mark.contract(7, 43, 91, 100)
def test_b165_delayed_and_retried_jobs_keep_their_priority(
    clocked: MemoryBackend, clock: ManualClock, work: Callable[..., Any]
) -> None:
    """After a delay or a retry a job is as urgent as before; after a deferral it comes first."""
    order: list[str] = []

    @job(name="trial.steps", retry=RetryPolicy.fixed(2, delay="10s"))
    def steps(text: str) -> None:
        order.append(text)
        if order.count(text) == 1 and text.endswith("retried"):
            raise ValueError
        if order.count(text) == 1 and text.endswith("deferred"):
            raise Defer("10s")

    steps.enqueue("low retried")
    steps.using(priority=8).enqueue("high retried")
    steps.enqueue("low deferred")
    work(concurrency=1)
    steps.using(delay="10s", priority=3).enqueue("middle delayed")
    steps.using(delay="10s", front=True).enqueue("low front")
    clock.advance(10)
    steps.using(priority=5).enqueue("fresh")
    order_before = len(order)
    work(concurrency=1)

    assert order[order_before:] == [
        "low deferred",
        "low front",
        "high retried",
        "fresh",
        "middle delayed",
        "low retried",
    ]


@pytest.mark.parametrize("priority", [-1, 10, 255, 1.0, True, "5"])
def test_b165_a_priority_without_a_level_is_refused(priority: Any, memory: MemoryBackend) -> None:
    """A priority that the queue has no level for is refused at the call."""

    @job(name="trial.note")
    def note() -> None: ...

    with pytest.raises(InvalidJob, match="priority"):
        note.using(priority=priority).enqueue()
    assert memory.counts("default").ready == 0


KINDS = (Attempt, Entry, Execution, Job, MemoryDelivery, Result, ThreadCall)


def objects() -> Counter[str]:
    """Count the live objects that a job brings into being, and tracebacks and tasks."""
    gc.collect()
    names = {kind.__name__ for kind in KINDS} | {"traceback", "frame", "Task", "Future"}
    return Counter(kind.__name__ for kind in map(type, gc.get_objects()) if kind.__name__ in names)


class Marked:
    """Something a job holds, whose end can be seen."""


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_b167_a_worker_keeps_nothing_of_finished_jobs(kind: str, memory: MemoryBackend) -> None:
    """While a worker runs on, what its finished, failed and deferred jobs held is freed."""
    marks: list[weakref.ref[Marked]] = []

    def run(end: str) -> None:
        marked = Marked()
        marks.append(weakref.ref(marked))
        if end == "fails":
            try:
                raise KeyError("inner")
            except KeyError as error:
                raise ValueError("outer", end) from error
        if end == "defers":
            raise Defer("1000d")

    async def run_async(end: str) -> None:
        await asyncio.sleep(0)
        run(end)

    made = job(run if kind == "sync" else run_async, name="trial.mixed")

    def round_of(size: int) -> None:
        marks.clear()
        for end in ("returns", "fails", "defers"):
            for _ in range(size):
                made.enqueue(end)
        wait_until(lambda: len(marks) == 3 * size)
        wait_until(lambda: memory.counts("default").reserved == 0)
        wait_until(lambda: worker.running == 0)

    worker = Worker(memory, concurrency=2, shutdown_timeout=5)
    thread = threading.Thread(target=lambda: asyncio.run(worker.run()))
    thread.start()
    try:
        round_of(50)
        first = objects()
        round_of(300)
        last = objects()
    finally:
        worker.shutdown()
        thread.join(20)

    # What is held by a deferral is an entry each; a few of everything else may be on their way.
    assert last.pop("Entry") - first.pop("Entry", 0) <= 300 + 50
    for name, count in last.items():
        assert count - first[name] < 50, name
    assert sum(mark() is not None for mark in marks) <= 2


@pytest.mark.django_db(transaction=True)
def test_b167_enqueueing_in_transactions_keeps_nothing(memory: MemoryBackend) -> None:
    """A publisher that only ever enqueues holds no more after many transactions than after few."""
    from django.db import transaction

    from django_jobq.commits import _commits
    from django_jobq.publication import Checked

    @job(name="trial.note")
    def note(number: int) -> None: ...

    def publish(times: int) -> int:
        for number in range(times):
            with transaction.atomic():
                note.enqueue(number)
                try:
                    with transaction.atomic():
                        note.enqueue(-1)
                        raise ValueError
                except ValueError:
                    pass
        gc.collect()
        held = [item for item in gc.get_objects() if type(item) is Checked]
        # Not those of other tests, whose failures or threads may still hold some.
        return sum(item.publication.envelope.job == note.name for item in held)

    assert publish(10) <= 2
    assert publish(100) <= 2
    assert memory.clear("default") == 110
    assert all(not commits.batch.items for commits in _commits.values())


def test_b167_jobs_made_for_one_call_are_freed(memory: MemoryBackend) -> None:
    """Options of single calls leave no copies of the job behind."""

    @job(name="trial.note")
    def note(number: int) -> None: ...

    for number in range(5):
        note.using(priority=1).enqueue(number)
    before = objects()["Job"]
    for number in range(200):
        note.using(correlation_id=str(number), delay="1s", retry=number + 1).enqueue(number)

    assert objects()["Job"] - before < 10


def test_b167_consumers_of_finished_workers_are_forgotten(
    memory: MemoryBackend, drain: Callable[..., None]
) -> None:
    """Each worker that ends takes its consumers with it, and their threads."""

    @job(name="trial.note")
    def note() -> None: ...

    def run_one() -> None:
        asyncio.run(Worker(memory, burst=True, concurrency=2).run())

    run_one()
    threads = threading.active_count()
    for _ in range(10):
        note.enqueue()
        within(10, run_one)
        drain()

    assert len(memory._consumers) == 0
    wait_until(lambda: threading.active_count() <= threads + 1)
