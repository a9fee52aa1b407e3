"""What producer and worker must do on every backend: real jobs, enqueued and run by a real worker.

Let a class inherit from the hooks of a backend (hooks.py) and from `WorkerContract`.
Tests are plain coroutines, and one second of holding is all that most of them ask for.
"""

import asyncio
import contextlib
import datetime as dt
import logging
import time
from collections import Counter
from functools import partial
from typing import Any
from unittest import mock

import pytest
from django.db import connections, transaction
from django.test import override_settings

from django_jobq import Defer, Fatal, JobContext, enqueue_many, job, signals
from django_jobq.exceptions import (
    ConsumerStopped,
    InvalidArguments,
    InvalidDuration,
    InvalidJob,
    UnknownBackend,
    UnknownQueue,
)
from django_jobq.queues import QueueConfig
from django_jobq.retry import RetryPolicy
from django_jobq.worker import executor as executor_module
from django_jobq.worker.runner import WorkerStats
from django_jobq.worker.worker import DEFAULT_CONCURRENCY
from tests.backends.hooks import make_envelope
from tests.backends.worker_hooks import (
    AT_ONCE,
    SOON,
    Meter,
    WorkerHooks,
    captured,
    fail,
    give_up,
    quick_pauses,
    succeed,
    wait,
)


class ProducerPart(WorkerHooks):
    """Check what enqueueing promises (40-52)."""

    @pytest.mark.contract(40, 41, 42, 53)
    async def test_what_is_enqueued_runs_once_under_its_id(self) -> None:
        backend = self.serve()
        noted = self.define()
        async with self.working(backend) as worker:
            handles = [await noted.aenqueue(7) for _ in range(2)]
            handles.append(await self.on_thread(noted.enqueue, 7))
            handles.append(await self.on_thread(noted.enqueue_after, "1s", 7))
            handles.append(await self.on_thread(noted.defer, "1s", 7))
            await self.later(lambda: worker.stats.succeeded == 5)
        ids = {handle.id for handle in handles}
        assert len(ids) == 5
        assert Counter(self.ids()) == dict.fromkeys(ids, 1)
        assert {(run.attempt, run.deferrals) for run in self.runs} == {(1, 0)}
        assert await self.is_empty(backend)

    @pytest.mark.contract(43, 44)
    async def test_a_delay_ends_behind_the_backlog_and_a_deferral_before_it(self) -> None:
        backend = self.serve()
        noted = self.define()
        delayed = await noted.using(delay="1s").aenqueue()
        front = await noted.using(delay="1s", front=True).aenqueue()
        normal = await noted.aenqueue()
        higher = await noted.using(priority=4).aenqueue()
        await self.ready(backend, 4)
        async with self.working(backend, concurrency=1):
            await self.until(lambda: len(self.runs) == 4)
        order = self.ids()
        if self.priorities == "strict":
            rest = [higher.id, normal.id]
            rest.insert(0 if self.held_level() > 4 else 2, delayed.id)
            assert order == [front.id, *rest]
        assert sorted(order) == sorted([front.id, higher.id, normal.id, delayed.id])
        assert order.index(front.id) < order.index(normal.id) or self.priorities == "none"

    @pytest.mark.contract(45)
    async def test_nothing_touches_a_backend_before_the_first_job(self) -> None:
        backend = self.install(self.make("a"))
        noted = self.define()
        prepared = noted.using(delay="1s", priority=3).prepare(1)
        assert self.is_untouched(backend)
        await self.on_thread(enqueue_many, [prepared, noted.prepare(2)])
        assert not self.is_untouched(backend)
        async with self.working(backend):
            await self.later(lambda: len(self.runs) == 2)

    @pytest.mark.contract(47, 48, 105)
    async def test_what_is_refused_publishes_nothing(self) -> None:
        backend = self.serve("a", "b")
        noted = self.define()
        foreign = self.define(name="tests.foreign", backend="elsewhere")
        with pytest.raises(UnknownQueue, match="nowhere"):
            await noted.using(queue="nowhere").aenqueue()
        with pytest.raises(UnknownBackend, match="elsewhere"):
            await foreign.aenqueue()
        with pytest.raises(InvalidArguments, match="number 1"):
            await noted.aenqueue(object())
        for delay in ("-1s", float("inf"), float("nan")):
            with pytest.raises(InvalidDuration):
                noted.using(delay=delay)
        with pytest.raises(UnknownQueue):
            await self.on_thread(
                enqueue_many, [noted.prepare(), noted.using(queue="nowhere").prepare()]
            )
        for queue in ("a", "b"):
            assert await self.is_empty(backend, queue)

    @pytest.mark.contract(49)
    async def test_what_is_not_stored_has_no_handle(self) -> None:
        backend = self.serve()
        noted = self.define()
        with self.break_storing(backend), pytest.raises(Exception) as refusal:  # noqa: PT011 - any error of the transport
            await noted.aenqueue()
        assert not isinstance(refusal.value, AssertionError)
        kept = await noted.aenqueue()
        async with self.working(backend) as worker:
            await self.until(lambda: worker.stats.succeeded == 1)
        assert self.ids() == [kept.id]

    @pytest.mark.contract(51)
    @pytest.mark.django_db(transaction=True, databases=["default", "stored"])
    async def test_a_transaction_decides_about_its_jobs(self) -> None:
        backend = self.serve()
        noted = self.define()
        ids = []
        atomic = partial(transaction.atomic, using=backend.settings.database)

        def enqueue() -> None:
            try:
                with contextlib.suppress(ZeroDivisionError), atomic():
                    noted.enqueue()
                    raise ZeroDivisionError
                with atomic():
                    ids.append(noted.enqueue().id)
                    with contextlib.suppress(ZeroDivisionError), atomic():
                        noted.enqueue()
                        raise ZeroDivisionError
                    time.sleep(2 * self.silence)
                    assert self.runs == []
            finally:
                connections.close_all()

        async with self.working(backend) as worker:
            await self.on_thread(enqueue)
            await self.until(lambda: worker.stats.succeeded == 1)
        assert self.ids() == ids
        assert await self.is_empty(backend)

    @pytest.mark.contract(10, 52)
    async def test_the_queue_and_delay_of_the_call_win(self) -> None:
        backend = self.serve("a", "b")
        noted = self.define(queue="a")
        began = self.now()
        await noted.using(queue="b", delay="1s").aenqueue()
        async with self.working(backend):
            await self.later(lambda: len(self.runs) == 1)
        assert self.moments[0] - began >= 1
        assert self.runs[0].queue == "b"


