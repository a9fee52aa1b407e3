"""Publishing: attribution, deadlines, reconnects, threads, forks, and the end of the process."""

import logging
import os
import subprocess
import sys
import threading
import time
import uuid
import warnings
from concurrent.futures import Future
from itertools import chain

import pytest

from django_jobq.backends.rabbitmq import RabbitMQBackend, codec, operations
from django_jobq.backends.rabbitmq.publisher.engine import Engine
from django_jobq.exceptions import BackendError, BackendUnavailable, PublishFailed, ShutDown
from tests.backends.contract import make_envelope
from tests.backends.rabbitmq.support import (
    PATIENCE,
    BackendFactory,
    browse,
    channel,
    job_ids,
    ready,
    send,
    wait_until,
)
from tests.broker import PrivateNode
from tests.proxy import Proxy


def declared(backend: RabbitMQBackend) -> RabbitMQBackend:
    backend.declare(backend.queues.values())
    return backend


def work(backend: RabbitMQBackend) -> str:
    return backend.topology.work_queue(backend.queue("a"))


def error_of(future: Future[None]) -> BaseException | None:
    return future.exception(PATIENCE)


class TestAttribution:
    backend_name = "rabbitmq"

    @pytest.mark.contract(146, 147)
    def test_an_unroutable_publish_is_blamed_on_itself_alone(self, make: BackendFactory) -> None:
        backend = declared(make("a"))
        entrance, publish = backend.topology.entrance, backend._publisher.publish
        for round_ in range(300):
            futures = []
            twin = make_envelope()
            for position in range(10):
                is_lost = position == round_ % 10
                # Every third round the same job is in flight twice: once lost, once fine.
                envelope = (
                    twin if round_ % 3 == 0 and position in (0, round_ % 10) else make_envelope()
                )
                key = "nowhere" if is_lost else "a"
                futures.append((is_lost, publish(entrance, key, codec.encode(envelope, 0))))
            for is_lost, future in futures:
                error = error_of(future)
                assert isinstance(error, PublishFailed) == is_lost, (round_, error)
                assert error is None or "'nowhere'" in str(error)
        assert ready(make.url, work(backend)) == 300 * 9

    @pytest.mark.contract(146, 147)
    def test_threads_are_not_blamed_for_each_other(self, make: BackendFactory) -> None:
        backend = declared(make("a"))
        entrance, publish = backend.topology.entrance, backend._publisher.publish
        wrong: list[object] = []

        def run(key: str, expected: type[BaseException] | None) -> None:
            for _ in range(100):
                error = error_of(publish(entrance, key, codec.encode(make_envelope(), 0)))
                if (None if error is None else type(error)) is not expected:
                    wrong.append((key, error))

        keys = [("a", None)] * 6 + [("nowhere", PublishFailed)] * 2
        threads = [threading.Thread(target=run, args=item) for item in keys]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert wrong == []
        assert ready(make.url, work(backend)) == 600

    @pytest.mark.contract(147)
    def test_a_nack_is_a_failure_of_its_own_publish(self, make: BackendFactory) -> None:
        backend = declared(make("a"))
        full = f"{backend.topology.prefix}.full"
        with channel(make.url) as ch:
            ch.queue_declare(
                full, exclusive=True, arguments={"x-max-length": 1, "x-overflow": "reject-publish"}
            )
            publish = backend._publisher.publish
            to_full = [publish("", full, codec.encode(make_envelope(), 0)) for _ in range(10)]
            fine = [backend.publish(make_envelope()) for _ in range(10)]
            errors = [error_of(future) for future in to_full]
            refused = [error for error in errors if isinstance(error, PublishFailed)]
            assert 1 <= len(refused) <= 9
            assert set(errors) == {None, *refused}
            assert all("nack" in str(error) and full in str(error) for error in refused)
            assert [error_of(future) for future in fine] == [None] * 10

    @pytest.mark.contract(147, 149)
    def test_a_missing_exchange_fails_its_own_publishes_alone(self, make: BackendFactory) -> None:
        backend = declared(make("a"))
        publish = backend._publisher.publish
        futures = []
        for position in range(60):
            exchange = "no.such.exchange" if position % 20 == 7 else backend.topology.entrance
            futures.append(publish(exchange, "a", codec.encode(make_envelope(), 0)))
        for position, future in enumerate(futures):
            assert isinstance(error_of(future), PublishFailed) == (position % 20 == 7)
        assert len(set(job_ids(browse(make.url, work(backend))))) == 57

    @pytest.mark.contract(144)
    def test_what_arrives_is_persistent_and_complete(self, make: BackendFactory) -> None:
        backend = declared(make("a"))
        (sent,) = send(backend, 1, job="x" * 300, priority=3)
        send(backend, 1)
        (properties, body), (plain, _) = browse(make.url, work(backend))
        assert plain.priority == 0
        assert plain.message_id != properties.message_id
        assert body == sent.encode()
        assert properties.delivery_mode == 2
        assert properties.content_type == "application/json"
        assert properties.type == "x" * 255
        assert properties.priority == 3
        assert properties.expiration is None
        assert properties.message_id not in (None, str(sent.job_id))


