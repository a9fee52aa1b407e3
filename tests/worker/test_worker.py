"""The worker: how much it runs at once, how it stops, and what it leaves behind."""

import asyncio
import contextlib
import logging
import random
import threading
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connection, connections, transaction
from django.utils import timezone, translation

from django_jobq import Defer, JobContext, RetryPolicy, current_job, job, signals
from django_jobq.backends.base import Counts
from django_jobq.backends.handler import backends
from django_jobq.backends.memory import ManualClock, MemoryBackend
from django_jobq.backends.memory.consumer import MemoryConsumer, MemoryDelivery
from django_jobq.backends.memory.state import Entry
from django_jobq.conf import AliasSettings
from django_jobq.envelope import Envelope
from django_jobq.exceptions import BackendUnavailable, ConsumerStopped, InvalidJob, UnknownQueue
from django_jobq.queues import QueueConfig
from django_jobq.registry import registry
from django_jobq.worker import attempt as attempt_module
from django_jobq.worker import executor as executor_module
from django_jobq.worker import runner as runner_module
from django_jobq.worker.runner import JobRunner
from django_jobq.worker.stats import WorkerStats
from django_jobq.worker.worker import DEFAULT_CONCURRENCY, Worker
from tests.app.models import Row

DEADLINE = 20.0

Work = Callable[..., WorkerStats]
Drain = Callable[..., None]


def envelope_of(name: str, *args: Any, **fields: Any) -> Envelope:
    given = {"job_id": uuid.uuid4(), "queue": "default", "enqueued_at": 1, **fields}
    return Envelope(job=name, args=list(args), **given)


def publish(backend: MemoryBackend, name: str, count: int, **fields: Any) -> None:
    for number in range(count):
        backend.publish(envelope_of(name, number, **fields))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not condition():  # noqa: ASYNC110 - threads tell nobody
            await asyncio.sleep(0.002)


@asynccontextmanager
async def running(worker: Worker) -> AsyncIterator[asyncio.Task[WorkerStats]]:
    """Run a worker for the length of a block, and end it whatever happens."""
    task = asyncio.create_task(worker.run())
    try:
        yield task
    finally:
        worker.shutdown()
        done, _ = await asyncio.wait({task}, timeout=DEADLINE)
        assert done, "the worker does not stop"


async def ended(task: asyncio.Task[WorkerStats]) -> WorkerStats:
    return await asyncio.wait_for(asyncio.shield(task), DEADLINE)


class OnThread:
    """Run a worker on a loop and thread of its own, so that a hanging one can be told."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.stats: WorkerStats | None = None
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        # Not asyncio.run(), which waits for jobs that resist their cancellation.
        loop = asyncio.new_event_loop()
        self.stats = loop.run_until_complete(self.worker.run())
        for task in asyncio.all_tasks(loop):
            task.cancel()
        with contextlib.suppress(RuntimeError):
            loop.run_until_complete(asyncio.sleep(0.05))
        loop.close()

    def settles(self, backend: MemoryBackend, count: int = 1) -> bool:
        """Wait until jobs of the queue default are settled."""
        give_up = time.monotonic() + DEADLINE
        while len(backend.settled("default")) < count and time.monotonic() < give_up:
            time.sleep(0.002)
        return len(backend.settled("default")) >= count

    def ends(self, seconds: float = DEADLINE) -> bool:
        self.thread.join(seconds)
        return not self.thread.is_alive()


class Meter:
    """Measure how many calls overlap."""

    def __init__(self) -> None:
        self.most = self.calls = 0
        self._inside: set[object] = set()
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        with self._lock:
            self._inside.add(self._who())
            self.calls += 1
            self.most = max(self.most, len(self._inside))

    def __exit__(self, *_: object) -> None:
        # A timeout may strike in here; who it was is then inside until the next call ends.
        self._inside.discard(self._who())

    def _who(self) -> object:
        try:
            return asyncio.current_task()
        except RuntimeError:
            return threading.get_ident()


class Watched(MemoryBackend):
    """Note every entry that is taken, and fail to settle when told to."""

    def __init__(self, settings: AliasSettings, **kwargs: Any) -> None:
        super().__init__(settings, **kwargs)
        self.taken: list[str] = []
        self.failures = 0
        self.consumer_error: Exception | None = None

    def reserve(self, consumer: MemoryConsumer) -> Entry | None:
        if self.consumer_error is not None:
            raise self.consumer_error
        entry = super().reserve(consumer)
        if entry is not None:
            self.taken.append(consumer.queue)
        return entry

    def ack(self, delivery: MemoryDelivery) -> None:
        if self.failures:
            self.failures -= 1
            raise BackendUnavailable("the broker is gone")
        super().ack(delivery)


@pytest.fixture
def make_watched() -> Callable[..., Watched]:
    def make(*queues: str, **kwargs: Any) -> Watched:
        configs = {name: QueueConfig(name=name) for name in queues or ("default",)}
        return Watched(AliasSettings(alias="default", backend="memory", queues=configs), **kwargs)

    return make


@pytest.fixture
def watched(make_watched: Callable[..., Watched]) -> Watched:
    return make_watched()


@pytest.fixture
def short_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give jobs a moment instead of seconds to end after their timeout."""
    for module in (attempt_module, executor_module):
        monkeypatch.setattr(module, "GRACE", 0.2)