class WorkerPart(WorkerHooks):
    """Check how a worker takes jobs, runs them and stops (53-70, 72-79)."""

    @pytest.mark.contract(54)
    async def test_two_functions_under_one_name_keep_a_worker_from_starting(self) -> None:
        backend = self.serve()
        await self.define(name="tests.twice").aenqueue()

        @job(name="tests.twice", queue="a")
        def other() -> None:
            raise AssertionError("which of the two?")

        with pytest.raises(
            InvalidJob, match=r"tests\.twice.*worker_hooks\.py:\d+.*_contract\.py:\d+"
        ):
            await self.burst(backend)
        await self.ready(backend, 1)
        assert self.runs == []

    @pytest.mark.contract(55)
    async def test_a_worker_leaves_other_queues_alone(self) -> None:
        backend = self.serve("a", "b")
        noted = self.define()
        left = [await noted.using(queue="b").aenqueue() for _ in range(2)]
        taken = await noted.aenqueue()
        async with self.working(backend, queues=["a", "a"]) as worker:
            assert [config.name for config in worker.configs] == ["a"]
            await self.until(lambda: worker.stats.succeeded == 1)
            await asyncio.sleep(self.silence)
        assert self.ids() == [taken.id]
        consumer = backend.consume("b", 0)
        got = await self.take_many(consumer, 2)
        assert [item.envelope.job_id for item in got] == [handle.id for handle in left]
        assert {item.deliveries for item in got} == {1}

    @pytest.mark.contract(13)
    async def test_implausible_numbers_mean_the_least(self) -> None:
        backend = self.serve(QueueConfig(name="a", prefetch=-1))
        handle = await self.define().aenqueue()
        async with self.working(backend, concurrency=0) as worker:
            await self.until(lambda: worker.stats.succeeded == 1)
        assert worker.concurrency == 1
        assert self.ids() == [handle.id]

    @pytest.mark.contract(56, 57)
    async def test_ten_run_and_as_many_wait_at_hand(self) -> None:
        backend = self.serve()
        noted = self.define()
        self.gate.clear()
        await self.on_thread(enqueue_many, [noted.prepare() for _ in range(23)])
        async with self.working(backend) as worker:
            await self.until(lambda: len(self.runs) == DEFAULT_CONCURRENCY == 10)
            await self.ready(backend, 23 - 2 * DEFAULT_CONCURRENCY)
            await asyncio.sleep(self.silence)
            assert (len(self.runs), worker.running) == (10, 10)
            assert backend.counts("a").ready == 3
            self.gate.set()
            await self.until(lambda: worker.stats.succeeded == 23)

    @pytest.mark.contract(56)
    async def test_queues_take_turns(self) -> None:
        backend = self.serve(*(QueueConfig(name=name, prefetch=10) for name in "ab"))
        noted = self.define()
        self.gate.clear()
        for queue in "ab":
            jobs = [noted.using(queue=queue).prepare() for _ in range(4)]
            await self.on_thread(enqueue_many, jobs)
        async with self.working(backend, concurrency=1) as worker:
            for queue in "ab":
                await self.ready(backend, 0, queue)
            await asyncio.sleep(self.silence)
            self.gate.set()
            await self.until(lambda: worker.stats.succeeded == 8)
        queues = [run.queue for run in self.runs[1:7]]
        assert queues in (["a", "b"] * 3, ["b", "a"] * 3)

    @pytest.mark.contract(57, 61)
    @pytest.mark.parametrize("kind", ["sync", "async"])
    async def test_no_more_run_at_once_than_allowed_even_after_a_timeout(self, kind: str) -> None:
        backend = self.serve()
        meter = Meter()

        def run_sync(long: bool) -> None:
            with meter:
                for _ in range(3_000 if long else 1):
                    time.sleep(0.01)

        async def run_async(long: bool) -> None:
            with meter:
                await asyncio.sleep(30 if long else 0.01)

        run = run_sync if kind == "sync" else run_async
        made: Any = job(name="tests.run", queue="a", timeout="500ms")(run)
        jobs = [made.prepare(number % 3 == 0) for number in range(12)]
        handles = await self.on_thread(enqueue_many, jobs)
        async with self.working(backend, concurrency=3) as worker:
            await self.until(lambda: worker.stats.succeeded + worker.stats.dead_lettered == 12)
        assert meter.most == 3
        # On a busy machine a short job may be late too.
        letters = await self.dead(backend, worker.stats.dead_lettered)
        late = {letter.envelope.job_id for letter in letters}
        assert {handle.id for handle in handles[::3]} <= late
        assert {letter.cause for letter in letters} == {"exhausted"}
        assert all("timed out after 500 ms" in letter.reason for letter in letters)

    @pytest.mark.contract(57, 61)
    async def test_a_thread_that_does_not_return_ends_the_worker(self) -> None:
        backend = self.serve()
        noted = self.define(timeout="50ms")
        self.gate.clear()
        stuck = await noted.aenqueue()
        left = await noted.aenqueue()
        with mock.patch.object(executor_module, "GRACE", 0.1):
            worker = self.worker_class(backend, concurrency=1)
            await asyncio.wait_for(worker.run(), self.patience)
        assert worker.recycled
        assert self.ids() == [stuck.id]
        (letter,) = await self.dead(backend)
        assert (letter.envelope.job_id, letter.cause) == (stuck.id, "exhausted")
        assert "timed out after 50 ms" in letter.reason
        self.gate.set()
        async with self.working(backend):
            await self.until(lambda: self.ids() == [stuck.id, left.id])

    @pytest.mark.contract(58, 108, 110)
    async def test_an_unknown_job_is_held_uncounted_until_its_grace_is_over(self) -> None:
        config = QueueConfig(name="a", retry=RetryPolicy.parse(5))
        backend = self.serve(config, unknown_job_grace=0.4)
        late = await self.publish(backend, make_envelope(job="tests.late", kwargs={}))
        never = await self.publish(backend, make_envelope(job="tests.never"))
        told: list[dict[str, Any]] = []
        with override_settings(JOBQ_ON_DEAD_LETTER=lambda **kwargs: told.append(kwargs)):
            async with self.working(backend) as worker:
                await self.until(lambda: worker.stats.held == 2)
                self.define(name="tests.late")
                await self.later(lambda: worker.stats.dead_lettered + len(self.runs) == 2)
        assert self.ids() == [late.job_id]
        assert (self.runs[0].attempt, self.runs[0].deferrals) == (1, 0)
        (letter,) = await self.dead(backend)
        assert (letter.envelope.job_id, letter.cause) == (never.job_id, "no_handler")
        assert letter.attempts == 0
        assert "tests.never" in letter.reason
        assert [(call["cause"], call["max_attempts"]) for call in told] == [("no_handler", None)]

    @pytest.mark.contract(58)
    async def test_without_grace_an_unknown_job_is_filed_at_once(self) -> None:
        backend = self.serve(unknown_job_grace=0)
        await self.publish(backend, make_envelope(job="tests.never"))
        async with self.working(backend) as worker:
            await self.until(lambda: worker.stats.dead_lettered == 1)
            assert worker.stats.held == 0
        assert [letter.cause for letter in await self.dead(backend)] == ["no_handler"]

    @pytest.mark.contract(59, 108, 119)
    async def test_what_does_not_decode_is_filed_and_stalls_nothing(self) -> None:
        backend = self.serve(QueueConfig(name="a", retry=RetryPolicy.parse(5)))
        noted = self.define()
        bodies = [b"", b"\x80\x02", b"[]", b'{"job', b"{}", b'{"job": "tests.job"}']
        for body in bodies:
            await self.inject(backend, "a", body)
        good = await noted.aenqueue()
        async with self.working(backend, concurrency=1) as worker:
            await self.until(lambda: worker.stats.succeeded == 1)
            await self.until(lambda: worker.stats.dead_lettered == len(bodies))
        assert self.ids() == [good.id]
        letters = await self.dead(backend, len(bodies))
        assert [letter.body for letter in letters] == bodies
        assert {(letter.cause, letter.envelope) for letter in letters} == {("decode", None)}
        assert all(letter.reason.startswith("malformed envelope") for letter in letters)
        assert worker.stats.retried == 0

    @pytest.mark.contract(60)
    @pytest.mark.parametrize("error", [ValueError("oh"), SystemExit(3), asyncio.CancelledError()])
    async def test_a_failure_is_retried_and_the_next_job_runs(self, error: BaseException) -> None:
        backend = self.serve()

        def explode(context: JobContext) -> None:
            raise error

        bad = await self.define(explode, succeed, retry={**SOON, "max_attempts": 2}).aenqueue()
        good = await self.define(name="tests.good").aenqueue()
        async with self.working(backend, concurrency=1) as worker:
            await self.later(lambda: worker.stats.succeeded == 2)
        assert self.ids() == [bad.id, good.id, bad.id]
        assert worker.stats.retried == 1

    @pytest.mark.contract(62, 63)
    async def test_shutdown_before_run_takes_nothing(self) -> None:
        backend = self.serve()
        await self.define().aenqueue()
        worker = self.worker_class(backend)
        for _ in range(3):
            worker.shutdown()
        await asyncio.wait_for(worker.run(), self.patience)
        worker.shutdown()
        await self.ready(backend, 1)
        assert self.runs == []

    @pytest.mark.contract(63, 64, 65, 66)
    async def test_shutdown_ends_what_runs_and_hands_back_the_rest(self) -> None:
        backend = self.serve()
        noted = self.define()
        self.gate.clear()
        handles = await self.on_thread(enqueue_many, [noted.prepare() for _ in range(12)])
        worker = self.worker_class(backend, concurrency=2)
        task = asyncio.create_task(worker.run())
        await self.until(lambda: len(self.runs) == 2)
        for _ in range(3):
            worker.shutdown()
        handles.append(await noted.aenqueue())
        done, _ = await asyncio.wait({task}, timeout=2 * self.silence)
        assert not done, "running jobs were not waited for"
        self.gate.set()
        stats = await asyncio.wait_for(task, self.patience)
        assert (stats.succeeded, len(self.runs)) == (2, 2)
        await self.ready(backend, 11)
        left = await self.take_many(backend.consume("a", 0), 11)
        settled, still = set(self.ids()), {item.envelope.job_id for item in left}
        assert settled | still == {handle.id for handle in handles}
        assert settled & still == set()
        assert {item.envelope.attempt for item in left} == {1}

    @pytest.mark.contract(29, 65)
    async def test_what_runs_beyond_the_deadline_is_handed_back_uncounted(self) -> None:
        backend = self.serve()
        noted = self.define(retry={**AT_ONCE, "max_attempts": 5})
        self.gate.clear()
        handle = await noted.aenqueue()
        worker = self.worker_class(backend, shutdown_timeout=0.1)
        task = asyncio.create_task(worker.run())
        await self.until(lambda: len(self.runs) == 1)
        worker.shutdown()
        stats = await asyncio.wait_for(task, self.patience)
        assert (stats.succeeded, worker.abandoned) == (0, 1)
        self.gate.set()
        async with self.working(backend) as next_worker:
            await self.until(lambda: next_worker.stats.succeeded == 1)
        assert [(run.job_id, run.attempt) for run in self.runs] == [(handle.id, 1)] * 2

    @pytest.mark.contract(67, 68)
    @pytest.mark.parametrize("held", [False, True])
    async def test_an_idle_worker_stops_soon_and_leaves_the_backend_usable(
        self, held: bool
    ) -> None:
        backend = self.serve()
        noted = self.define()
        if held:
            await noted.using(delay="1h").aenqueue()
        async with self.working(backend) as worker:
            await noted.aenqueue()
            await self.until(lambda: worker.stats.succeeded == 1)
            began = time.monotonic()
        assert time.monotonic() - began < 5
        await noted.aenqueue()
        async with self.working(backend) as another:
            await self.until(lambda: another.stats.succeeded == 1)

    @pytest.mark.contract(69, 116)
    @pytest.mark.parametrize("how", ["retry", "dead letter"])
    async def test_a_settle_that_fails_stops_nothing_and_loses_nothing(self, how: str) -> None:
        backend = self.serve("a", "b")
        # One that repeats its settling would hold the job for a minute before it hands it back.
        backend.settle_patience = 0  # type: ignore[misc]
        attempts = 2 if how == "retry" else 1
        failing = self.define(fail, retry={**AT_ONCE, "max_attempts": attempts})
        other = self.define(name="tests.other", queue="b")
        self.gate.clear()
        handle = await failing.aenqueue()
        with captured("django_jobq.worker") as records, quick_pauses():
            async with self.working(backend, concurrency=1) as worker:
                await self.until(lambda: len(self.runs) == 1)
                await other.aenqueue()
                with self.break_storing(backend) if how == "retry" else self.break_filing(backend):
                    self.gate.set()
                    await self.until(lambda: worker.stats.settle_failures > 0)
                    assert worker.stats.dead_lettered == worker.stats.retried == 0
                    await self.until(lambda: worker.stats.succeeded == 1)
                await self.until(lambda: worker.stats.dead_lettered == 1)
        levels = {
            item.levelno for item in records if item.getMessage().startswith("Settling a job")
        }
        assert levels == {logging.ERROR}
        (letter,) = await self.dead(backend)
        assert (letter.envelope.job_id, letter.attempts) == (handle.id, attempts)
        assert self.ids().count(handle.id) > attempts
        assert await self.is_empty(backend)

    @pytest.mark.contract(70)
    async def test_a_consumer_that_ends_ends_the_worker_after_draining(self) -> None:
        backend = self.serve()
        ended: list[Any] = []
        noted = self.define(lambda context: ended.append(context.job_id))
        self.gate.clear()
        handle = await noted.aenqueue()
        task = asyncio.create_task(self.worker_class(backend).run())
        await self.until(lambda: len(self.runs) == 1)
        await self.on_thread(backend.close)
        done, _ = await asyncio.wait({task}, timeout=2 * self.silence)
        assert not done, "the running job was not waited for"
        self.gate.set()
        with pytest.raises(ConsumerStopped, match="'a'") as stopped:
            await asyncio.wait_for(task, self.patience + 5)
        assert stopped.value.queue == "a"
        assert ended == [handle.id]

    @pytest.mark.contract(72)
    async def test_a_burst_runs_what_is_due_and_counts_it(self) -> None:
        backend = self.serve()
        chain = self.define(name="tests.chain")
        once_more = [chain.prepare() for _ in range(3)]
        first = self.define(lambda _: enqueue_many(once_more), name="tests.first")
        jobs = [
            first,
            self.define(fail, name="tests.retried", retry={"delay": "1h", "backoff": "fixed"}),
            self.define(wait("1h"), name="tests.deferred"),
            self.define(give_up, name="tests.dead"),
            chain.using(delay="1h"),
        ]
        await self.on_thread(enqueue_many, [made.prepare() for made in jobs])
        stats = await self.burst(backend, concurrency=2)
        told = (stats.succeeded, stats.retried, stats.deferred, stats.dead_lettered)
        assert told == (4, 1, 1, 1)
        assert len(self.runs) == 7
        assert (await self.burst(backend)) == WorkerStats()

    @pytest.mark.contract(73)
    async def test_max_jobs_counts_attempts_and_leaves_the_rest(self) -> None:
        backend = self.serve()
        failing = self.define(fail, succeed, retry={**AT_ONCE, "max_attempts": 9}, priority=5)
        await self.on_thread(enqueue_many, [failing.prepare() for _ in range(6)])
        worker = self.worker_class(backend, max_jobs=4, concurrency=2)
        stats = await asyncio.wait_for(worker.run(), self.patience)
        assert len(self.runs) == stats.retried + stats.succeeded == 4
        await self.ready(backend, 6 - stats.succeeded)

    @pytest.mark.contract(30, 53, 74)
    async def test_several_workers_run_each_job_once(self) -> None:
        backend = self.serve()
        noted = self.define()
        handles = await self.on_thread(enqueue_many, [noted.prepare() for _ in range(60)])
        async with contextlib.AsyncExitStack() as stack:
            workers = [
                await stack.enter_async_context(self.working(backend, concurrency=2))
                for _ in range(3)
            ]
            await self.until(lambda: sum(worker.stats.succeeded for worker in workers) == 60)
        assert Counter(self.ids()) == {handle.id: 1 for handle in handles}
        assert await self.is_empty(backend)


