"""Trials of queues on the broker: changed, migrated, looked at, and counted by the broker."""

import asyncio
import re
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from django_jobq import JobContext, job
from django_jobq.backends.rabbitmq import RabbitMQBackend
from django_jobq.exceptions import TopologyMismatch
from django_jobq.queues import QueueConfig
from tests.backends.contract import make_envelope
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
from tests.backends.rabbitmq.trials.live import Live


class TestMismatch:
    backend_name = "rabbitmq"

    @pytest.mark.contract(148)
    def test_b65_the_command_names_the_queue_and_the_way_out(
        self, make_apart: BackendFactory, tmp_path: Path
    ) -> None:
        """A worker on a changed queue and a healthy one ends with one message and loses nothing."""
        backend = make_apart("a", "healthy")
        queue = backend.topology.work_queue(backend.queue("a"))
        with channel(make_apart.url) as ch:
            ch.queue_declare(queue, durable=True, arguments={"x-queue-type": "classic"})
        sent = send(backend, 3, queue="healthy")
        with pytest.raises(TopologyMismatch, match="revision"):
            send(backend, 1)
        with WorkerProcess(backend, tmp_path) as process:
            assert process.wait() == 1
            assert "Traceback" not in process.output
            (line,) = [text for text in process.output.splitlines() if "CommandError" in text]
        # Which of the two arguments is compared first depends on the broker.
        assert re.search(r"x-dead-letter-exchange|x-queue-type", line)
        for expected in (queue, "classic" if "x-queue-type" in line else "none", "revision"):
            assert expected in line
        healthy = backend.topology.work_queue(backend.queue("healthy"))
        assert job_ids(browse(make_apart.url, healthy)) == [item.job_id for item in sent]


class TestRevision:
    """A queue whose arguments change gets another revision, which is another physical queue."""

    backend_name = "rabbitmq"

    @pytest.mark.contract(134)
    async def test_b65_jobs_of_both_revisions_are_processed_under_load(
        self, make_apart: BackendFactory, runs: Runs
    ) -> None:
        """While both releases publish and work, every job runs, and hardly one twice."""
        old = make_apart(QueueConfig(name="a", max_priority=5))
        new = make_apart(QueueConfig(name="a", revision=2))
        runs.job()
        sent: list[uuid.UUID] = []
        publishing = True

        def publish(backend: RabbitMQBackend) -> None:
            while publishing:
                envelope = make_envelope(args=[], kwargs={})
                backend.publish(envelope).result(PATIENCE)
                sent.append(envelope.job_id)

        old_publisher = asyncio.create_task(asyncio.to_thread(publish, old))
        async with working(old, concurrency=3):
            await until(lambda: len(runs.ended) > 50)
            new_publisher = asyncio.create_task(asyncio.to_thread(publish, new))
            async with working(new, concurrency=3):  # both releases run for a while
                seen = len(runs.ended)
                await until(lambda: len(runs.ended) > seen + 100)
                delayed = make_envelope(args=[], kwargs={})
                await asyncio.wrap_future(old.publish(delayed, 1))
                sent.append(delayed.job_id)
                publishing = False
                await old_publisher
                await new_publisher
                await until(lambda: set(runs.ended) == set(sent))
        # In the moment between the new binding and the end of the old one, both queues take a copy.
        twice = [job_id for job_id, number in runs.started.items() if number > 1]
        assert len(twice) <= len(sent) // 20
        assert max(runs.started.values()) <= 2
        for backend in (old, new):
            name = backend.topology.work_queue(backend.queue("a"))
            assert ready(make_apart.url, name) == 0
        assert letters(make_apart.url, old.topology) == []

    @pytest.mark.contract(134)
    async def test_b65_what_the_older_release_left_is_run_by_the_new_one(
        self, make_apart: BackendFactory, runs: Runs
    ) -> None:
        """After a deploy no worker of the older release is there to empty its queue."""
        old = make_apart(QueueConfig(name="a", max_priority=5))
        new = make_apart(QueueConfig(name="a", revision=2))
        runs.job()
        left = await asyncio.to_thread(send, old, 5)
        held = make_envelope(args=[], kwargs={})
        await asyncio.wrap_future(old.publish(held, 1))
        async with working(new):
            sent = await asyncio.to_thread(send, new, 5)
            expected = {envelope.job_id for envelope in (*left, *sent, held)}
            await until(lambda: set(runs.ended) == expected, 5)
        assert set(runs.started.values()) == {1}


class TestLooking:
    """Looking at a queue, with whatever tool, changes nothing in it."""

    backend_name = "rabbitmq"

    @pytest.mark.contract(22)
    def test_b67_counting_and_browsing_often_changes_nothing(
        self, make: BackendFactory, go_live: Callable[..., Live]
    ) -> None:
        """Twenty-five looks neither reorder nor lose a job, and do not count as its starts."""
        live = go_live(make, delivery_limit=2)
        runs: list[tuple[uuid.UUID, int]] = []

        @job(name="trial.seen", takes_context=True)
        def seen(context: JobContext) -> None:
            runs.append((context.job_id, context.attempt))

        sent = [seen.enqueue().id for _ in range(5)]
        for _ in range(25):
            assert job_ids(browse(live.url, live.queue())) == sent
            wait_until(lambda: live.backend.counts("default").ready == 5)
        live.work_until(lambda stats: stats.succeeded + stats.dead_lettered == 5, concurrency=1)
        assert sorted(runs) == sorted((job_id, 1) for job_id in sent)
        assert letters(live.url, live.topology) == []

    @pytest.mark.contract(19)
    async def test_b67_looks_and_deploys_do_not_make_poison_on_a_quorum_queue(
        self, make: BackendFactory
    ) -> None:
        """Where the broker counts deliveries, 25 looks and 25 shutdowns neither drop nor file."""
        backend = make("a", queue_type="quorum")
        (sent,) = await asyncio.to_thread(send, backend, 1)
        queue = backend.topology.work_queue(backend.queue("a"))
        for _ in range(25):
            await until(lambda: job_ids(browse(make.url, queue)) == [sent.job_id])
        for _ in range(25):
            delivery = await self.take(backend)
            assert await delivery.begin()
            await delivery.consumer.stop()
            await delivery.release()
            await delivery.consumer.aclose()
        delivery = await self.take(backend)
        assert delivery.envelope == sent
        assert delivery.starts == 0
        await delivery.ack()
        await delivery.consumer.aclose()

    async def take(self, backend: RabbitMQBackend) -> Any:
        return await asyncio.wait_for(anext(backend.consume("a", 1)), PATIENCE)


def test_b73_a_delayed_job_is_there_before_any_worker_ever_ran(
    make_apart: BackendFactory, go_live: Callable[..., Live]
) -> None:
    """On a vhost without any of our queues, a delayed enqueue alone is enough."""
    live = go_live(make_apart)
    ran: list[int] = []

    @job(name="trial.first")
    def first() -> None:
        ran.append(1)

    first.using(delay="1s").enqueue()
    wait_until(lambda: live.ready() == 1)
    live.work_until(lambda stats: stats.succeeded == 1)
    assert ran == [1]
