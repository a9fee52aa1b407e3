"""What differs by version: what a worker says of it, and long jobs that a broker takes back."""

import asyncio
import logging
from collections.abc import Iterator

import pytest

from django_jobq.backends.rabbitmq.topology import QueueType
from django_jobq.backends.rabbitmq.versions import shortcoming
from tests.backends.rabbitmq.support import (
    BackendFactory,
    Runs,
    messages,
    send,
    until,
    wait_until,
    working,
)
from tests.broker import PrivateNode
from tests.lane import lane


class TestVersions:
    backend_name = "rabbitmq"

    @pytest.mark.parametrize(
        ("queue_type", "version", "text"),
        [
            ("classic", "3.10.8", None),
            ("classic", "4.0.5", None),
            ("quorum", "3.10.8", "no priorities"),
            ("quorum", "3.13.7", "no priorities"),
            ("quorum", "4.0.5", "two classes"),
            ("quorum", "4.2.0-rc.1", "two classes"),
            ("quorum", "4.3.0", None),
            ("quorum", "4.10", None),
            ("quorum", "5.0.0+build.7", None),
            ("quorum", "4", "two classes"),
            ("quorum", "", None),
        ],
    )
    def test_what_a_version_lacks(
        self, queue_type: QueueType, version: str, text: str | None
    ) -> None:
        told = shortcoming(queue_type, version)
        assert (told is None) == (text is None)
        if text is not None:
            assert text in told
            assert version in told

    async def test_a_worker_says_at_its_start_that_priorities_do_nothing(
        self, make: BackendFactory, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        backend = make("a", "b")
        async with working(backend):
            await until(lambda: caplog.text.count("Consuming from") == 1)
            await until(lambda: all(consumer._session for consumer in backend._consumers))
        told = [r.getMessage() for r in caplog.records if "priorit" in r.getMessage()]
        expected = {"strict": 0, "two classes": 1, "none": 1}
        assert len(told) == expected[lane(make.url).priorities]
        if told and lane(make.url).priorities == "none":
            assert "knows no priorities on quorum queues" in told[0]


class TestConsumerTimeout:
    backend_name = "rabbitmq"

    @pytest.fixture
    def impatient(self, node: PrivateNode) -> Iterator[PrivateNode]:
        """Return a node that takes back after two seconds what nobody has settled."""

        def change(timeout: int, tick: int) -> None:
            for name, value in (("consumer_timeout", timeout), ("channel_tick_interval", tick)):
                node.eval(f"application:set_env(rabbit, {name}, {value}).")

        change(2_000, 500)
        yield node
        change(1_800_000, 60_000)

    @pytest.mark.slow
    @pytest.mark.contract(153)
    async def test_a_job_that_takes_longer_and_one_that_waits_behind_it_run_once(
        self, impatient: PrivateNode, on_node: BackendFactory, runs: Runs
    ) -> None:
        backend = on_node("a")
        runs.job()
        runs.gate.clear()
        sent = await asyncio.to_thread(send, backend, 2)
        async with working(backend, concurrency=1):
            await until(lambda: runs.started)
            (consumer,) = backend._consumers
            session = consumer._session
            if lane(impatient.url).times_out_jobs:
                for _ in range(3):
                    await until(lambda seen=session: consumer._session not in (seen, None))
                    session = consumer._session
            else:
                await asyncio.sleep(6)
                assert consumer._session is session
            runs.gate.set()
            name = backend.topology.work_queue(backend.queue("a"))
            await asyncio.to_thread(wait_until, lambda: not messages(impatient, name))
            await until(lambda: len(consumer._sessions) == 1)
        assert runs.started == {envelope.job_id: 1 for envelope in sent}