@pytest.fixture
def gate() -> Iterator[threading.Event]:
    """Return what blocks a job's thread; it opens at the end of the test in any case."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def blocking(watched: Watched, gate: threading.Event) -> threading.Event:
    """Publish a job that runs until the gate opens, and return what tells that it has begun."""
    started = threading.Event()

    @job(name="tests.blocks")
    def blocks(number: int) -> None:
        started.set()
        assert gate.wait(DEADLINE)

    publish(watched, "tests.blocks", 1)
    return started


# What a worker is made of


@pytest.mark.contract(56)
def test_defaults(watched: Watched) -> None:
    worker = Worker(watched)

    assert DEFAULT_CONCURRENCY == 10
    assert worker.concurrency == 10
    assert [config.name for config in worker.configs] == ["default"]


@pytest.mark.contract(13)
@pytest.mark.parametrize("concurrency", [0, -3])
def test_implausible_concurrency_is_clamped(watched: Watched, concurrency: int) -> None:
    assert Worker(watched, concurrency=concurrency).concurrency == 1


@pytest.mark.contract(13)
@pytest.mark.parametrize(("concurrency", "prefetch"), [(0, -1), (0, 0), (-5, None)])
def test_implausible_configuration_still_works(
    settings: Any, work: Work, concurrency: int, prefetch: int | None
) -> None:
    ran: list[int] = []

    @job(name="tests.runs")
    def runs(number: int) -> None:
        ran.append(number)

    settings.JOBQ = {
        "default": {
            "BACKEND": "django_jobq.backends.memory.MemoryBackend",
            "QUEUES": {"default": {"prefetch": prefetch}},
        }
    }
    for number in range(3):
        runs.enqueue(number)

    assert work(concurrency=concurrency).succeeded == 3
    assert ran == [0, 1, 2]


@pytest.mark.contract(55)
def test_unknown_queue_is_refused_at_once(watched: Watched) -> None:
    with pytest.raises(UnknownQueue, match="'emial'"):
        Worker(watched, queues=["default", "emial"])


@pytest.mark.contract(56)
@pytest.mark.parametrize(
    ("configured", "concurrency", "most"), [(None, 1, 2), (None, 3, 6), (5, 3, 5), (1, 3, 1)]
)
async def test_prefetch_is_twice_the_concurrency_unless_configured(
    gate: threading.Event, configured: int | None, concurrency: int, most: int
) -> None:
    backend = Watched(
        AliasSettings(
            alias="default",
            backend="memory",
            queues={"default": QueueConfig(name="default", prefetch=configured)},
        )
    )

    @job(name="tests.blocks")
    def blocks(number: int) -> None:
        assert gate.wait(DEADLINE)

    publish(backend, "tests.blocks", 12)
    worker = Worker(backend, concurrency=concurrency)
    async with running(worker):
        await until(lambda: len(backend.taken) == most)
        await asyncio.sleep(0.05)  # room for one too many
        assert backend.counts("default").reserved == most
        gate.set()


@pytest.mark.contract(54)
def test_worker_refuses_two_functions_under_one_name(memory: MemoryBackend, work: Work) -> None:
    def define(text: str) -> None:
        if text == "first":

            @job(name="tests.twice")
            def first() -> None: ...

        else:

            @job(name="tests.twice")
            def second() -> None: ...

    define("first")
    define("second")

    with pytest.raises(InvalidJob, match=r"tests\.twice") as refused:
        work()

    assert str(refused.value).count(__file__) == 2


@pytest.mark.contract(54)
def test_importing_a_function_again_is_no_conflict(work: Work) -> None:
    for _ in range(2):

        @job(name="tests.again")
        def again() -> None: ...

    again.enqueue()

    assert registry.conflicts == []
    assert work().succeeded == 1


# Running


@pytest.mark.contract(53, 74)
def test_every_job_runs_once(memory: MemoryBackend, work: Work) -> None:
    runs: Counter[int] = Counter()

    @job(name="tests.runs")
    def runs_once(number: int) -> None:
        runs[number] += 1

    @job(name="tests.async_runs")
    async def runs_once_async(number: int) -> None:
        await asyncio.sleep(0)
        runs[number] += 1

    for number in range(0, 60, 2):
        runs_once.enqueue(number)
        runs_once_async.enqueue(number + 1)
    stats = work(concurrency=4)

    assert stats == WorkerStats(succeeded=60)
    assert runs == Counter(range(60))
    assert len(memory.acked("default")) == 60
    counts = memory.counts("default")
    assert (counts.ready, counts.held, counts.reserved, counts.dead) == (0, 0, 0, 0)


@pytest.mark.contract(74)
async def test_several_workers_share_a_queue_without_doubling(watched: Watched) -> None:
    runs: Counter[int] = Counter()
    lock = threading.Lock()

    @job(name="tests.shared")
    def shared(number: int) -> None:
        with lock:
            runs[number] += 1

    publish(watched, "tests.shared", 200)
    workers = [Worker(watched, concurrency=2, burst=True) for _ in range(4)]
    stats = await asyncio.wait_for(asyncio.gather(*(w.run() for w in workers)), DEADLINE)

    assert runs == Counter(range(200))
    assert sum(stat.succeeded for stat in stats) == 200


@pytest.mark.contract(74)
def test_workers_on_loops_of_their_own_share_a_queue(watched: Watched) -> None:
    runs: Counter[int] = Counter()
    lock = threading.Lock()

    @job(name="tests.shared")
    def shared(number: int) -> None:
        with lock:
            runs[number] += 1

    publish(watched, "tests.shared", 200)
    workers = [OnThread(Worker(watched, concurrency=2, burst=True)) for _ in range(3)]

    assert all(worker.ends() for worker in workers)
    assert runs == Counter(range(200))


@pytest.mark.contract(57)
@pytest.mark.parametrize("kind", ["sync", "async", "mixed"])
def test_never_more_than_n_run_at_once(work: Work, kind: str) -> None:
    meter = Meter()

    @job(name="tests.sync_metered")
    def sync_metered() -> None:
        with meter:
            time.sleep(0.004)

    @job(name="tests.async_metered")
    async def async_metered() -> None:
        with meter:
            await asyncio.sleep(0.004)

    for number in range(60):
        is_sync = kind == "sync" or (kind == "mixed" and number % 2)
        (sync_metered if is_sync else async_metered).enqueue()
    stats = work(concurrency=3)

    assert stats.succeeded == meter.calls == 60
    assert meter.most == 3


@pytest.mark.contract(57, 61)
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_never_more_than_n_run_at_once_after_timeouts(work: Work, kind: str) -> None:
    """Jobs that time out and take their time to clean up keep their slot while they do."""
    meter = Meter()

    @job(name="tests.sync_late", timeout="10ms", retry=RetryPolicy.none(2))
    def sync_late(slow: bool) -> None:
        with meter:
            try:
                end = time.monotonic() + (DEADLINE if slow else 0.001)
                while time.monotonic() < end:
                    pass
            finally:
                time.sleep(0.02 if slow else 0)

    @job(name="tests.async_late", timeout="10ms", retry=RetryPolicy.none(2))
    async def async_late(slow: bool) -> None:
        with meter:
            try:
                await asyncio.sleep(DEADLINE if slow else 0.001)
            finally:
                await asyncio.sleep(0.02 if slow else 0)

    for number in range(24):
        (sync_late if kind == "sync" else async_late).enqueue(number % 3 == 0)
    stats = work(concurrency=2)

    assert meter.most <= 2
    assert stats.retried >= 8
    assert stats.dead_lettered >= 8
    assert stats.succeeded + stats.dead_lettered == 24


@pytest.mark.contract(57, 61)
def test_slot_of_an_async_job_is_free_after_its_timeout(work: Work) -> None:
    @job(name="tests.async_hangs", timeout="20ms")
    async def hangs() -> None:
        await asyncio.Event().wait()

    @job(name="tests.async_after")
    async def after() -> None: ...

    hangs.enqueue()
    after.enqueue()

    assert work(concurrency=1) == WorkerStats(succeeded=1, dead_lettered=1)


@pytest.mark.contract(60)
@pytest.mark.parametrize(
    "error", [ValueError("x"), SystemExit(3), KeyboardInterrupt(), GeneratorExit(), StopIteration()]
)
def test_worker_goes_on_after_whatever_a_job_raises(work: Work, error: BaseException) -> None:
    ran: list[bool] = []

    @job(name="tests.sync_raises")
    def sync_raises() -> None:
        raise error

    @job(name="tests.async_raises")
    async def async_raises() -> None:
        raise error

    @job(name="tests.behind")
    def behind() -> None:
        ran.append(True)

    sync_raises.enqueue()
    async_raises.enqueue()
    behind.enqueue()

    assert work(concurrency=1) == WorkerStats(succeeded=1, dead_lettered=2)
    assert ran == [True]


@pytest.mark.contract(119)
def test_poison_does_not_stall_what_is_behind_it(memory: MemoryBackend, work: Work) -> None:
    @job(name="tests.behind")
    def behind() -> None: ...

    behind.enqueue()
    for body in (b"", b"{", b"[]", b"\x00\xff"):
        memory.inject("default", body)
    behind.enqueue()

    assert work(concurrency=1) == WorkerStats(succeeded=2, dead_lettered=4)
    assert [letter.body for letter in memory.dead_letters("default")] == [
        b"",
        b"{",
        b"[]",
        b"\x00\xff",
    ]


def test_bug_in_the_processing_hands_the_job_back_and_does_not_end_the_worker(
    memory: MemoryBackend,
    work: Work,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    process = runner_module.JobRunner.process
    broken: list[bool] = []

    async def break_once(self: Any, delivery: Any) -> Any:
        if not broken:
            broken.append(True)
            raise RuntimeError("a bug of ours")
        return await process(self, delivery)

    @job(name="tests.runs")
    def runs() -> None: ...

    runs.enqueue()
    monkeypatch.setattr(runner_module.JobRunner, "process", break_once)

    assert work() == WorkerStats(succeeded=1, handed_back=1)
    assert "a bug of ours" in caplog.text


@pytest.mark.contract(55)
def test_queues_that_are_not_served_are_left_alone(settings: Any, work: Work) -> None:
    ran: list[str] = []

    @job(name="tests.named", takes_context=True)
    def named(context: JobContext) -> None:
        ran.append(context.queue)

    settings.JOBQ = {
        "default": {
            "BACKEND": "django_jobq.backends.memory.MemoryBackend",
            "QUEUES": ["default", "email", "bulk"],
        }
    }
    for queue in ("default", "email", "bulk"):
        named.using(queue=queue).enqueue()
    stats = work(queues=["email", "bulk", "email"], concurrency=1)

    memory = backends["default"]
    assert stats.succeeded == 2
    assert sorted(ran) == ["bulk", "email"]
    assert [memory.counts(queue).ready for queue in ("default", "email", "bulk")] == [1, 0, 0]


@pytest.mark.contract(55)
async def test_queue_named_twice_has_one_consumer(make_watched: Callable[..., Watched]) -> None:
    backend = make_watched("a", "b")
    worker = Worker(backend, queues=["b", "a", "b", "b"])

    assert [config.name for config in worker.configs] == ["b", "a"]


@pytest.mark.contract(56)
async def test_queues_are_served_round_robin(
    make_watched: Callable[..., Watched], gate: threading.Event
) -> None:
    order: list[str] = []

    @job(name="tests.ordered", takes_context=True)
    def ordered(context: JobContext, number: int) -> None:
        assert gate.wait(DEADLINE)
        order.append(f"{context.queue}{number}")

    backend = make_watched("a", "b", "c")
    publish(backend, "tests.ordered", 2, queue="a")
    async with running(Worker(backend, concurrency=1)):
        await until(lambda: len(backend.taken) == 2)
        publish(backend, "tests.ordered", 2, queue="b")
        publish(backend, "tests.ordered", 2, queue="c")
        await until(lambda: len(backend.taken) == 6)
        gate.set()
        await until(lambda: len(order) == 6)

    assert order == ["a0", "b0", "c0", "a1", "b1", "c1"]


# Burst and max-jobs


@pytest.mark.contract(72)
def test_burst_runs_what_is_due_and_counts_it(memory: MemoryBackend, work: Work) -> None:
    @job(name="tests.ends", retry=RetryPolicy.none(2), takes_context=True)
    def ends(context: JobContext, how: str) -> None:
        if how == "fails":
            raise ValueError("x")
        if how == "defers" and not context.deferrals:
            raise Defer("0s")
        if how == "waits":
            raise Defer("1h")

    for how in ("returns", "returns", "fails", "defers", "waits"):
        ends.enqueue(how)
    ends.enqueue_after("1h", "returns")

    assert work() == WorkerStats(succeeded=3, retried=1, deferred=2, dead_lettered=1)
    counts = memory.counts("default")
    assert (counts.ready, counts.held, counts.reserved) == (0, 2, 0)


@pytest.mark.contract(72)
def test_burst_runs_what_its_jobs_enqueue(work: Work) -> None:
    ran: list[int] = []

    @job(name="tests.chain")
    def chain(number: int) -> None:
        ran.append(number)
        if number < 20:
            chain.enqueue(number + 1)

    chain.enqueue(1)

    assert work().succeeded == 20
    assert ran == list(range(1, 21))


@pytest.mark.contract(72)
def test_burst_on_an_empty_queue_ends(work: Work) -> None:
    assert work() == WorkerStats()


@pytest.mark.contract(73)
@pytest.mark.parametrize(("limit", "concurrency"), [(1, 1), (3, 1), (3, 10), (20, 4)])
def test_max_jobs_leaves_the_rest_queued(
    memory: MemoryBackend, work: Work, limit: int, concurrency: int
) -> None:
    ran: list[int] = []

    @job(name="tests.runs")
    def runs(number: int) -> None:
        ran.append(number)

    for number in range(30):
        runs.enqueue(number)
    stats = work(burst=False, max_jobs=limit, concurrency=concurrency)

    assert stats.succeeded == len(ran) == limit
    counts = memory.counts("default")
    assert (counts.ready, counts.reserved) == (30 - limit, 0)
    assert [envelope.args for envelope in memory.pending("default")] == [
        [number] for number in range(30) if number not in ran
    ]


@pytest.mark.contract(73)
def test_max_jobs_counts_attempts(memory: MemoryBackend, work: Work) -> None:
    @job(name="tests.fails", retry=RetryPolicy.none(5))
    def fails() -> None:
        raise ValueError("x")

    fails.enqueue()

    assert work(burst=False, max_jobs=3) == WorkerStats(retried=3)
    assert [envelope.attempt for envelope in memory.pending("default")] == [4]


# Stopping


@pytest.mark.contract(62)
async def test_shutdown_before_run_takes_nothing(watched: Watched) -> None:
    publish(watched, "tests.any", 3)
    worker = Worker(watched)
    worker.shutdown()
    worker.shutdown()

    assert await asyncio.wait_for(worker.run(), DEADLINE) == WorkerStats()
    assert watched.taken == []
    assert watched.counts("default").ready == 3


@pytest.mark.contract(63)
async def test_shutdown_may_be_called_at_any_time_and_from_any_thread(watched: Watched) -> None:
    worker = Worker(watched)
    async with running(worker) as task:
        await until(lambda: bool(watched._consumers))
        threads = [threading.Thread(target=worker.shutdown) for _ in range(5)]
        for thread in threads:
            thread.start()
        for _ in range(5):
            worker.shutdown()
        for thread in threads:
            thread.join()
        await ended(task)
        worker.shutdown()


def test_shutdown_after_the_loop_is_closed_is_harmless(watched: Watched) -> None:
    worker = Worker(watched, burst=True)
    asyncio.run(worker.run())

    worker.shutdown()


@pytest.mark.contract(64)
@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_running_job_ends_and_is_settled_before_run_returns(
    watched: Watched, gate: threading.Event, kind: str
) -> None:
    started = threading.Event()
    finished: list[bool] = []

    @job(name="tests.sync_slow")
    def sync_slow(number: int) -> None:
        started.set()
        assert gate.wait(DEADLINE)
        finished.append(True)

    @job(name="tests.async_slow")
    async def async_slow(number: int) -> None:
        started.set()
        await until(gate.is_set)
        finished.append(True)

    publish(watched, f"tests.{kind}_slow", 1)
    worker = Worker(watched, concurrency=2)
    async with running(worker) as task:
        await until(started.is_set)
        worker.shutdown()
        done, _ = await asyncio.wait({task}, timeout=0.1)
        assert not done
        assert finished == []
        gate.set()
        stats = await ended(task)

    assert finished == [True]
    assert stats == WorkerStats(succeeded=1)
    assert len(watched.succeeded("default")) == 1
    assert watched.counts("default").reserved == 0


@pytest.mark.contract(65, 66)
async def test_nothing_is_taken_after_shutdown_and_the_buffer_goes_back(
    watched: Watched, gate: threading.Event
) -> None:
    ran: list[int] = []

    @job(name="tests.blocks")
    def blocks(number: int) -> None:
        ran.append(number)
        assert gate.wait(DEADLINE)

    publish(watched, "tests.blocks", 9)
    worker = Worker(watched, concurrency=2)
    async with running(worker) as task:
        await until(lambda: worker.running == 2 and len(watched.taken) == 4)
        worker.shutdown()
        taken = len(watched.taken)
        watched.publish(envelope_of("tests.blocks", 99))
        await until(lambda: watched.counts("default").reserved == 2)
        gate.set()
        stats = await ended(task)

    assert len(watched.taken) == taken
    assert sorted(ran) == [0, 1]
    assert stats == WorkerStats(succeeded=2, handed_back=2)
    # What was handed back is at its old place, uncounted.
    waiting = watched.pending("default")
    assert [envelope.args for envelope in waiting] == [[2], [3], [4], [5], [6], [7], [8], [99]]
    assert {(envelope.attempt, envelope.deferrals) for envelope in waiting} == {(1, 0)}


@pytest.mark.contract(65, 66)
async def test_nothing_starts_while_a_consumer_takes_its_time_to_stop(
    watched: Watched, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []
    stop = MemoryConsumer.stop

    async def stop_slowly(consumer: MemoryConsumer) -> None:
        gate.set()
        await until(lambda: not worker.running)
        await stop(consumer)

    @job(name="tests.blocks")
    def blocks(number: int) -> None:
        ran.append(number)
        assert gate.wait(DEADLINE)

    monkeypatch.setattr(MemoryConsumer, "stop", stop_slowly)
    publish(watched, "tests.blocks", 4)
    worker = Worker(watched, concurrency=1)
    async with running(worker) as task:
        await until(lambda: len(watched.taken) == 2 and worker.running == 1)
        worker.shutdown()
        stats = await ended(task)

    assert ran == [0]
    assert stats.succeeded == 1
    assert [envelope.args for envelope in watched.pending("default")] == [[1], [2], [3]]


@pytest.mark.contract(64, 65, 66)
@pytest.mark.parametrize("seed", range(12))
async def test_settled_and_queued_make_up_what_was_published(
    make_watched: Callable[..., Watched], seed: int
) -> None:
    """Stop at a random moment in the middle of the work, on several queues and lanes."""
    rng = random.Random(seed)
    runs: Counter[int] = Counter()

    @job(name="tests.sync_quick")
    def sync_quick(number: int) -> None:
        runs[number] += 1

    @job(name="tests.async_quick")
    async def async_quick(number: int) -> None:
        await asyncio.sleep(rng.choice([0, 0, 0.001]))
        runs[number] += 1

    backend = make_watched("a", "b")
    for number in range(200):
        name = rng.choice(["tests.sync_quick", "tests.async_quick"])
        backend.publish(envelope_of(name, number, queue=rng.choice("ab")))
    worker = Worker(backend, concurrency=rng.randint(1, 6))
    stop_at = rng.randint(0, 150)
    async with running(worker) as task:
        await until(lambda: sum(runs.values()) >= stop_at)
        worker.shutdown()
        stats = await ended(task)

    settled = [e.args[0] for queue in "ab" for e in backend.succeeded(queue)]
    waiting = [e.args[0] for queue in "ab" for e in backend.pending(queue)]
    assert sorted(settled + waiting) == list(range(200))
    assert sorted(runs) == sorted(settled)
    assert set(runs.values()) <= {1}
    assert stats.succeeded == len(settled)
    assert [backend.counts(queue).reserved for queue in "ab"] == [0, 0]
    for queue in "ab":
        numbers = [e.args[0] for e in backend.pending(queue)]
        assert numbers == sorted(numbers)


@pytest.mark.contract(64, 65)
@pytest.mark.parametrize("error", [Exception(), asyncio.CancelledError()])
async def test_a_consumer_that_fails_to_stop_leaves_the_running_job_alone(
    watched: Watched,
    gate: threading.Event,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: BaseException,
) -> None:
    stop = MemoryConsumer.stop

    async def stop_and_fail(consumer: MemoryConsumer) -> None:
        await stop(consumer)
        raise error

    @job(name="tests.blocks")
    def blocks(number: int) -> None:
        assert gate.wait(DEADLINE)

    publish(watched, "tests.blocks", 3)
    worker = Worker(watched, concurrency=1)
    task = asyncio.create_task(worker.run())
    await until(lambda: worker.running == 1)
    monkeypatch.setattr(MemoryConsumer, "stop", stop_and_fail)
    worker.shutdown()
    done, _ = await asyncio.wait({task}, timeout=0.2)
    assert not done, "the running job was not waited for"
    gate.set()

    stats = await ended(task)

    assert (stats.succeeded, stats.settle_failures) == (1, 0)
    assert [envelope.args for envelope in watched.pending("default")] == [[1], [2]]
    assert "Ending a consumer failed" in caplog.text


@pytest.mark.contract(65)
async def test_job_that_runs_beyond_the_deadline_is_handed_back_uncounted(
    watched: Watched,
    blocking: threading.Event,
    gate: threading.Event,
    caplog: pytest.LogCaptureFixture,
) -> None:
    worker = Worker(watched, concurrency=1, shutdown_timeout=0.1)
    async with running(worker) as task:
        await until(blocking.is_set)
        worker.shutdown()
        await until(lambda: bool(watched.pending("default")))
        waiting = watched.pending("default")
        gate.set()
        stats = await ended(task)

    assert worker.abandoned == 1
    assert stats == WorkerStats(handed_back=1)
    assert [(envelope.attempt, envelope.args) for envelope in waiting] == [(1, [0])]
    assert "1 job(s) still run at the deadline" in caplog.text
    assert watched.settled("default") == []


@pytest.mark.contract(65)
async def test_async_job_beyond_the_deadline_is_cancelled_and_handed_back(
    watched: Watched,
) -> None:
    seen: list[str] = []

    @job(name="tests.async_blocks")
    async def blocks(number: int) -> None:
        seen.append("started")
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("cancelled")

    publish(watched, "tests.async_blocks", 1)
    worker = Worker(watched, concurrency=1, shutdown_timeout=0.1)
    async with running(worker) as task:
        await until(lambda: bool(seen))
        worker.shutdown()
        stats = await ended(task)

    assert seen == ["started", "cancelled"]
    assert stats == WorkerStats(handed_back=1)
    assert [envelope.attempt for envelope in watched.pending("default")] == [1]


async def test_second_shutdown_does_not_extend_the_deadline(
    watched: Watched, blocking: threading.Event, gate: threading.Event
) -> None:
    worker = Worker(watched, concurrency=1, shutdown_timeout=0.4)
    async with running(worker) as task:
        await until(blocking.is_set)
        worker.shutdown()
        async with asyncio.timeout(DEADLINE):
            while not worker.abandoned:
                worker.shutdown()
                await asyncio.sleep(0.02)
        gate.set()
        await ended(task)

    assert worker.abandoned == 1


@pytest.mark.contract(67)
@pytest.mark.parametrize("state", ["empty", "held", "foreign clock"])
async def test_idle_worker_returns_within_a_second(
    make_watched: Callable[..., Watched], state: str
) -> None:
    backend = make_watched("a", "b", **({"clock": ManualClock()} if "clock" in state else {}))
    if state != "empty":
        backend.publish(envelope_of("tests.any", queue="a"), delay=3600)
    worker = Worker(backend)
    async with running(worker) as task:
        await until(lambda: len(backend._consumers) == 2)
        await asyncio.sleep(0.05)  # until it waits for the next job
        started = time.monotonic()
        worker.shutdown()
        await ended(task)

    assert time.monotonic() - started < 1.0


@pytest.mark.contract(68)
async def test_burst_goes_on_for_what_is_taken_between_its_counts(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that no count sees, because it is in hand at that moment, keeps the worker there."""
    ran: list[int] = []

    @job(name="tests.runs")
    def runs(number: int) -> None:
        ran.append(number)

    counts = watched.counts

    def count_once_it_ran(queue: str) -> Counts:
        if (number := len(ran)) < 5:
            watched.publish(envelope_of("tests.runs", number))
            give_up = time.monotonic() + DEADLINE
            while len(ran) == number and time.monotonic() < give_up:
                time.sleep(0.001)
        return counts(queue)

    monkeypatch.setattr(watched, "counts", count_once_it_ran)
    await asyncio.wait_for(Worker(watched, burst=True).run(), DEADLINE)

    assert ran == [0, 1, 2, 3, 4]