class RetryPart(WorkerHooks):
    """Check what a failure comes to (50, 77-82, 87-88, 91-93)."""

    @pytest.mark.contract(31, 50, 77, 79, 80, 97, 98, 101, 107, 108, 109)
    async def test_a_job_keeps_what_it_is_over_deferral_retry_and_death(self) -> None:
        backend = self.serve(QueueConfig(name="a", retry=RetryPolicy.parse(7)))
        troubled = self.define(wait("1s"), fail, retry={**SOON, "max_attempts": 2})
        began = time.time()
        handle = await troubled.using(priority=3, correlation_id="order 7").aenqueue(1, text="é")
        async with self.working(backend) as worker:
            await self.later(lambda: worker.stats.dead_lettered == 1)
        seen = [(run.attempt, run.deferrals, run.is_last_attempt) for run in self.runs]
        assert seen == [(1, 0, False), (1, 1, False), (2, 1, True)]
        told = {
            (run.job_id, run.job, run.queue, run.max_attempts, run.priority, run.correlation_id)
            for run in self.runs
        }
        assert told == {(handle.id, "tests.job", "a", 2, 3, "order 7")}
        enqueued_at = {run.enqueued_at or 0 for run in self.runs}
        assert len(enqueued_at) == 1
        assert began - 1 <= enqueued_at.pop() / 1000 <= time.time()
        assert all(run.age > dt.timedelta(0) for run in self.runs)
        assert self.moments[1] - self.moments[0] >= 1
        assert self.moments[2] - self.moments[1] >= 1
        (letter,) = await self.dead(backend)
        envelope = letter.envelope
        assert (envelope.job_id, envelope.correlation_id) == (handle.id, "order 7")
        assert (envelope.attempt, envelope.deferrals, envelope.priority) == (2, 1, 3)
        assert (envelope.args, envelope.kwargs) == ([1], {"text": "é"})
        assert (letter.cause, letter.attempts, letter.queue) == ("exhausted", 2, "a")
        assert letter.reason.startswith("gave up after attempt 2 of 2: ")
        assert "no luck in attempt 2" in letter.reason
        assert began - 1 <= letter.died_at <= time.time() + 1

    @pytest.mark.contract(79)
    async def test_the_age_grows_over_retries_and_deferrals(self) -> None:
        backend = self.serve()
        ages: list[dt.timedelta] = []

        def note_age(context: JobContext) -> None:
            ages.append(context.age)
            time.sleep(0.01)
            if context.deferrals == 0:
                raise Defer("0s")
            fail(context)

        await self.define(note_age, retry={**AT_ONCE, "max_attempts": 2}).aenqueue()
        async with self.working(backend) as worker:
            await self.until(lambda: worker.stats.dead_lettered == 1)
        assert len(ages) == 3
        assert dt.timedelta(0) <= ages[0] < ages[1] < ages[2]

    @pytest.mark.contract(80, 81, 82, 87, 88, 109)
    @pytest.mark.parametrize(
        ("of_call", "of_job", "of_queue", "attempts"),
        [
            (2, 3, 4, 2),
            (None, 3, 4, 3),
            (None, None, 4, 4),
            (None, None, None, 1),
            (None, {}, None, 3),
        ],
    )
    async def test_the_nearest_policy_counts_the_attempts(
        self,
        of_call: int | None,
        of_job: int | dict[str, Any] | None,
        of_queue: int | None,
        attempts: int,
    ) -> None:
        def policy(given: int | dict[str, Any] | None) -> dict[str, Any] | None:
            if isinstance(given, int):
                return {**AT_ONCE, "max_attempts": given}
            return None if given is None else {**AT_ONCE, **given}

        configured = policy(of_queue)
        config = QueueConfig(name="a", retry=configured and RetryPolicy.parse(configured))
        backend = self.serve(config)
        failing = self.define(fail, retry=policy(of_job)).using(retry=policy(of_call))
        await failing.aenqueue()
        async with self.working(backend) as worker:
            await self.until(lambda: worker.stats.dead_lettered == 1)
        assert worker.stats.retried == attempts - 1
        assert [run.attempt for run in self.runs] == list(range(1, attempts + 1))
        assert {run.max_attempts for run in self.runs} == {attempts}
        (letter,) = await self.dead(backend)
        assert (letter.cause, letter.attempts) == ("exhausted", attempts)
        assert f"attempt {attempts} of {attempts}: " in letter.reason

    @pytest.mark.contract(91, 101)
    async def test_a_retry_returns_at_its_own_priority(self) -> None:
        backend = self.serve(QueueConfig(name="a", prefetch=1))
        failing = self.define(fail, succeed, retry={**AT_ONCE, "max_attempts": 2})
        noted = self.define(self.let_come_back, name="tests.other")
        self.gate.clear()
        first = await self.on_thread(failing.using(priority=2).defer, "0s")
        async with self.working(backend, concurrency=1) as worker:
            await self.until(lambda: len(self.runs) == 1)
            lower = await noted.using(priority=1).aenqueue()
            higher = await noted.using(priority=3).aenqueue()
            await self.ready(backend, 2)
            self.gate.set()
            await self.until(lambda: worker.stats.succeeded == 3)
        order = self.ids()
        assert sorted(order) == sorted([first.id, higher.id, first.id, lower.id])
        if self.priorities == "strict":
            assert order == [first.id, higher.id, first.id, lower.id]
        assert {run.priority for run in self.runs if run.job_id == first.id} == {2}

    @pytest.mark.contract(10, 92)
    async def test_a_retry_is_never_early(self) -> None:
        backend = self.serve()
        failing = self.define(fail, succeed, retry={"delay": "1100ms", "backoff": "fixed"})
        await failing.aenqueue()
        async with self.working(backend) as worker:
            await self.later(lambda: worker.stats.succeeded == 1)
        assert self.moments[1] - self.moments[0] >= 1.1

    @pytest.mark.contract(93, 108, 118)
    async def test_fatal_gives_up_on_the_first_of_many_attempts(self) -> None:
        backend = self.serve(QueueConfig(name="a", retry=RetryPolicy.parse(5)))

        def give_up_at_length(context: JobContext) -> None:
            raise Fatal("x" * 300_000)

        await self.define(give_up_at_length, retry={**AT_ONCE, "max_attempts": 5}).aenqueue()
        async with self.working(backend) as worker:
            await self.until(lambda: worker.stats.dead_lettered == 1)
        assert len(self.runs) == 1
        (letter,) = await self.dead(backend)
        assert (letter.cause, letter.attempts) == ("fatal", 1)
        assert letter.reason.startswith("xxx")
        assert letter.reason.endswith("… [300,000 characters]")


