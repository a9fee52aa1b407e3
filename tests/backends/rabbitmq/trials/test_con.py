"""Trials of a worker's connection: it comes back by itself, as it was, and loses no outcome."""

import asyncio
import contextlib
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from django_jobq import Defer, Fatal, JobContext, RetryPolicy, job
from django_jobq.exceptions import BackendUnavailable
from tests.backends.contract import make_envelope
from tests.backends.rabbitmq.support import (
    PATIENCE,
    BackendFactory,
    Runs,
    channel,
    messages,
    until,
    wait_until,
    working,
)
from tests.backends.rabbitmq.trials.live import Live
from tests.broker import PrivateNode
from tests.lane import lane
from tests.proxy import Proxy


def consumers(url: str, queue: str) -> int:
    """Return how many consumers a queue has; none if it does not exist."""
    with contextlib.suppress(Exception), channel(url) as ch:
        return int(ch.queue_declare(queue, passive=True).method.consumer_count)
    return 0


class TestOutages:
    backend_name = "rabbitmq"

    @pytest.mark.slow
    @pytest.mark.contract(152)
    # What the client leaves of a connection that failed half-way complains when it is collected.
    @pytest.mark.filterwarnings("ignore:coroutine 'Connection.close' was never awaited")
    @pytest.mark.filterwarnings("ignore:Exception ignored in. <coroutine object Connection.close")
    async def test_b47_the_consumer_is_as_before_after_the_tenth_outage(
        self, proxied: BackendFactory, proxy: Proxy, node: PrivateNode, runs: Runs
    ) -> None:
        backend = proxied("a")
        runs.job()
        queue = backend.topology.work_queue(backend.queue("a"))

        async def works() -> None:
            envelope = make_envelope(args=[], kwargs={})
            while True:  # right after an outage it is refused at once
                with contextlib.suppress(BackendUnavailable):
                    await asyncio.to_thread(lambda: backend.publish(envelope).result(PATIENCE))
                    break
                await asyncio.sleep(0.1)
            await until(lambda: runs.ended[envelope.job_id])
            await until(lambda: consumers(proxied.url, queue) == 1)

        async with working(backend, concurrency=3):
            await works()
            for _ in range(8):
                generation = backend.link().generation
                proxy.cut()
                await until(lambda seen=generation: backend.link().generation > seen)
                await works()
            await asyncio.to_thread(node.ctl, "close_all_connections", "an operator said so")
            await works()
            await asyncio.to_thread(node.ctl, "stop_app")
            await asyncio.to_thread(node.ctl, "start_app")
            await works()
            shown = await asyncio.to_thread(
                node.ctl, "list_consumers", "queue_name", "prefetch_count"
            )
        assert [line.split() for line in shown.splitlines() if queue in line] == [[queue, "6"]]


class TestDeletedQueue:
    """An operator deletes a queue while its jobs run: their outcomes still count."""

    backend_name = "rabbitmq"

    @pytest.mark.contract(26, 27, 28)
    @pytest.mark.parametrize(
        "outcome",
        [
            "retry",
            "defer",
            "dead letter",
            "success",
        ],
    )
    def test_b49_what_a_running_job_comes_to_is_stored(
        self, make_apart: BackendFactory, go_live: Callable[..., Live], outcome: str
    ) -> None:
        live = go_live(make_apart)
        started, gate = threading.Event(), threading.Event()
        runs: list[tuple[int, int]] = []

        @job(name="trial.runs", retry=RetryPolicy.none(2), takes_context=True)
        def running(context: JobContext) -> None:
            runs.append((context.attempt, context.deferrals))
            if len(runs) > 1:
                return
            started.set()
            assert gate.wait(PATIENCE)
            if outcome == "retry":
                raise ValueError
            if outcome == "defer":
                raise Defer("0s")
            if outcome == "dead letter":
                raise Fatal("not this one")

        @job(name="trial.after")
        def after() -> None: ...

        running.enqueue()
        with live.working(concurrency=1) as worker:
            assert started.wait(PATIENCE)
            with channel(live.url) as ch:
                ch.queue_delete(live.queue())
            wait_until(lambda: consumers(live.url, live.queue()) == 1)
            gate.set()
            if outcome in ("retry", "defer"):
                wait_until(lambda: len(runs) == 2)
            if outcome == "dead letter":
                live.letters(1)
            after.enqueue()
            wait_until(lambda: worker.stats.succeeded >= 1)
        expected = {"retry": [(1, 0), (2, 0)], "defer": [(1, 0), (1, 1)]}
        assert runs == expected.get(outcome, [(1, 0)])


class TestAcknowledgementTimeout:
    """A broker takes back what is not acknowledged in its time, with the channel or consumer."""

    backend_name = "rabbitmq"

    @pytest.fixture
    def impatient(self, node: PrivateNode) -> Iterator[None]:
        """Let the node take back what is not acknowledged within a second."""
        node.eval(
            "application:set_env(rabbit, consumer_timeout, 1000),"
            " application:set_env(rabbit, channel_tick_interval, 200)."
        )
        yield
        node.eval(
            "application:set_env(rabbit, consumer_timeout, 1800000),"
            " application:set_env(rabbit, channel_tick_interval, 60000)."
        )

    @pytest.mark.slow
    @pytest.mark.contract(10, 153)
    def test_b79_b111_b113_a_long_job_runs_once_and_disturbs_no_other(
        self,
        impatient: None,
        node: PrivateNode,
        on_node: BackendFactory,
        go_live: Callable[..., Live],
    ) -> None:
        live = go_live(on_node, {"a": {}, "b": {}})
        runs: Counter[uuid.UUID] = Counter()
        times: dict[uuid.UUID, float] = {}
        release = threading.Event()

        @job(name="trial.long", queue="a", takes_context=True)
        def long(context: JobContext) -> None:
            runs[context.job_id] += 1
            assert release.wait(PATIENCE)

        @job(name="trial.short", queue="b", takes_context=True)
        def short(context: JobContext) -> None:
            runs[context.job_id] += 1
            times[context.job_id] = time.time()

        began = time.time()
        delayed = short.using(queue="a", delay="4s").enqueue()
        blocked = long.enqueue()
        with live.working(concurrency=4):
            wait_until(lambda: runs[blocked.id] == 1)
            tag = consumer_tag(node, live.queue("a"))
            others = []
            times_out = lane(node.url).times_out_jobs
            while consumer_tag(node, live.queue("a")) in (tag, None):
                others.append(short.enqueue().id)
                wait_until(lambda: runs[others[-1]] == 1)
                waited = time.time() - began
                assert waited < PATIENCE or not times_out, "the broker did not take it back"
                if waited > 6 and not times_out:
                    break
            assert times_out or consumer_tag(node, live.queue("a")) == tag
            release.set()
            again = short.using(queue="a").enqueue()
            expected = [blocked.id, delayed.id, again.id, *others]
            wait_until(lambda: set(runs) == set(expected))
            wait_until(lambda: not messages(node, live.queue("a")))
        assert times[delayed.id] - began >= 4
        assert runs == Counter(expected)
        assert live.ready("a") == live.ready("b") == 0


def consumer_tag(node: PrivateNode, queue: str) -> str | None:
    """Return the tag of the one consumer of a queue; a consumer that starts over has another."""
    shown = node.ctl("list_consumers", "queue_name", "consumer_tag")
    tags = [line.split("\t")[1] for line in shown.splitlines() if line.startswith(queue + "\t")]
    return tags[0] if tags else None