@pytest.mark.contract(68, 103)
async def test_backend_stays_usable_after_the_worker(watched: Watched) -> None:
    ran: list[int] = []

    @job(name="tests.runs")
    def runs(number: int) -> None:
        ran.append(number)

    publish(watched, "tests.runs", 1)
    await asyncio.wait_for(Worker(watched, burst=True).run(), DEADLINE)
    assert not watched.is_closed
    watched.publish(envelope_of("tests.runs", 7))
    await asyncio.wait_for(Worker(watched, burst=True).run(), DEADLINE)

    assert ran == [0, 7]


@pytest.mark.contract(103)
async def test_held_job_is_delivered_by_a_later_worker(
    make_watched: Callable[..., Watched], clock: ManualClock
) -> None:
    seen: list[tuple[int, int]] = []

    @job(name="tests.defers_once", takes_context=True)
    def defers_once(context: JobContext, number: int) -> None:
        seen.append((context.attempt, context.deferrals))
        if not context.deferrals:
            raise Defer("1h")

    backend = make_watched("default", clock=clock)
    publish(backend, "tests.defers_once", 1)
    first = await asyncio.wait_for(Worker(backend, burst=True).run(), DEADLINE)
    assert first == WorkerStats(deferred=1)
    assert (backend.counts("default").held, backend.deferred("default")) == (1, 1)
    clock.advance(3600)
    second = await asyncio.wait_for(Worker(backend, burst=True).run(), DEADLINE)

    assert second == WorkerStats(succeeded=1)
    assert seen == [(1, 0), (1, 1)]