class DeferralPart(WorkerHooks):
    """Check what a deferral comes to (44, 97-106)."""

    @pytest.mark.contract(98, 99)
    async def test_any_number_of_deferrals_costs_no_attempt_and_asks_no_policy(self) -> None:
        backend = self.serve()
        patient = self.define(*[wait("0s")] * 6, succeed, retry={"max_attempts": 1})
        await patient.using(retry={"max_attempts": 1}).aenqueue()
        async with self.working(backend) as worker:
            await self.until(lambda: worker.stats.succeeded == 1)
        assert [(run.attempt, run.deferrals) for run in self.runs] == [(1, n) for n in range(7)]
        assert worker.stats.deferred == 6
        assert worker.stats.retried == worker.stats.dead_lettered == 0
        assert await self.dead_letters(backend, "a") == []

    @pytest.mark.contract(32, 97, 100)
    async def test_a_deferred_job_overtakes_what_was_enqueued_meanwhile(self) -> None:
        backend = self.serve(QueueConfig(name="a", prefetch=1))
        noted = self.define(self.let_come_back, name="tests.other")
        self.gate.clear()
        first = await self.define(wait("0s"), succeed).aenqueue()
        async with self.working(backend, concurrency=1) as worker:
            await self.until(lambda: len(self.runs) == 1)
            later = [await noted.using(priority=4).aenqueue() for _ in range(2)]
            await self.ready(backend, 2)
            self.gate.set()
            await self.until(lambda: worker.stats.succeeded == 3)
        order = self.ids()
        assert Counter(order) == {first.id: 2, later[0].id: 1, later[1].id: 1}
        if self.priorities != "none":
            assert order[-1] != first.id
            assert order[:2] == [first.id, first.id] or not self.comes_back_at_once

    @pytest.mark.contract(44, 102)
    async def test_without_levels_a_deferred_job_still_returns(self) -> None:
        backend = self.serve(QueueConfig(name="a", max_priority=0, prefetch=1))
        noted = self.define(name="tests.other")
        self.gate.clear()
        first = await self.define(wait("0s"), succeed).aenqueue()
        async with self.working(backend, concurrency=1) as worker:
            await self.until(lambda: len(self.runs) == 1)
            other = await noted.aenqueue()
            await self.ready(backend, 1)
            self.gate.set()
            await self.until(lambda: worker.stats.succeeded == 2)
        assert self.ids() == [first.id, other.id, first.id]
        assert {run.priority for run in self.runs} == {0}

    @pytest.mark.contract(103, 104, 106)
    async def test_a_hold_outlives_its_worker_and_is_told_as_a_deferral(self) -> None:
        backend = self.serve()
        told: list[str] = []
        receivers = {
            name: lambda name=name, **_: told.append(name)
            for name in ("job_deferred", "job_retried", "job_dead_lettered")
        }
        for name, receiver in receivers.items():
            getattr(signals, name).connect(receiver)
        handle = await self.define(wait("1s"), succeed).aenqueue()
        with captured("django_jobq.jobs") as records:
            async with self.working(backend) as worker:
                await self.until(lambda: worker.stats.deferred == 1)
        for name, receiver in receivers.items():
            getattr(signals, name).disconnect(receiver)
        assert told == ["job_deferred"]
        assert [record.levelno for record in records] == [logging.INFO]
        (record,) = records
        assert "deferred for 1 s, for the 1st time: deferred" in record.getMessage()
        assert record.__dict__["job_id"] == handle.id
        async with self.working(backend) as another:
            await self.later(lambda: another.stats.succeeded == 1)
        assert [(run.job_id, run.deferrals) for run in self.runs] == [
            (handle.id, 0),
            (handle.id, 1),
        ]
        assert self.moments[1] - self.moments[0] >= 1

    @pytest.mark.contract(105)
    async def test_a_negative_delay_is_none_and_an_impossible_one_is_a_failure(self) -> None:
        backend = self.serve()
        past = dt.timedelta(seconds=-5)
        delays = iter([past, "-5", "nan", "inf"])

        def defer(context: JobContext) -> None:
            raise Defer(next(delays))

        failing = self.define(defer, retry={**AT_ONCE, "max_attempts": 3})
        await failing.using(delay=past).aenqueue()
        async with self.working(backend) as worker:
            await self.until(lambda: worker.stats.dead_lettered == 1)
        assert (worker.stats.deferred, worker.stats.retried) == (1, 2)
        assert [(run.attempt, run.deferrals) for run in self.runs] == [
            (1, 0),
            (1, 1),
            (2, 1),
            (3, 1),
        ]
        (letter,) = await self.dead(backend)
        assert "InvalidDuration" in letter.reason


