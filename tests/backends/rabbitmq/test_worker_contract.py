"""The suite of producer and worker on RabbitMQ, and what only a broker or a process can show."""

import asyncio
import contextlib
import datetime as dt
import re
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pika.exceptions import AMQPError

from django_jobq import enqueue_many
from django_jobq.backends.handler import backends
from django_jobq.backends.rabbitmq import RabbitMQBackend
from django_jobq.context import JobContext
from django_jobq.exceptions import (
    BackendUnavailable,
    ConsumerStopped,
    InvalidDuration,
    PublishFailed,
    TopologyMismatch,
)
from django_jobq.jobs import Job
from django_jobq.queues import QueueConfig
from django_jobq.worker.worker import Worker
from tests.backends.contract import settle
from tests.backends.rabbitmq.support import (
    PATIENCE,
    BackendFactory,
    Runs,
    WorkerProcess,
    browse,
    channel,
    job_ids,
    letters,
    ready,
    send,
    until,
    wait_until,
    working,
)
from tests.backends.rabbitmq_contract import RabbitMQHooks
from tests.backends.worker_contract import WorkerContract
from tests.broker import PrivateNode, free_ports
from tests.proxy import Proxy


class TestWorkerOnRabbitMQ(RabbitMQHooks, WorkerContract):
    """Run the suite on the type of queue under test."""


def install(backend: RabbitMQBackend) -> RabbitMQBackend:
    """Make a backend the one that the producer uses."""
    backends._backends["default"] = backend
    return backend


def declared(backend: RabbitMQBackend) -> RabbitMQBackend:
    backend.declare(backend.queues.values())
    return backend


def work(backend: RabbitMQBackend, queue: str = "a") -> str:
    return backend.topology.work_queue(backend.queue(queue))


@pytest.fixture
def noted(runs: Runs) -> Job[Any, Any]:
    """Return a job of the queue 'a' that counts its runs."""
    return runs.job(queue="a")