@pytest.mark.contract(69, 202)
async def test_settle_that_fails_does_not_stop_the_worker(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runs: Counter[int] = Counter()

    @job(name="tests.runs")
    def runs_again(number: int) -> None:
        runs[number] += 1

    monkeypatch.setattr(runner_module, "_FIRST_PAUSE", 0.01)
    watched.failures = 2
    publish(watched, "tests.runs", 4)
    worker = Worker(watched, concurrency=1, burst=True)
    stats = await asyncio.wait_for(worker.run(), DEADLINE)

    assert stats == WorkerStats(succeeded=4, settle_failures=2)
    assert worker.stats is stats
    assert sum(runs.values()) == 6
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    assert len(errors) == 2


@pytest.mark.contract(70)
@pytest.mark.parametrize("how", ["raises", "closed"])
async def test_consumer_that_gives_up_ends_the_worker_after_draining(
    watched: Watched, blocking: threading.Event, gate: threading.Event, how: str
) -> None:
    worker = Worker(watched, concurrency=1)
    task = asyncio.create_task(worker.run())
    await until(blocking.is_set)
    if how == "raises":
        watched.consumer_error = BackendUnavailable("refused")
        watched.publish(envelope_of("tests.blocks", 1))
    else:
        watched.close()
    done, _ = await asyncio.wait({task}, timeout=0.2)
    assert not done, "the running job was not waited for"
    gate.set()

    with pytest.raises(ConsumerStopped, match="'default'") as stopped:
        await ended(task)

    assert stopped.value.queue == "default"
    assert stopped.value.__cause__ is watched.consumer_error
    assert [envelope.args for envelope in watched.succeeded("default")] == [[0]]


async def test_failing_look_at_the_queue_ends_the_worker_loudly(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(queue: str) -> None:
        raise BackendUnavailable("gone")

    monkeypatch.setattr(watched, "counts", fail)

    with pytest.raises(BackendUnavailable):
        await asyncio.wait_for(Worker(watched, burst=True).run(), DEADLINE)


@pytest.mark.contract(202)
async def test_counts_are_readable_while_it_runs(watched: Watched, gate: threading.Event) -> None:
    @job(name="tests.blocks")
    def blocks(number: int) -> None:
        if number:
            assert gate.wait(DEADLINE)

    publish(watched, "tests.blocks", 2)
    worker = Worker(watched, concurrency=1)
    async with running(worker):
        await until(lambda: worker.stats.succeeded == 1 and worker.running == 1)
        counts = watched.counts("default")
        assert (counts.ready, counts.reserved) == (0, 1)
        assert worker.stats == WorkerStats(succeeded=1)
        gate.set()


# Jobs that do not return


@pytest.mark.contract(57, 61)
@pytest.mark.usefixtures("short_grace")
def test_stuck_sync_job_recycles_the_worker_and_is_settled_last(
    watched: Watched, gate: threading.Event
) -> None:
    meter = Meter()
    ran: list[int] = []

    @job(name="tests.stuck", timeout="50ms", retry=RetryPolicy.fixed(3, delay="1h"))
    def stuck(number: int) -> None:
        with meter:
            gate.wait(DEADLINE)

    @job(name="tests.behind")
    def behind(number: int) -> None:
        with meter:
            ran.append(number)

    watched.publish(envelope_of("tests.stuck", 0))
    publish(watched, "tests.behind", 3)
    worker = Worker(watched, concurrency=1)
    thread = OnThread(worker)
    assert thread.settles(watched), "it is not settled while it is stuck"
    gate.set()
    assert thread.ends(), "the worker does not end"

    assert worker.recycled
    assert ran == []
    assert meter.most == 1
    assert worker.stats.retried == 1
    counts = watched.counts("default")
    assert (counts.ready, counts.held, counts.reserved) == (3, 1, 0)
    assert [(e.job, kind) for e, kind in watched.settled("default")] == [("tests.stuck", "retried")]


@pytest.mark.contract(61)
@pytest.mark.usefixtures("short_grace")
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_stuck_job_does_not_cost_the_jobs_beside_it(
    watched: Watched, gate: threading.Event, kind: str
) -> None:
    finished: list[int] = []
    beside_started = threading.Event()

    @job(name="tests.sync_stuck", timeout="50ms")
    def sync_stuck(number: int) -> None:
        gate.wait(DEADLINE)

    @job(name="tests.async_stuck", timeout="50ms")
    async def async_stuck(number: int) -> None:
        while not gate.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    @job(name="tests.beside")
    def beside(number: int) -> None:
        beside_started.set()
        end = time.monotonic() + DEADLINE
        while not worker.recycled and time.monotonic() < end:
            time.sleep(0.002)
        finished.append(number)

    watched.publish(envelope_of("tests.beside", 7))
    watched.publish(envelope_of(f"tests.{kind}_stuck", 0))
    worker = Worker(watched, concurrency=2)
    thread = OnThread(worker)
    assert thread.settles(watched, 2), "it is not settled while it is stuck"
    gate.set()
    assert thread.ends(), "the worker does not end"

    assert worker.recycled
    assert finished == [7]
    assert [(e.job, kind) for e, kind in watched.settled("default")] == [
        ("tests.beside", "succeeded"),
        (f"tests.{kind}_stuck", "dead"),
    ]
    assert "timed out after 50 ms" in watched.dead_letters("default")[0].reason


@pytest.mark.contract(61)
@pytest.mark.usefixtures("short_grace")
@pytest.mark.parametrize("listener", ["receiver", "hook"])
def test_stuck_job_is_settled_even_if_it_holds_the_only_thread(
    watched: Watched, gate: threading.Event, settings: Any, listener: str
) -> None:
    """Receivers and the hook run where sync jobs run, and no thread may be free there."""
    told: list[str] = []

    @job(name="tests.stuck", timeout="50ms")
    def stuck(number: int) -> None:
        gate.wait(DEADLINE)

    def receive(**_: Any) -> None:
        told.append("receiver")

    if listener == "receiver":
        signals.job_dead_lettered.connect(receive)
    else:
        settings.JOBQ_ON_DEAD_LETTER = lambda **_: told.append("hook")
    try:
        watched.publish(envelope_of("tests.stuck", 0))
        worker = Worker(watched, concurrency=1)
        thread = OnThread(worker)
        ended_in_time = thread.ends(6)
        recycled, dead = worker.recycled, len(watched.dead_letters("default"))
        gate.set()
        thread.ends()
    finally:
        signals.job_dead_lettered.disconnect(receive)

    assert ended_in_time, "the worker waits for the stuck thread for ever"
    assert recycled
    assert dead == 1
    assert told == [listener]


@pytest.mark.contract(61)
@pytest.mark.usefixtures("short_grace")
def test_failure_of_a_stuck_job_is_recorded_like_any_other(
    watched: Watched, gate: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    @job(name="tests.stuck", timeout="50ms", retry=RetryPolicy.none(3))
    def stuck(number: int) -> None:
        gate.wait(DEADLINE)

    watched.publish(envelope_of("tests.stuck", 0))
    thread = OnThread(Worker(watched, concurrency=1))
    assert thread.settles(watched)
    gate.set()
    assert thread.ends()

    (waiting,) = watched.pending("default")
    assert waiting.attempt == 2
    (line,) = [r.getMessage() for r in caplog.records if r.name == "django_jobq.jobs"]
    assert "timed out after 50 ms" in line
    assert [error["message"] for error in waiting.headers.get("errors", [])] == [
        "timed out after 50 ms"
    ]


@pytest.mark.contract(61)
@pytest.mark.usefixtures("short_grace")
def test_async_job_with_a_blocked_thread_recycles_the_worker(
    watched: Watched, gate: threading.Event
) -> None:
    """A cancelled job may leave a blocking call in its lane's thread, such as a slow query."""

    @job(name="tests.async_blocks", timeout="50ms")
    async def blocks(number: int) -> None:
        await sync_to_async(gate.wait)(DEADLINE)

    publish(watched, "tests.async_blocks", 1)
    worker = Worker(watched, concurrency=1)
    thread = OnThread(worker)
    ended_in_time = thread.ends(6)
    worker.shutdown()
    gate.set()
    thread.ends()

    assert ended_in_time, "the attempt waits for the blocked thread for ever"
    assert worker.recycled
    assert len(watched.dead_letters("default")) == 1


@pytest.mark.contract(61)
@pytest.mark.usefixtures("short_grace")
@pytest.mark.parametrize("kind", ["sync", "async", "async_thread"])
def test_worker_inside_another_process_replaces_the_lane_and_goes_on(
    watched: Watched, gate: threading.Event, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    ran: list[int] = []

    @job(name="tests.sync_stuck", timeout="50ms")
    def sync_stuck(number: int) -> None:
        gate.wait(DEADLINE)

    @job(name="tests.async_stuck", timeout="50ms")
    async def async_stuck(number: int) -> None:
        while not gate.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(0.01)

    @job(name="tests.async_thread_stuck", timeout="50ms")
    async def async_thread_stuck(number: int) -> None:
        await sync_to_async(gate.wait)(DEADLINE)

    @job(name="tests.behind")
    def behind(number: int) -> None:
        ran.append(number)

    @job(name="tests.async_behind")
    async def async_behind(number: int) -> None:
        await sync_to_async(ran.append)(number)

    publish(watched, f"tests.{kind}_stuck", 1)
    watched.publish(envelope_of("tests.behind", 1))
    watched.publish(envelope_of("tests.async_behind", 2))
    worker = Worker(watched, concurrency=1, in_process=True, burst=True)
    thread = OnThread(worker)
    ended_in_time = thread.ends(6)
    ran_before_the_stuck_job_ended = sorted(ran)
    worker.shutdown()
    gate.set()
    thread.ends()

    assert ended_in_time, "the lane of the stuck job was not replaced"
    assert not worker.recycled
    assert ran_before_the_stuck_job_ended == [1, 2]
    assert worker.stats == WorkerStats(succeeded=2, dead_lettered=1)
    assert "given up" in caplog.text


@pytest.mark.usefixtures("short_grace")
async def test_job_gets_stuck_while_the_worker_stops(
    watched: Watched, gate: threading.Event
) -> None:
    started = threading.Event()

    @job(name="tests.stuck", timeout="50ms")
    def stuck(number: int) -> None:
        started.set()
        gate.wait(DEADLINE)

    publish(watched, "tests.stuck", 1)
    worker = Worker(watched, concurrency=1)
    async with running(worker) as task:
        await until(started.is_set)
        worker.shutdown()
        await until(lambda: bool(watched.dead_letters("default")))
        gate.set()
        stats = await ended(task)

    assert worker.recycled
    assert stats == WorkerStats(dead_lettered=1)
    assert worker.abandoned == 0


# On the thread of a caller


def test_burst_on_the_callers_thread(drain: Drain, capsys: pytest.CaptureFixture[str]) -> None:
    threads: list[int] = []

    @job(name="tests.runs")
    def runs() -> None:
        threads.append(threading.get_ident())

    runs.enqueue()
    runs.enqueue()
    drain(verbosity=1)

    assert threads == [threading.get_ident()] * 2
    assert capsys.readouterr().out == "2 succeeded, 0 retried, 0 deferred, 0 dead\n"


def test_caller_worker_runs_one_job_at_a_time(memory: MemoryBackend) -> None:
    meter = Meter()

    @job(name="tests.async_metered")
    async def metered() -> None:
        with meter:
            await asyncio.sleep(0.002)

    for _ in range(6):
        metered.enqueue()
    worker = Worker(memory, burst=True, on_caller=True, concurrency=10)

    assert worker.concurrency == 1
    assert async_to_sync(worker.run)().succeeded == 6
    assert meter.most == 1


@pytest.mark.django_db
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_uncommitted_rows_of_a_test_are_visible_to_its_jobs(
    drain: Drain, memory: MemoryBackend, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The test's transaction is neither ended nor left, and no connection is closed."""
    seen: list[list[str]] = []
    closed: list[str] = []

    @job(name="tests.sync_reads")
    def sync_reads() -> None:
        seen.append(list(Row.objects.values_list("name", flat=True)))
        Row.objects.create(name="from the job")

    @job(name="tests.async_reads")
    async def async_reads() -> None:
        seen.append([row.name async for row in Row.objects.all()])
        await Row.objects.acreate(name="from the job")

    Row.objects.create(name="uncommitted")
    made = sync_reads if kind == "sync" else async_reads
    made.using(on_commit=False).enqueue()
    raw, atomic_blocks = connection.connection, list(connection.savepoint_ids)
    monkeypatch.setattr(
        type(connection), "close", lambda self: closed.append(self.alias), raising=False
    )
    drain()
    monkeypatch.undo()

    assert seen == [["uncommitted"]]
    assert sorted(Row.objects.values_list("name", flat=True)) == ["from the job", "uncommitted"]
    assert connection.in_atomic_block
    assert connection.savepoint_ids == atomic_blocks
    assert connection.connection is raw
    assert not connection.needs_rollback
    assert closed == []
    assert len(memory.succeeded("default")) == 1


@pytest.mark.django_db
def test_job_that_fails_leaves_the_tests_transaction_usable(drain: Drain) -> None:
    @job(name="tests.fails")
    def fails() -> None:
        with transaction.atomic():
            Row.objects.create(name="rolled back")
            raise ValueError("x")

    Row.objects.create(name="uncommitted")
    fails.using(on_commit=False).enqueue()
    drain()

    assert list(Row.objects.values_list("name", flat=True)) == ["uncommitted"]
    assert connection.in_atomic_block


@pytest.mark.django_db
def test_query_log_of_a_test_is_kept(
    drain: Drain, settings: Any, django_assert_num_queries: Any
) -> None:
    @job(name="tests.queries")
    def queries() -> None:
        Row.objects.count()

    settings.DEBUG = True
    queries.using(on_commit=False).enqueue()
    with django_assert_num_queries(2):
        Row.objects.count()
        drain()


def test_current_job_language_and_time_zone_do_not_reach_the_caller(drain: Drain) -> None:
    seen: list[object] = []

    @job(name="tests.changes")
    def changes(fail: bool) -> None:
        seen.append((translation.get_language(), timezone.get_current_timezone_name()))
        translation.activate("de")
        timezone.activate("Asia/Tokyo")
        assert current_job() is not None
        if fail:
            raise ValueError("x")

    @job(name="tests.async_changes")
    async def async_changes() -> None:
        seen.append((translation.get_language(), timezone.get_current_timezone_name()))
        translation.activate("fr")

    changes.enqueue(False)
    async_changes.enqueue()
    changes.enqueue(True)
    async_changes.enqueue()
    before = translation.get_language(), timezone.get_current_timezone_name()
    drain()

    assert seen == [before] * 4
    assert (translation.get_language(), timezone.get_current_timezone_name()) == before
    assert current_job() is None


# Database connections of the worker's own threads


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_jobs_on_lanes_share_no_connection_with_the_caller(work: Work, kind: str) -> None:
    here = id(connections["default"])
    seen: list[int] = []

    @job(name="tests.sync_connects")
    def sync_connects() -> None:
        seen.append(id(connections["default"]))
        Row.objects.create(name="sync")

    @job(name="tests.async_connects")
    async def async_connects() -> None:
        await Row.objects.acreate(name="async")

    (sync_connects if kind == "sync" else async_connects).enqueue()

    assert work(concurrency=1).succeeded == 1
    assert list(Row.objects.values_list("name", flat=True)) == [kind]
    assert here not in seen


@pytest.mark.django_db(transaction=True)
def test_transaction_left_open_does_not_swallow_the_next_jobs_writes(
    work: Work, caplog: pytest.LogCaptureFixture
) -> None:
    @job(name="tests.writes")
    def writes(name: str, leave_open: bool) -> None:
        if leave_open:
            transaction.atomic().__enter__()
        Row.objects.create(name=name)

    writes.enqueue("before", False)
    writes.enqueue("left open", True)
    writes.enqueue("after", False)
    stats = work(concurrency=1)

    assert stats.succeeded == 3
    assert sorted(Row.objects.values_list("name", flat=True)) == ["after", "before"]
    (record,) = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert (record.job, record.queue, record.attempt) == ("tests.writes", "default", 1)  # type: ignore[attr-defined]


@pytest.mark.contract(200)
@pytest.mark.parametrize("readable", [True, False])
async def test_a_fault_of_the_library_tells_which_job_it_hit(
    watched: Watched,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    readable: bool,
) -> None:
    async def fail(*_: object) -> None:
        raise ZeroDivisionError

    envelope = Envelope(
        job_id=uuid.uuid4(), job="tests.any", queue="default", attempt=3, enqueued_at=0
    )
    watched.inject("default", envelope.encode() if readable else b"rubbish")
    monkeypatch.setattr(JobRunner, "process", fail)
    async with running(Worker(watched, concurrency=1)):
        await until(lambda: "Processing a job" in caplog.text)

    (record, *_) = [r for r in caplog.records if r.getMessage().startswith("Processing a job")]
    fields = {name: getattr(record, name) for name in ("job_id", "job", "queue", "attempt")}
    assert fields == {
        "job_id": envelope.job_id if readable else None,
        "job": "tests.any" if readable else None,
        "queue": "default",
        "attempt": 3 if readable else None,
    }