class DeadLetterPart(WorkerHooks):
    """Check the hook and the place of dead letters (107-113, 116)."""

    @pytest.mark.contract(110, 111, 116)
    async def test_the_hook_is_told_everything_before_the_job_is_filed(self) -> None:
        backend = self.serve()
        told: list[dict[str, Any]] = []

        def hook(**kwargs: Any) -> None:
            told.append({**kwargs, "filed": asyncio.run(self.dead_letters(backend, "a"))})

        failing = self.define(fail, retry={**AT_ONCE, "max_attempts": 2})
        with override_settings(JOBQ_ON_DEAD_LETTER=hook):
            handle = await failing.aenqueue()
            async with self.working(backend) as worker:
                await self.until(lambda: worker.stats.dead_lettered == 1)
        (call,) = told
        (letter,) = await self.dead(backend)
        assert call["filed"] == []
        assert call["envelope"].job_id == handle.id
        assert call["cause"] == letter.cause == "exhausted"
        assert call["reason"] == letter.reason
        assert call["max_attempts"] == 2
        assert await self.is_empty(backend)

    @pytest.mark.contract(112)
    async def test_a_hook_that_raises_changes_nothing(self) -> None:
        backend = self.serve()
        hook = mock.Mock(side_effect=RuntimeError("the hook is broken"))
        with (
            captured("django_jobq.worker") as records,
            override_settings(JOBQ_ON_DEAD_LETTER=lambda **kwargs: hook(**kwargs)),
        ):
            await self.define(give_up).aenqueue()
            async with self.working(backend) as worker:
                await self.until(lambda: worker.stats.dead_lettered == 1)
        hook.assert_called_once()
        assert worker.stats.settle_failures == 0
        (letter,) = await self.dead(backend)
        assert (letter.cause, letter.reason) == ("fatal", "hopeless")
        assert any(item.exc_info and "JOBQ_ON_DEAD_LETTER" in item.getMessage() for item in records)

    @pytest.mark.contract(113)
    async def test_the_hook_is_for_dead_letters_alone(self) -> None:
        backend = self.serve()
        told: list[Any] = []
        winding = self.define(wait("0s"), fail, succeed, retry={**AT_ONCE, "max_attempts": 2})
        with override_settings(JOBQ_ON_DEAD_LETTER=lambda **kwargs: told.append(kwargs)):
            await winding.aenqueue()
            async with self.working(backend) as worker:
                await self.until(lambda: worker.stats.succeeded == 1)
        assert (worker.stats.deferred, worker.stats.retried) == (1, 1)
        assert told == []


class WorkerContract(ProducerPart, WorkerPart, RetryPart, DeferralPart, DeadLetterPart):
    """Check producer and worker together."""
