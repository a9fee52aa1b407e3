"""What goes wrong around a worker: the broker, the network, credentials, jobs that kill, signals.

Jobs are counted by id. Whatever disturbs its broker runs on a private node.
"""

import asyncio
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from django_jobq import JobContext, RetryPolicy, job
from django_jobq.backends.rabbitmq import RabbitMQBackend
from django_jobq.envelope import Envelope
from django_jobq.exceptions import AccessRefused, BackendError, BackendUnavailable
from django_jobq.queues import QueueConfig
from django_jobq.worker.worker import Worker
from tests.backends.contract import make_envelope
from tests.backends.rabbitmq.conftest import TLS_NAME
from tests.backends.rabbitmq.support import (
    PATIENCE,
    ROOT,
    BackendFactory,
    Runs,
    WorkerProcess,
    browse,
    everything_about,
    job_ids,
    letters,
    make_settings,
    messages,
    ready,
    send,
    until,
    wait_until,
    working,
)
from tests.broker import PrivateNode
from tests.proxy import Proxy

SECRET = "s3cret"


def work(backend: RabbitMQBackend) -> str:
    return backend.topology.work_queue(backend.queue("a"))


def declare(backend: RabbitMQBackend) -> None:
    backend.declare(backend.queues.values())


async def settled(node: PrivateNode, backend: RabbitMQBackend, left: int = 0) -> None:
    """Wait until the queue 'a' has so few messages, ready and unacknowledged."""
    deadline = time.monotonic() + PATIENCE
    while await asyncio.to_thread(messages, node, work(backend)) > left:
        assert time.monotonic() < deadline, "messages are left"


def seconds_of(call: Callable[[], object]) -> float:
    """Return how long a call takes."""
    began = time.monotonic()
    call()
    return time.monotonic() - began