class TestProducer:
    backend_name = "rabbitmq"

    @pytest.mark.contract(45)
    def test_the_topology_is_made_sure_of_once_a_process(
        self, make: BackendFactory, noted: Job[Any, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        backend = install(make("a"))
        asked: list[Any] = []
        call = backend._publisher.call
        monkeypatch.setattr(
            backend._publisher,
            "call",
            lambda wanted, *more: asked.append(wanted) or call(wanted, *more),
        )
        enqueue_many([noted.prepare(), noted.using(delay="1h").prepare()])
        noted.enqueue()
        noted.defer("1h")
        assert len(asked) == 1

    @pytest.mark.contract(46)
    @pytest.mark.parametrize("declare", ["check", "never"])
    async def test_without_declaring_everything_works_on_what_exists(
        self, make_apart: BackendFactory, noted: Job[Any, Any], runs: Runs, declare: str
    ) -> None:
        declared(make_apart("a"))
        backend = install(make_apart("a", "missing", declare=declare))
        handles = [
            await noted.aenqueue(),
            await asyncio.to_thread(noted.enqueue_after, "1s"),
            await asyncio.to_thread(noted.defer, "1s"),
        ]
        with pytest.raises(PublishFailed, match="missing"):
            await noted.using(queue="missing").aenqueue()
        async with working(backend, queues=["a"]):
            await until(lambda: len(runs.ended) == 3)
        assert set(runs.ended) == {handle.id for handle in handles}
        with channel(make_apart.url) as ch, pytest.raises(Exception, match="NOT_FOUND"):
            ch.queue_declare(work(backend, "missing"), passive=True)

    @pytest.mark.contract(49, 152)
    def test_an_outage_is_told_and_nothing_is_accepted(
        self, proxied: BackendFactory, proxy: Proxy, noted: Job[Any, Any]
    ) -> None:
        declared(proxied("a"))
        backend = install(proxied("a", publish_timeout="1s", declare="never"))
        noted.enqueue()
        proxy.refuse()
        with pytest.raises(BackendUnavailable):
            noted.enqueue()
        proxy.resume()
        accepted = []

        def enqueued() -> bool:
            with contextlib.suppress(BackendUnavailable):
                accepted.append(noted.enqueue().id)
            return bool(accepted)

        wait_until(enqueued)
        assert accepted[0] in job_ids(browse(proxied.url, work(backend)))

    @pytest.mark.contract(18, 49)
    def test_what_the_client_library_says_is_the_cause(
        self, make: BackendFactory, make_apart: BackendFactory, noted: Job[Any, Any]
    ) -> None:
        (nobody,) = free_ports(1)
        install(make("a", url=f"amqp://guest:guest@127.0.0.1:{nobody}/", publish_timeout="500ms"))

        def cause() -> BaseException | None:
            with pytest.raises(BackendUnavailable) as unreachable:
                noted.enqueue()
            return unreachable.value.__cause__

        # The first one may be late before it is known why.
        wait_until(lambda: isinstance(cause(), AMQPError))
        declared(make_apart(QueueConfig(name="a", message_ttl=3600.0)))
        install(make_apart("a"))
        with pytest.raises(TopologyMismatch) as mismatch:
            noted.enqueue()
        assert isinstance(mismatch.value.__cause__, AMQPError)

    @pytest.mark.contract(140)
    def test_a_delay_beyond_the_ladder_is_accepted_and_one_without_end_is_refused(
        self, make: BackendFactory, noted: Job[Any, Any]
    ) -> None:
        backend = install(declared(make("a")))
        for delay in (dt.timedelta.max, "99999999999999d"):
            with pytest.raises(InvalidDuration):
                noted.using(delay=delay).enqueue()
        handle = noted.using(delay="40d").enqueue()
        top = f"{backend.topology.prefix}.hold.4.f"
        ((properties, body),) = browse(make.url, top)
        assert job_ids([(properties, body)]) == [handle.id]
        due = dt.datetime.now(dt.UTC) + dt.timedelta(days=40)
        assert abs(properties.headers["x-not-before"] / 1000 - due.timestamp()) < 60


def fill(backend: RabbitMQBackend) -> list[Any]:
    """Publish until the broker refuses, and return the ids of what it took."""
    accepted = []
    for _ in range(20):  # the policy reaches the queue a moment after it is set
        try:
            accepted += [envelope.job_id for envelope in send(backend, 1)]
        except PublishFailed:
            return accepted
    pytest.fail("the queue is never full")


class TestFullQueue:
    """Queues that take no more: the broker refuses each publish with a nack."""

    backend_name = "rabbitmq"

    @pytest.fixture
    def full(self, on_node: BackendFactory, node: PrivateNode) -> Iterator[RabbitMQBackend]:
        """Return a backend whose queue 'a' has room for one ready job."""
        backend = install(declared(on_node(QueueConfig(name="a", prefetch=1))))
        definition = '{"max-length": 1, "overflow": "reject-publish"}'
        pattern = f"^{re.escape(work(backend))}$"
        node.ctl("set_policy", "full", pattern, definition, "--apply-to", "queues")
        yield backend
        node.ctl("clear_policy", "full")

    @pytest.mark.contract(49, 147, 149)
    def test_a_nack_is_tried_once_more_and_then_raised(
        self, full: RabbitMQBackend, noted: Job[Any, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kept = fill(full)
        declared_again: list[Any] = []
        call = full._publisher.call
        monkeypatch.setattr(
            full._publisher,
            "call",
            lambda wanted, *more: declared_again.append(wanted) or call(wanted, *more),
        )
        with pytest.raises(PublishFailed, match="nack"):
            noted.enqueue()
        assert len(declared_again) == 1
        assert job_ids(browse(full.settings.url, work(full))) == kept

    @pytest.mark.contract(26, 27, 149)
    @pytest.mark.parametrize("how", ["retry", "defer"])
    async def test_the_original_of_a_refused_successor_stays(
        self, full: RabbitMQBackend, on_node: BackendFactory, how: str
    ) -> None:
        (sent,) = await asyncio.to_thread(send, full, 1)
        consumer = full.consume("a", 1)
        delivery = await asyncio.wait_for(anext(consumer), PATIENCE)
        await asyncio.to_thread(fill, full)
        with pytest.raises(PublishFailed):
            await settle(delivery, how)
        assert not delivery.settled
        await consumer.aclose()
        assert sent.job_id in job_ids(browse(on_node.url, work(full)))


class TestLosingTheChannel:
    backend_name = "rabbitmq"

    @pytest.mark.contract(69, 153)
    async def test_a_late_settle_is_counted_and_its_job_runs_once(
        self, proxied: BackendFactory, proxy: Proxy, noted: Job[Any, Any], runs: Runs
    ) -> None:
        backend = install(proxied("a"))
        runs.gate.clear()
        handle = await noted.aenqueue()
        async with working(backend) as worker:
            await until(lambda: runs.started)
            generation = backend.link().generation
            proxy.cut()
            await until(lambda: backend.link().generation > generation)
            assert worker.running == 1
            runs.gate.set()
            await until(lambda: worker.stats.settle_failures == 1)
            after = await noted.aenqueue()
            await until(lambda: runs.ended[after.id] == 1)
        assert runs.started == {handle.id: 1, after.id: 1}
        assert ready(proxied.url, work(backend)) == 0

    @pytest.mark.contract(69, 149)
    async def test_what_cannot_be_settled_yet_is_settled_later_without_another_run(
        self, make_apart: BackendFactory, runs: Runs
    ) -> None:
        def fail_first(context: JobContext) -> None:
            if context.attempt == 1:
                raise ValueError("no luck")

        declared(make_apart("a"))
        backend = install(make_apart("a", declare="never"))
        made = runs.job(fail_first, queue="a", retry={"max_attempts": 2, "backoff": "none"})
        runs.gate.clear()
        await made.aenqueue()
        async with working(backend) as worker:
            await until(lambda: runs.started)
            with channel(make_apart.url) as ch:
                ch.queue_unbind(work(backend), backend.topology.entrance, "a")
                runs.gate.set()
                await until(lambda: worker.stats.settle_failures >= 2)
                ch.queue_bind(work(backend), backend.topology.entrance, "a")
            await until(lambda: worker.stats.succeeded == 1)
        assert [context.attempt for context in runs.contexts] == [1, 2]
        assert ready(make_apart.url, work(backend)) == 0


class TestGivingUp:
    backend_name = "rabbitmq"

    @pytest.mark.contract(70)
    async def test_a_consumer_that_gives_up_ends_its_worker_after_draining(
        self, make_apart: BackendFactory, runs: Runs
    ) -> None:
        backend = install(declared(make_apart("a", "b")))
        made = runs.job(queue="b")
        runs.gate.clear()
        running = await made.aenqueue()
        task = asyncio.create_task(Worker(backend, shutdown_timeout=20).run())
        await until(lambda: runs.started)
        with channel(make_apart.url) as ch:
            # Another queue under the name: a connection lost is waited for, but not this.
            ch.queue_delete(work(backend))
            ch.queue_declare(work(backend), durable=True)
        done, _ = await asyncio.wait({task}, timeout=3)
        assert not done, "the running job was not waited for"
        runs.gate.set()
        with pytest.raises(ConsumerStopped, match="'a'") as stopped:
            await asyncio.wait_for(task, PATIENCE)
        assert stopped.value.queue == "a"
        assert isinstance(stopped.value.__cause__, TopologyMismatch)
        assert runs.ended == {running.id: 1}
        assert ready(make_apart.url, work(backend, "b")) == 0

    @pytest.mark.contract(70, 152)
    async def test_a_worker_reconnects_by_itself(
        self, proxied: BackendFactory, proxy: Proxy, noted: Job[Any, Any], runs: Runs
    ) -> None:
        backend = install(proxied("a"))
        async with working(backend):
            for number in range(3):
                handle = await noted.aenqueue()
                await until(lambda handle=handle: runs.ended[handle.id])
                generation = backend.link().generation
                proxy.cut()
                await until(lambda before=generation: backend.link().generation > before)
                assert len(runs.ended) == number + 1


class TestProcesses:
    """Worker processes as a supervisor runs them."""

    backend_name = "rabbitmq"

    @pytest.mark.contract(53, 74)
    def test_a_pool_of_processes_runs_each_job_once(
        self, make: BackendFactory, tmp_path: Path
    ) -> None:
        backend = declared(make("a"))
        folders = [tmp_path / str(number) for number in range(3)]
        with contextlib.ExitStack() as stack:
            workers = []
            for folder in folders:
                folder.mkdir()
                process = WorkerProcess(backend, folder, "--concurrency", "2")
                workers.append(stack.enter_context(process))
            wait_until(lambda: all("Consuming from" in worker.output for worker in workers))
            sent = send(backend, 90, job="tests.take", args=[0.02])
            wait_until(lambda: sum(len(worker.noted("ended")) for worker in workers) >= 90)
            for worker in workers:
                worker.signal(signal.SIGTERM)
            assert [worker.wait() for worker in workers] == [0, 0, 0]
        started = Counter(job_id for worker in workers for job_id in worker.noted("started"))
        assert started == {envelope.job_id: 1 for envelope in sent}
        assert all(worker.noted("started") for worker in workers)
        assert ready(make.url, work(backend)) == 0

    @pytest.mark.contract(64, 75)
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_either_signal_lets_what_runs_end(
        self, make: BackendFactory, tmp_path: Path, number: signal.Signals
    ) -> None:
        backend = declared(make(QueueConfig(name="a", prefetch=2)))
        running, waiting = send(backend, 2, job="tests.take", args=[2])
        with WorkerProcess(backend, tmp_path, "--concurrency", "1") as worker:
            wait_until(lambda: worker.noted("started"))
            worker.signal(number)
            assert worker.wait() == 0
        assert worker.noted("started") == worker.noted("ended") == [running.job_id]
        assert job_ids(browse(make.url, work(backend))) == [waiting.job_id]

    @pytest.mark.contract(76)
    def test_a_job_that_kills_its_worker_starts_so_often_and_alone(
        self, make: BackendFactory, tmp_path: Path
    ) -> None:
        limit = 2
        backend = make(QueueConfig(name="a", prefetch=20), delivery_limit=limit)
        beside = send(backend, 2, job="tests.take", args=[1])
        (killer,) = send(backend, 1, job="tests.kill")
        buffered = send(backend, 10, job="tests.take")
        with WorkerProcess(backend, tmp_path, "--concurrency", "3") as worker:
            while not letters(make.url, backend.topology):
                with contextlib.suppress(AssertionError):
                    wait_until(lambda: worker.poll() is not None, 0.3)
                if worker.poll() is not None:
                    assert worker.poll() == -signal.SIGKILL, worker.output
                    worker.start()
            innocents = [envelope.job_id for envelope in (*beside, *buffered)]
            wait_until(lambda: set(worker.noted("ended")) == set(innocents))
            worker.signal(signal.SIGTERM)
            assert worker.wait() == 0
        starts = Counter(worker.noted("started"))
        assert starts[killer.job_id] == limit + 1
        (letter,) = letters(make.url, backend.topology)
        assert (letter.envelope.job_id, letter.cause) == (killer.job_id, "delivery_limit")
        # Two crashes may take what runs beside it: started twice for nothing, a job runs alone.
        assert all(starts[job_id] <= 3 for job_id in innocents)
        assert all(worker.noted("ended").count(job_id) == 1 for job_id in innocents)
        assert ready(make.url, work(backend)) == 0

    @pytest.mark.contract(110, 114, 116)
    def test_the_hook_runs_again_if_the_process_dies_before_the_job_is_filed(
        self, make: BackendFactory, tmp_path: Path
    ) -> None:
        backend = declared(make("a"))
        (sent,) = send(backend, 1, job="tests.fail")
        worker = WorkerProcess(backend, tmp_path)
        worker.set_environment(JOBQ_TEST_HOOK="tests.backends.rabbitmq.jobs.die_in_the_hook")
        with worker:
            assert worker.wait() == -signal.SIGKILL
            assert letters(make.url, backend.topology) == []
            worker.start()
            wait_until(lambda: ready(make.url, backend.topology.dead) == 1)
            worker.signal(signal.SIGTERM)
            assert worker.wait() == 0
        assert worker.noted("told") == [sent.job_id] * 2
        assert worker.noted("started") == [sent.job_id] * 2
        (letter,) = letters(make.url, backend.topology)
        assert (letter.envelope.job_id, letter.cause) == (sent.job_id, "exhausted")
        assert ready(make.url, work(backend)) == 0