class TestThreadsAndProcesses:
    backend_name = "rabbitmq"

    def test_a_thread_that_has_ended_is_replaced(self, make: BackendFactory) -> None:
        """Or the process would refuse every job from then on."""
        backend = make("a")
        send(backend, 1)
        engine = backend._publisher._engine
        assert engine is not None
        engine.stop()
        assert not engine.is_alive()
        send(backend, 1)
        wait_until(lambda: backend.counts("a").ready == 2)

    @pytest.mark.contract(147)
    def test_eight_threads_share_one_connection(
        self, proxied: BackendFactory, proxy: Proxy
    ) -> None:
        backend = proxied("a")
        sent: list[uuid.UUID] = []

        def run() -> None:
            sent.extend(envelope.job_id for envelope in send(backend, 100))

        threads = [threading.Thread(target=run) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert len(sent) == 800
        assert sorted(job_ids(browse(proxied.url, work(backend)))) == sorted(sent)
        assert proxy.accepted == 1

    def test_b37_forked_children_publish_on_their_own(
        self, proxied: BackendFactory, proxy: Proxy
    ) -> None:
        backend = proxied("a")
        sent = [envelope.job_id for envelope in send(backend, 1)]
        plans = [[make_envelope() for _ in range(100)] for _ in range(2)]
        children = []
        for plan in plans:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads
                child = os.fork()
            if not child:
                try:
                    for future in [backend.publish(envelope) for envelope in plan]:
                        future.result(PATIENCE)
                    backend.close()
                    os._exit(0)
                finally:
                    os._exit(1)
            children.append(child)
        sent += [envelope.job_id for envelope in send(backend, 50)]
        for child in children:
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        sent += [envelope.job_id for envelope in send(backend, 50)]
        expected = [*sent, *(envelope.job_id for envelope in chain(*plans))]
        assert sorted(job_ids(browse(proxied.url, work(backend)))) == sorted(expected)
        assert proxy.accepted == 3  # the parent's one outlived both children

    @pytest.mark.parametrize("ending", ["", "raise SystemExit(3)", "backend.close()"])
    def test_what_nobody_waited_for_is_sent_when_the_process_ends(
        self, make: BackendFactory, ending: str
    ) -> None:
        backend = declared(make("a"))
        script = f"""
import os, django
os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
django.setup()
from django_jobq.backends.rabbitmq import RabbitMQBackend
from tests.backends.contract import make_envelope
from tests.backends.rabbitmq.support import make_settings
backend = RabbitMQBackend(make_settings({make.url!r}, prefix={backend.topology.prefix!r}))
for _ in range(200):
    backend.publish(make_envelope())
{ending}
"""
        done = subprocess.run(
            [sys.executable, "-c", script], check=False, timeout=PATIENCE, capture_output=True
        )
        assert done.returncode == (3 if "3" in ending else 0), done.stderr
        assert done.stderr == b""
        assert ready(make.url, work(backend)) == 200


class TestOutages:
    backend_name = "rabbitmq"

    @pytest.mark.contract(152)
    def test_a_cut_connection_loses_no_publish(self, proxied: BackendFactory, proxy: Proxy) -> None:
        backend = declared(proxied("a"))
        sent, futures = [], []
        for number in range(600):
            if number % 100 == 50:
                proxy.cut()
            sent.append(make_envelope())
            futures.append(backend.publish(sent[-1]))
            if number % 10 == 0:
                futures[-1].exception(PATIENCE)
        assert [error_of(future) for future in futures] == [None] * 600
        arrived = job_ids(browse(proxied.url, work(backend)))
        assert set(arrived) == {envelope.job_id for envelope in sent}

    @pytest.mark.contract(147, 152)
    def test_a_stalled_connection_means_unknown_and_is_replaced(
        self, proxied: BackendFactory, proxy: Proxy
    ) -> None:
        backend = proxied.impatient()
        proxy.stall()
        stalled = make_envelope()
        began = time.monotonic()
        with pytest.raises(BackendUnavailable, match="not known"):
            backend.publish(stalled).result(PATIENCE)
        assert time.monotonic() - began < 4
        proxy.resume()
        wait_until(lambda: error_of(backend.publish(make_envelope())) is None)
        arrived = job_ids(browse(proxied.url, work(backend)))
        assert arrived.count(stalled.job_id) <= 1
        assert proxy.accepted >= 2

    @pytest.mark.contract(152)
    @pytest.mark.parametrize("how", ["refuse", "stall"])
    def test_in_an_outage_one_caller_waits_and_the_others_fail_at_once(
        self, how: str, proxied: BackendFactory, proxy: Proxy
    ) -> None:
        backend = proxied.impatient()
        getattr(proxy, how)()
        began = time.monotonic()
        with pytest.raises(BackendUnavailable):
            backend.publish(make_envelope()).result(PATIENCE)
        assert time.monotonic() - began < 4
        began = time.monotonic()
        for _ in range(100):
            assert isinstance(error_of(backend.publish(make_envelope())), BackendUnavailable)
        assert time.monotonic() - began < 1
        proxy.resume()
        wait_until(lambda: error_of(backend.publish(make_envelope())) is None)

    @pytest.mark.contract(152)
    def test_a_publish_waits_for_a_short_outage_to_end(
        self, proxied: BackendFactory, proxy: Proxy
    ) -> None:
        backend = declared(proxied("a", publish_timeout="20s"))
        proxy.refuse()
        future = backend.publish(make_envelope())
        wait_until(lambda: backend._publisher._engine is not None)
        assert not future.done()
        proxy.resume()
        assert error_of(future) is None

    @pytest.mark.contract(152)
    def test_the_first_publish_waits_though_its_connection_is_refused_at_once(
        self, proxied: BackendFactory, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        declared(proxied("a"))
        backend = proxied("a", publish_timeout="20s", declare="never")
        start = Engine.start

        def start_and_be_refused(engine: Engine) -> None:
            start(engine)
            wait_until(lambda: engine._down is not None)

        monkeypatch.setattr(Engine, "start", start_and_be_refused)
        proxy.refuse()
        future = backend.publish(make_envelope())
        assert not future.done()
        proxy.resume()
        assert error_of(future) is None

    def test_b35_an_idle_connection_stays_alive(
        self, proxied: BackendFactory, proxy: Proxy, caplog: pytest.LogCaptureFixture
    ) -> None:
        backend = proxied("a", heartbeat="1s")
        send(backend, 1)
        time.sleep(4)  # the broker would give up after two heartbeats
        send(backend, 1)
        assert proxy.accepted == 1
        assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []

    def test_b35_a_connection_that_the_broker_closed_is_replaced(
        self, on_node: BackendFactory, node: PrivateNode
    ) -> None:
        backend = on_node("a")
        send(backend, 1)
        node.ctl("close_all_connections", "an operator said so")
        send(backend, 1)
        assert ready(on_node.url, work(backend)) == 2

    def test_b45_failures_leave_no_channels_behind(
        self, on_node: BackendFactory, node: PrivateNode
    ) -> None:
        backend = declared(on_node("a"))
        publish = backend._publisher.publish
        for _ in range(20):
            futures = [backend.publish(make_envelope()) for _ in range(50)]
            bad = [
                publish("no.such.exchange", "a", codec.encode(make_envelope(), 0)),
                publish(backend.topology.entrance, "nowhere", codec.encode(make_envelope(), 0)),
            ]
            assert [error_of(future) for future in futures] == [None] * 50
            assert all(isinstance(error_of(future), PublishFailed) for future in bad)
            backend.counts("a")
        channels = node.ctl("list_channels", "name").split("\n")
        assert len([line for line in channels if "->" in line]) <= 2

    @pytest.mark.contract(148)
    def test_a_question_that_gets_no_answer_is_not_a_missing_connection(
        self, proxied: BackendFactory, proxy: Proxy
    ) -> None:
        backend = proxied.impatient()
        proxy.stall()
        with pytest.raises(BackendUnavailable, match="did not answer within"):
            backend.counts("a")
        proxy.resume()

    def test_closing_in_the_middle_of_declarations_is_quiet(
        self, make: BackendFactory, caplog: pytest.LogCaptureFixture
    ) -> None:
        backend = declared(make("a"))
        engine = backend._publisher._engine
        assert engine is not None
        many = operations.declare(list(backend.topology.shared()) * 100)
        answer = backend._publisher.call(many)
        wait_until(lambda: engine._calls)
        backend.close()
        wait_until(lambda: not engine.is_alive())
        with pytest.raises(BackendError):
            answer.result(PATIENCE)
        assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []

    @pytest.mark.contract(14)
    def test_a_stalled_broker_does_not_delay_closing_for_long(
        self, proxied: BackendFactory, proxy: Proxy
    ) -> None:
        backend = declared(proxied("a"))
        proxy.stall()
        future = backend.publish(make_envelope())
        began = time.monotonic()
        backend.close()
        assert time.monotonic() - began < 6
        assert isinstance(error_of(future), BackendError)
        with pytest.raises(ShutDown):
            backend.publish(make_envelope())
        proxy.resume()