class WebProcess:
    """Publish in a process of its own: once at the start, once more when it is to finish."""

    def __init__(self, backend: RabbitMQBackend) -> None:
        script = f"""
import django
django.setup()
from django_jobq.backends.rabbitmq import RabbitMQBackend
from django_jobq.exceptions import BackendUnavailable
from tests.backends.contract import make_envelope
from tests.backends.rabbitmq.support import make_settings
settings = make_settings({backend.settings.url!r}, prefix={backend.topology.prefix!r})
backend = RabbitMQBackend(settings)
backend.publish(make_envelope(job="tests.web", args=[], kwargs={{}})).result(30)
backend.clear("a")
print("ready", flush=True)
input()
try:
    backend.publish(make_envelope()).result(30)
except BackendUnavailable:
    print("refused")
"""
        self._process = subprocess.Popen(
            [sys.executable, "-c", script],
            env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"},
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"

    def finish(self) -> float:
        """Let it publish in vain and end by itself; return the seconds that takes."""
        began = time.monotonic()
        output, _ = self._process.communicate("\n", timeout=PATIENCE)
        assert (output, self._process.returncode) == ("refused\n", 0)
        return time.monotonic() - began

    def kill(self) -> None:
        """End it whatever happened."""
        if self._process.poll() is None:
            self._process.kill()
            self._process.communicate()


class Producer(threading.Thread):
    """Publish jobs one after the other, each again until the broker has it."""

    def __init__(self, backend: RabbitMQBackend, number: int, pause: float = 0.0) -> None:
        super().__init__(daemon=True)
        self._backend, self._number, self._pause = backend, number, pause
        self.accepted: list[uuid.UUID] = []
        self.attempts: Counter[uuid.UUID] = Counter()
        self.longest = 0.0

    def run(self) -> None:
        for _ in range(self._number):
            envelope = make_envelope()
            while not self._publish(envelope):
                time.sleep(0.1)
            self.accepted.append(envelope.job_id)
            time.sleep(self._pause)

    def _publish(self, envelope: Envelope) -> bool:
        self.attempts[envelope.job_id] += 1
        began = time.monotonic()
        try:
            self._backend.publish(envelope).result(PATIENCE)
        except BackendUnavailable:
            return False
        finally:
            self.longest = max(self.longest, time.monotonic() - began)
        return True


class TestBrokerOutages:
    backend_name = "rabbitmq"

    @pytest.mark.contract(155)
    async def test_b55_a_worker_waits_for_its_broker_and_says_so(
        self,
        proxied: BackendFactory,
        proxy: Proxy,
        runs: Runs,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        # What exists is declared quickly; the ladder of a new node takes a slow machine seconds.
        await asyncio.to_thread(declare, proxied("a"))
        proxy.refuse()
        backend = proxied("a", publish_timeout="1s")
        runs.job()

        def lines() -> list[logging.LogRecord]:
            return [r for r in caplog.records if "Cannot start yet" in r.getMessage()]

        async with working(backend):
            await until(lambda: len(lines()) >= 2)
            assert all("\n" not in record.getMessage() for record in lines())
            assert not any(record.exc_info for record in lines())
            proxy.resume()
            await until(lambda: backend._publisher._engine._channel is not None)
            (sent,) = await asyncio.to_thread(send, backend, 1)
            await until(lambda: runs.ended[sent.job_id] == 1)

    @pytest.mark.contract(62, 67, 155)
    async def test_a_worker_that_waits_for_its_broker_can_be_stopped(
        self, proxied: BackendFactory, proxy: Proxy, caplog: pytest.LogCaptureFixture
    ) -> None:
        proxy.refuse()
        backend = proxied("a", publish_timeout="500ms")
        worker = Worker(backend)
        task = asyncio.create_task(worker.run())
        await until(lambda: "Cannot start yet" in caplog.text)
        worker.shutdown()
        await asyncio.wait_for(task, 5)

    @pytest.mark.contract(29, 152, 153)
    @pytest.mark.parametrize("how", ["stop", "kill"])
    async def test_b47_a_restarted_broker_loses_no_job_and_cancels_none(
        self, on_node: BackendFactory, node: PrivateNode, runs: Runs, how: str
    ) -> None:
        backend = on_node("a", reconnect_max="1s")
        gate, long_runs = threading.Event(), []

        @job(name="tests.long", queue="a", takes_context=True)
        def long(context: Any) -> None:
            long_runs.append(context.job_id)
            assert gate.wait(120)

        runs.job()
        (running,) = await asyncio.to_thread(send, backend, 1, job="tests.long")
        producer = Producer(backend, 400, pause=0.005)
        async with working(backend, concurrency=5, shutdown_timeout=20):
            await until(lambda: long_runs)
            producer.start()
            await until(lambda: len(producer.accepted) > 50)
            await asyncio.to_thread(getattr(node, how))
            await asyncio.to_thread(node.start)
            await asyncio.to_thread(producer.join, 90)
            await until(lambda: set(producer.accepted) <= set(runs.ended), 90)
            gate.set()
            await settled(node, backend)
        assert len(producer.accepted) == 400
        assert long_runs == [running.job_id]
        # A copy for a publish that was repeated, and one for an ack that did not arrive.
        for job_id, number in runs.started.items():
            assert number <= producer.attempts[job_id] + 1
        assert letters(on_node.url, backend.topology) == []

    @pytest.mark.contract(29, 33, 152)
    async def test_connections_cut_under_load_lose_no_job(
        self, proxied: BackendFactory, proxy: Proxy, node: PrivateNode, runs: Runs
    ) -> None:
        backend = proxied("a")
        runs.job()
        producer = Producer(backend, 500)
        async with working(backend, concurrency=5):
            producer.start()
            for _ in range(5):
                seen = len(runs.ended)
                await until(lambda seen=seen: len(runs.ended) > seen or not producer.is_alive())
                proxy.cut()
            await asyncio.to_thread(producer.join, 60)
            await until(lambda: set(producer.accepted) <= set(runs.ended), 60)
            await settled(node, backend)
        assert len(producer.accepted) == 500
        assert max(runs.started.values()) <= 1 + 5 + max(producer.attempts.values())
        assert letters(proxied.url, backend.topology) == []

    @pytest.mark.contract(33, 152)
    async def test_b51_an_ack_into_a_dead_route_leaves_the_slot_usable(
        self, proxied: BackendFactory, proxy: Proxy, node: PrivateNode, runs: Runs
    ) -> None:
        backend = proxied("a")
        runs.job()
        async with working(backend, concurrency=1):
            for _ in range(3):
                runs.gate.clear()
                (sent,) = await asyncio.to_thread(send, backend, 1)
                await until(lambda sent=sent: runs.started[sent.job_id])
                proxy.stall()
                runs.gate.set()
                await until(lambda sent=sent: runs.ended[sent.job_id])
                await asyncio.sleep(0.1)  # the ack goes into the void
                proxy.cut()
                proxy.resume()
                await settled(node, backend)
                assert runs.started[sent.job_id] <= 2
            (last,) = await asyncio.to_thread(send, backend, 1)
            await until(lambda: runs.ended[last.job_id] == 1)

    @pytest.mark.slow
    @pytest.mark.contract(152)
    async def test_a_route_that_is_silent_is_given_up_by_heartbeats(
        self, proxied: BackendFactory, proxy: Proxy, runs: Runs
    ) -> None:
        backend = proxied.impatient("2s", heartbeat="1s")
        runs.job()
        async with working(backend):
            await asyncio.to_thread(send, backend, 1)
            await until(lambda: runs.ended)
            generation = backend.link().generation
            proxy.stall()
            await until(lambda: backend.link()._failures > 0)
            proxy.resume()
            await until(lambda: backend.link().generation > generation)
            runs.ended.clear()
            producer = Producer(backend, 1)
            producer.start()
            await until(lambda: runs.ended)

    @pytest.mark.slow
    @pytest.mark.contract(153)
    async def test_b53_a_job_that_blocks_the_loop_runs_once(
        self, on_node: BackendFactory, node: PrivateNode
    ) -> None:
        backend = on_node("a", heartbeat="1s")
        started: list[uuid.UUID] = []

        @job(name="tests.blocks", queue="a", takes_context=True, retry=2)
        async def blocks(context: Any) -> None:
            started.append(context.job_id)
            time.sleep(6)  # noqa: ASYNC251 - the fault that is tested

        (sent,) = await asyncio.to_thread(send, backend, 1, job="tests.blocks")
        async with working(backend, shutdown_timeout=20):
            await until(lambda: started)
            await settled(node, backend)
        assert started == [sent.job_id]


class TestMemoryAlarm:
    backend_name = "rabbitmq"

    @pytest.fixture
    def web_process(self, on_node: BackendFactory) -> Iterator[WebProcess]:
        """Return a process of a project that has published to the queue 'a'."""
        process = WebProcess(on_node("a"))
        yield process
        process.kill()

    @pytest.fixture
    def alarm(self, node: PrivateNode) -> Iterator[Any]:
        """Return a switch of the memory alarm, which is off at the end."""

        def switch(*, on: bool) -> None:
            node.ctl("set_vm_memory_high_watermark", "0" if on else "0.4")
            wait_until(lambda: ("memory" in node.eval("rabbit_alarm:get_alarms().")) == on)

        yield switch
        switch(on=False)

    @pytest.mark.slow
    @pytest.mark.contract(26, 69, 147, 154)
    async def test_b39_b91_a_minute_of_alarm_costs_no_job_and_no_request_its_deadline(
        self,
        on_node: BackendFactory,
        node: PrivateNode,
        runs: Runs,
        alarm: Any,
        web_process: WebProcess,
    ) -> None:
        backend, closing = on_node.impatient(), on_node.impatient()
        failing: list[int] = []

        def fail_once(context: JobContext) -> None:
            failing.append(context.attempt)
            if context.attempt == 1:
                raise ValueError

        runs.job()
        runs.job(fail_once, name="tests.fails", retry=RetryPolicy.fixed(3, delay="1s"))
        runs.gate.clear()
        (fails,) = await asyncio.to_thread(send, backend, 1, job="tests.fails")
        before = await asyncio.to_thread(send, backend, 30)
        before += await asyncio.to_thread(send, closing, 1)
        async with working(backend, concurrency=6):
            await until(lambda: len(runs.started) == 6)
            await asyncio.to_thread(alarm, on=True)
            over = time.monotonic() + 60
            producer = Producer(backend, 5)
            producer.start()
            runs.gate.set()
            await until(lambda: {envelope.job_id for envelope in before} <= set(runs.ended))
            # The acks arrive; what waits for its retry to be stored stays with the broker.
            await settled(node, backend, left=1)

            late = [closing.publish(make_envelope(job="tests.none")) for _ in range(3)]
            assert await asyncio.to_thread(seconds_of, closing.close) < 6
            assert all(isinstance(future.exception(0), BackendError) for future in late)
            assert await asyncio.to_thread(web_process.finish) < 10

            while time.monotonic() < over:
                await asyncio.sleep(0.2)
                assert failing.count(1) <= 2, "a hot loop"
            assert producer.accepted == []
            assert sum(producer.attempts.values()) > 100
            assert producer.longest < 4
            await asyncio.to_thread(alarm, on=False)
            await asyncio.to_thread(producer.join, PATIENCE)
            await until(lambda: {*producer.accepted, fails.job_id} <= set(runs.ended))
            await settled(node, backend)
        assert len(producer.accepted) == 5
        # What was not confirmed may have arrived, and then the job that was handed back runs too.
        assert 2 in failing
        assert all(runs.started[envelope.job_id] == 1 for envelope in before)
        # Only what was written before the broker told of the alarm can come twice.
        assert all(runs.started[job_id] <= 2 for job_id in producer.accepted)
        assert letters(on_node.url, backend.topology) == []


class TestCredentials:
    backend_name = "rabbitmq"

    @pytest.mark.contract(155)
    @pytest.mark.parametrize(
        ("user", "vhost", "reason"),
        [("guest", "/", "user or password"), ("fine", "nowhere", "vhost"), ("fine", "/", "vhost")],
    )
    async def test_b55_refused_credentials_end_a_worker_and_a_publish_at_once(
        self,
        node: PrivateNode,
        user: str,
        vhost: str,
        reason: str,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        caplog.set_level(logging.DEBUG)
        if user == "fine":
            await asyncio.to_thread(node.ctl, "add_user", user, SECRET)
        backend = RabbitMQBackend(make_settings(node.url_for(user, SECRET, vhost)))
        try:
            for attempt in (
                lambda: asyncio.to_thread(send, backend, 1),
                Worker(backend).run,
                lambda: anext(backend.consume("a", 1)),
            ):
                began = time.monotonic()
                with pytest.raises(AccessRefused, match=reason) as refusal:
                    await asyncio.wait_for(attempt(), PATIENCE)
                assert time.monotonic() - began < 10
                assert SECRET not in everything_about(refusal.value)
        finally:
            await asyncio.to_thread(backend.close)
            if user == "fine":
                await asyncio.to_thread(node.ctl, "delete_user", user)
        shown = caplog.text + repr([record.__dict__ for record in caplog.records])
        assert SECRET not in shown

    @pytest.mark.contract(155)
    def test_b55_the_command_exits_with_the_reason(
        self, node: PrivateNode, tmp_path: Path, on_node: BackendFactory
    ) -> None:
        backend = on_node("a", url=node.url_for("guest", SECRET))
        with WorkerProcess(backend, tmp_path, "-v", "3") as process:
            assert process.wait() == 1
            assert "user or password" in process.output
            assert "Traceback" not in process.output
            assert SECRET not in process.output

    @pytest.mark.contract(155)
    def test_b117_credentials_refused_at_a_reconnect_end_the_worker(
        self, node: PrivateNode, tmp_path: Path, on_node: BackendFactory
    ) -> None:
        node.ctl("add_user", "passing", SECRET)
        node.ctl("set_permissions", "passing", ".*", ".*", ".*")
        try:
            backend = on_node("a", url=node.url_for("passing", SECRET))
            with WorkerProcess(backend, tmp_path) as process:
                wait_until(lambda: "Consuming from" in process.output)
                node.ctl("change_password", "passing", "another")
                node.ctl("close_all_connections", "rotated")
                assert process.wait() == 1
                assert "user or password" in process.output
                assert SECRET not in process.output
        finally:
            node.ctl("delete_user", "passing")

    def test_b63_a_host_that_has_no_address_shows_no_password(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.DEBUG)
        settings = make_settings(
            f"amqp://user:{SECRET}@nowhere.invalid/", publish_timeout="1s", reconnect_max="200ms"
        )
        backend = RabbitMQBackend(settings)
        with pytest.raises(BackendUnavailable) as failure:
            send(backend, 1)
        backend.close()
        assert SECRET not in everything_about(failure.value)
        assert SECRET not in caplog.text

    async def test_b57_special_characters_reach_the_broker_from_both_halves(
        self, node: PrivateNode, on_node: BackendFactory, runs: Runs
    ) -> None:
        odd = "a/b?c#d@e:f%41+g h[i]é&=~"
        user, password, vhost = f"user {odd}", f"password {odd}", f"vhost {odd}"
        await asyncio.to_thread(node.ctl, "add_user", user, password)
        await asyncio.to_thread(node.ctl, "add_vhost", vhost)
        await asyncio.to_thread(node.ctl, "set_permissions", "-p", vhost, user, ".*", ".*", ".*")
        try:
            runs.job()
            settings = make_settings(node.url_for(user, password, vhost))
            backend = RabbitMQBackend(settings)
            (sent,) = await asyncio.to_thread(send, backend, 1)
            async with working(backend):
                await until(lambda: runs.ended[sent.job_id] == 1)
            await asyncio.to_thread(backend.close)
        finally:
            await asyncio.to_thread(node.ctl, "delete_vhost", vhost)
            await asyncio.to_thread(node.ctl, "delete_user", user)


class TestTLS:
    backend_name = "rabbitmq"

    @pytest.mark.parametrize("trusted", [False, True])
    async def test_b61_a_certificate_that_proves_nothing_is_refused_by_both_halves(
        self,
        on_node: BackendFactory,
        tls_port: int,
        certificates: Path,
        trusted: bool,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        options = {"cafile": str(certificates / "ca.pem")} if trusted else {}
        url = f"amqps://guest:guest@127.0.0.1:{tls_port}/"
        backend = on_node("a", url=url, publish_timeout="1s", **options)
        reason = "IP address mismatch" if trusted else "certificate verify failed"
        with pytest.raises(BackendUnavailable):
            await asyncio.to_thread(send, backend, 1)
        await until(lambda: reason in caplog.text)
        caplog.clear()
        consumer = backend.consume("a", 1)
        waiting = asyncio.create_task(anext(consumer))
        await until(lambda: reason in caplog.text, 10)
        await consumer.aclose()
        with pytest.raises(StopAsyncIteration):
            await waiting

    async def test_b61_options_name_the_authority_and_the_host(
        self, on_node: BackendFactory, tls_port: int, certificates: Path, runs: Runs
    ) -> None:
        runs.job()
        backend = on_node(
            "a",
            url=f"amqps://guest:guest@127.0.0.1:{tls_port}/",
            cafile=str(certificates / "ca.pem"),
            server_hostname=TLS_NAME,
        )
        (sent,) = await asyncio.to_thread(send, backend, 1)
        async with working(backend):
            await until(lambda: runs.ended[sent.job_id] == 1)


class TestPolicies:
    backend_name = "rabbitmq"

    @pytest.mark.contract(141)
    async def test_a_policy_that_shortens_holds_makes_no_job_early(
        self,
        on_node: BackendFactory,
        node: PrivateNode,
        runs: Runs,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        backend = on_node("a")
        runs.job(retry=3)
        await asyncio.to_thread(backend.declare, backend.queues.values())
        pattern = re.escape(f"{backend.topology.prefix}.hold.")
        definition = '{"message-ttl": 100}'
        await asyncio.to_thread(
            node.ctl, "set_policy", "hasty", f"^{pattern}", definition, "--apply-to", "queues"
        )
        try:
            began = time.time()
            sent = [make_envelope() for _ in range(3)]
            for envelope in sent:
                await asyncio.wrap_future(backend.publish(envelope, 4))
            async with working(backend):
                await until(lambda: len(runs.ended) == 3)
                assert time.time() - began >= 4 - 1.05
        finally:
            await asyncio.to_thread(node.ctl, "clear_policy", "hasty")
        assert Counter(runs.started) == {envelope.job_id: 1 for envelope in sent}
        assert {context.attempt for context in runs.contexts} == {1}
        assert caplog.text.count("held again") == 1


class TestPoison:
    backend_name = "rabbitmq"

    @pytest.mark.contract(108)
    def test_b127_b129_a_job_that_kills_its_worker_is_filed_and_innocents_run(
        self, make: BackendFactory, tmp_path: Path
    ) -> None:
        limit = 3
        backend = make(QueueConfig(name="a", prefetch=10), delivery_limit=limit)
        (killer,) = send(backend, 1, job="tests.kill")
        innocents = send(backend, 9, job="tests.take")
        crashes = 0
        with WorkerProcess(backend, tmp_path, "--concurrency", "1") as worker:
            give_up = time.monotonic() + 90
            while not letters(make.url, backend.topology):
                assert time.monotonic() < give_up, worker.output
                if worker.poll() is not None:
                    assert worker.poll() == -signal.SIGKILL, worker.output
                    crashes += 1
                    worker.start()
                time.sleep(0.05)
            wait_until(lambda: len(set(worker.noted("ended"))) == 9)
            worker.signal(signal.SIGTERM)
            assert worker.wait() == 0
        starts = Counter(worker.noted("started"))
        assert 2 <= starts[killer.job_id] == crashes <= limit + 1
        for innocent in innocents:
            assert 1 <= starts[innocent.job_id] <= limit
        (letter,) = letters(make.url, backend.topology)
        assert letter.envelope.job_id == killer.job_id
        assert letter.cause == "delivery_limit"
        assert str(limit) in letter.reason
        assert ready(make.url, work(backend)) == 0


class TestSignals:
    backend_name = "rabbitmq"

    @pytest.mark.contract(64, 65, 66)
    def test_b115_a_stop_signal_gives_back_what_waits_at_once(
        self, make: BackendFactory, tmp_path: Path
    ) -> None:
        backend = make(QueueConfig(name="a", prefetch=10))
        running = send(backend, 2, job="tests.take", args=[6])
        waiting = send(backend, 50, job="tests.take", args=[6])
        with WorkerProcess(backend, tmp_path, "--concurrency", "2") as worker:
            wait_until(lambda: len(worker.noted("started")) == 2)
            wait_until(lambda: ready(make.url, work(backend)) == 42)
            worker.signal(signal.SIGTERM)
            wait_until(lambda: ready(make.url, work(backend)) == 50, 5)
            assert worker.noted("ended") == []
            assert worker.wait() == 0
        assert {*worker.noted("started")} == {*worker.noted("ended")}
        assert {*worker.noted("ended")} == {envelope.job_id for envelope in running}
        left = job_ids(browse(make.url, work(backend)))
        assert left == [envelope.job_id for envelope in waiting]

    @pytest.mark.contract(29)
    def test_b121_a_second_interrupt_ends_at_once_and_the_job_stays(
        self, make: BackendFactory, tmp_path: Path
    ) -> None:
        backend = make("a")
        (sent,) = send(backend, 1, job="tests.take", args=[600])
        with WorkerProcess(backend, tmp_path) as worker:
            wait_until(lambda: worker.noted("started"))
            worker.signal(signal.SIGINT)
            wait_until(lambda: "Stopping: 1 running job" in worker.output)
            assert worker.poll() is None
            worker.signal(signal.SIGINT)
            began = time.monotonic()
            assert worker.wait() == 130
            assert time.monotonic() - began < 5
        wait_until(lambda: ready(make.url, work(backend)) == 1)
        assert job_ids(browse(make.url, work(backend))) == [sent.job_id]

    @pytest.mark.contract(67)
    def test_an_idle_worker_stops_at_once_even_if_the_signal_comes_early(
        self, make: BackendFactory, tmp_path: Path
    ) -> None:
        backend = make("a")
        with WorkerProcess(backend, tmp_path) as worker:
            for _ in range(3):
                seen = worker.output.count("Stop with Ctrl-C")
                wait_until(lambda seen=seen: worker.output.count("Stop with Ctrl-C") > seen)
                worker.signal(signal.SIGTERM)
                began = time.monotonic()
                assert worker.wait(15) in (0, -signal.SIGTERM)
                assert time.monotonic() - began < 5
                worker.start()
