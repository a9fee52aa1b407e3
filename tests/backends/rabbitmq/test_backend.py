"""Declaring, permissions, counting, priorities, holds and dead letters on a real broker."""

import asyncio
import random
import time
import uuid
from collections.abc import Iterator

import pika
import pytest
from django.core.checks import run_checks
from django.core.exceptions import ImproperlyConfigured

from django_jobq import job
from django_jobq.backends.base import Counts
from django_jobq.backends.handler import backends
from django_jobq.backends.rabbitmq import RabbitMQBackend, codec
from django_jobq.backends.rabbitmq.topology import QueueType, Topology
from django_jobq.exceptions import (
    AccessRefused,
    BackendUnavailable,
    InvalidJob,
    PayloadTooLarge,
    PublishFailed,
    TopologyMismatch,
)
from django_jobq.queues import QueueConfig
from django_jobq.retry import RetryPolicy
from django_jobq.worker.worker import Worker
from tests.backends.contract import make_envelope
from tests.backends.rabbitmq.support import (
    PATIENCE,
    BackendFactory,
    Runs,
    browse,
    channel,
    clean,
    job_ids,
    letters,
    ready,
    send,
    until,
    wait_until,
    working,
)
from tests.broker import PrivateNode
from tests.lane import lane, queue_type


def declared(backend: RabbitMQBackend) -> RabbitMQBackend:
    backend.declare(backend.queues.values())
    return backend


def work(backend: RabbitMQBackend, queue: str = "a") -> str:
    return backend.topology.work_queue(backend.queue(queue))


class TestDeclaring:
    backend_name = "rabbitmq"

    @pytest.mark.contract(148)
    @pytest.mark.parametrize(
        ("queue_type", "change", "argument", "values"),
        [
            ("classic", {"x-max-priority": 5}, "x-max-priority", ("5", "10")),
            (
                "classic",
                {"x-dead-letter-exchange": None, "x-dead-letter-routing-key": None},
                "x-dead-letter-exchange",
                ("none",),
            ),
            ("classic", {"x-message-ttl": 9000}, "x-message-ttl", ("9000",)),
            ("classic", {"durable": False}, "durable", ("false", "true")),
            (
                "classic",
                {"x-queue-type": "quorum", "x-max-priority": None},
                "type",
                ("quorum", "classic"),
            ),
            ("quorum", {"x-delivery-limit": 20}, "x-delivery-limit", ("20", "1000000")),
            ("quorum", {"x-message-ttl": 9000}, "x-message-ttl", ("9000",)),
        ],
    )
    async def test_b65_another_queue_under_the_name_is_explained_and_hurts_nothing_else(
        self,
        make_apart: BackendFactory,
        runs: Runs,
        queue_type: QueueType,
        change: dict[str, object],
        argument: str,
        values: tuple[str, ...],
    ) -> None:
        backend = make_apart("a", "healthy", queue_type=queue_type)
        runs.job()
        queue, *_ = backend.topology.work(backend.queue("a"))
        arguments = {
            key: value
            for key, value in {**queue.arguments, **change}.items()
            if value is not None and key != "durable"
        }
        with channel(make_apart.url) as ch:
            ch.queue_declare(
                work(backend), durable=change.get("durable", True), arguments=arguments
            )
        began = time.monotonic()
        with pytest.raises(TopologyMismatch) as refusal:
            await asyncio.to_thread(backend.declare, [backend.queue("a")])
        assert time.monotonic() - began < PATIENCE
        for expected in (work(backend), argument, *values, "revision"):
            assert expected in str(refusal.value)
        sent = await asyncio.to_thread(send, backend, 5, queue="healthy")
        async with working(backend, queues=["healthy"]):
            sent += await asyncio.to_thread(send, backend, 5, queue="healthy")
            await until(lambda: len(runs.ended) == 10)
        assert set(runs.started) == {envelope.job_id for envelope in sent}

    @pytest.mark.contract(148, 155)
    async def test_b65_a_worker_on_such_a_queue_ends_with_the_reason(
        self, make_apart: BackendFactory
    ) -> None:
        backend = make_apart("a")
        with channel(make_apart.url) as ch:
            ch.queue_declare(work(backend), durable=True)
        with pytest.raises(TopologyMismatch, match="revision"):
            await asyncio.wait_for(Worker(backend).run(), PATIENCE)

    @pytest.mark.contract(134, 148)
    def test_b65_another_revision_is_the_way_out(self, make_apart: BackendFactory) -> None:
        old = declared(make_apart(QueueConfig(name="a", message_ttl=60)))
        with pytest.raises(TopologyMismatch):
            declared(make_apart("a"))
        new = declared(make_apart(QueueConfig(name="a", revision=2)))
        assert work(new) != work(old)

    @pytest.mark.contract(1)
    def test_declaring_again_is_harmless(self, make: BackendFactory) -> None:
        for _ in range(3):
            declared(make("a", "b"))

    @pytest.mark.contract(137)
    def test_options_of_the_caller_conflict_with_nothing(self, make_apart: BackendFactory) -> None:
        declared(make_apart(QueueConfig(name="a", message_ttl=60)))
        other = QueueConfig(name="a", message_ttl=60, prefetch=7, retry=RetryPolicy(max_attempts=9))
        options = {
            "connection_name": "x",
            "delivery_limit": 99,
            "heartbeat": "9s",
            "max_payload": 9,
        }
        declared(make_apart(other, publish_timeout="9s", **options))
        assert declared(make_apart(other, declare="check")).counts("a").ready == 0

    @pytest.mark.contract(150)
    @pytest.mark.parametrize("name", ["", "a*b", "a#", "a\nb", "\x7f"])
    def test_a_name_with_a_reserved_character_is_refused_by_a_check(
        self, settings: object, name: str
    ) -> None:
        settings.JOBQ = {  # type: ignore[attr-defined]
            "default": {
                "BACKEND": "django_jobq.backends.rabbitmq.RabbitMQBackend",
                "OUTBOX": "off",
                "HOLDS": "broker",
                "URL": "amqp://nobody.invalid",
                "QUEUES": ["fine", name],
            }
        }
        (error,) = run_checks(tags=["jobq"])
        assert "queue name" in error.msg
        with pytest.raises(ImproperlyConfigured, match="queue name"):
            backends["default"]

    @pytest.mark.contract(150)
    @pytest.mark.parametrize("where", ["QUEUES", "a job"])
    def test_b69_a_name_too_long_is_refused_by_a_check(self, settings: object, where: str) -> None:
        name = "x" * 250
        settings.JOBQ = {  # type: ignore[attr-defined]
            "default": {
                "BACKEND": "django_jobq.backends.rabbitmq.RabbitMQBackend",
                "OUTBOX": "off",
                "HOLDS": "broker",
                "URL": "amqp://nobody.invalid",
                **({"QUEUES": [name, "default"]} if where == "QUEUES" else {}),
            }
        }
        if where == "a job":
            job(name="tests.long", queue=name)(lambda: None)
        (error,) = run_checks(tags=["jobq"])
        assert error.id == "jobq.E009"
        assert name in error.msg
        assert "255" in error.msg

    @pytest.mark.contract(150)
    @pytest.mark.parametrize("name", ["x" * 250, "é" * 130])
    def test_b69_a_name_too_long_is_refused_before_any_declaration(
        self, make: BackendFactory, name: str
    ) -> None:
        backend = make(name, "b")
        for attempt in (
            lambda: backend.declare([backend.queue(name)]),
            lambda: backend.publish(make_envelope(name)),
            lambda: backend.publish(make_envelope(name), 5),
        ):
            with pytest.raises(InvalidJob, match="255"):
                attempt()
        send(backend, 1, queue="b")  # on a connection that was never dropped
        backend.settings.queues.pop(name)  # type: ignore[union-attr]

    @pytest.mark.contract(149, 151, 152)
    @pytest.mark.parametrize("delay", [0, 1])
    @pytest.mark.parametrize("what", ["queue", "hold", "entrance", "hold exchange", "everything"])
    def test_b41_what_was_deleted_is_declared_by_the_next_publish(
        self, make_apart: BackendFactory, what: str, delay: float
    ) -> None:
        backend = make_apart("a")
        send(backend, 1)
        topology = backend.topology
        with channel(make_apart.url) as ch:
            if what in ("queue", "everything"):
                ch.queue_delete(work(backend))
            if what in ("hold", "everything"):
                ch.queue_delete(f"{topology.prefix}.hold.0.1")
            if what in ("entrance", "everything"):
                ch.exchange_delete(topology.entrance)
            if what in ("hold exchange", "everything"):
                ch.exchange_delete(f"{topology.prefix}.hold.0")
        envelope = make_envelope()
        backend.publish(envelope, delay).result(PATIENCE)
        # A hold does not see that its target is gone: what returns is kept with the lost.
        target = topology.lost if (what, delay) == ("queue", 1) else work(backend)
        wait_until(lambda: envelope.job_id in job_ids(browse(make_apart.url, target)), 10)

    @pytest.mark.contract(149)
    def test_what_comes_back_while_the_publisher_closes_fails_and_harms_nothing(
        self, make_apart: BackendFactory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        backend = make_apart("a")
        send(backend, 1)

        def closed(*_: object) -> None:
            raise BackendUnavailable("the publisher is closed")

        with channel(make_apart.url) as ch:
            ch.queue_delete(work(backend))
        with monkeypatch.context() as patch:
            patch.setattr(backend._publisher, "call", closed)
            with pytest.raises(BackendUnavailable, match="is closed") as refusal:
                backend.publish(make_envelope()).result(PATIENCE)
        assert isinstance(refusal.value.__cause__, PublishFailed)
        backend.publish(make_envelope()).result(PATIENCE)

    @pytest.mark.contract(149)
    @pytest.mark.parametrize("what", ["queue", "exchange"])
    async def test_b41_a_deleted_inbox_is_declared_by_the_next_dead_letter(
        self, make_apart: BackendFactory, what: str
    ) -> None:
        backend = make_apart("a")
        (sent,) = await asyncio.to_thread(send, backend, 1)
        consumer = backend.consume("a", 1)
        delivery = await asyncio.wait_for(anext(consumer), PATIENCE)
        with channel(make_apart.url) as ch:
            if what == "queue":
                ch.queue_delete(backend.topology.dead)
            else:
                ch.exchange_delete(backend.topology.dead_exchange)
        await delivery.dead_letter("fatal", "why not")
        (letter,) = letters(make_apart.url, backend.topology)
        assert letter.envelope == sent
        await consumer.aclose()

    @pytest.mark.contract(149)
    def test_without_declaring_a_missing_route_stays_an_error(
        self, make_apart: BackendFactory
    ) -> None:
        declared(make_apart("a"))
        backend = make_apart("a", declare="never")
        send(backend, 1)
        with channel(make_apart.url) as ch:
            ch.queue_delete(work(backend))
        with pytest.raises(PublishFailed, match=r"'a'"):
            backend.publish(make_envelope()).result(PATIENCE)


def found(url: str, backend: RabbitMQBackend) -> list[uuid.UUID]:
    return job_ids(browse(url, work(backend)))


class TestPermissions:
    backend_name = "rabbitmq"

    @pytest.fixture
    def limited(self, node: PrivateNode) -> Iterator[str]:
        """Return the URL of a user who may configure nothing."""
        node.ctl("add_user", "limited", "secret")
        node.ctl("set_permissions", "limited", "^$", ".*", ".*")
        yield node.url_for("limited", "secret")
        node.ctl("delete_user", "limited")

    @pytest.mark.contract(159)
    @pytest.mark.parametrize("declare", ["check", "never"])
    async def test_no_configure_permission_is_needed(
        self, on_node: BackendFactory, limited: str, runs: Runs, declare: str
    ) -> None:
        declared(on_node("a"))
        runs.job()
        backend = on_node("a", url=limited, declare=declare)
        sent = await asyncio.to_thread(send, backend, 3)
        async with working(backend):
            await until(lambda: len(runs.ended) == 3)
            delayed = make_envelope()
            await asyncio.wrap_future(backend.publish(delayed, 1))
            await until(lambda: delayed.job_id in runs.ended)
        assert set(runs.ended) == {*(envelope.job_id for envelope in sent), delayed.job_id}

    @pytest.mark.contract(159)
    def test_check_tells_what_is_missing(self, on_node: BackendFactory, limited: str) -> None:
        declared(on_node("a"))
        backend = on_node("a", "missing", url=limited, declare="check")
        with pytest.raises(PublishFailed, match=r"q\.missing\.1"):
            declared(backend)
        send(backend, 1)

    def test_auto_tells_that_the_permission_is_missing(
        self, on_node: BackendFactory, limited: str
    ) -> None:
        declared(on_node("a"))
        backend = on_node("a", "missing", url=limited)
        with pytest.raises(AccessRefused, match="access to"):
            declared(backend)
        assert "secret" not in str(backend)


class TestQueues:
    backend_name = "rabbitmq"

    @pytest.mark.contract(21, 22)
    def test_counts_and_clear_know_what_is_ready(self, make: BackendFactory) -> None:
        backend = declared(make("a", "b"))
        send(backend, 4)
        send(backend, 2, queue="b")
        backend.publish(make_envelope(), 30).result(PATIENCE)
        assert backend.counts("a") == Counts(ready=4, consumers=0)
        assert backend.clear("a") == 4
        assert (backend.counts("a").ready, backend.counts("b").ready) == (0, 2)

    @pytest.mark.contract(7, 32)
    def test_priorities_and_the_top_level(self, make: BackendFactory) -> None:
        backend = make("a")
        sent = [(p, envelope) for p in (0, 9, 5, 200) for envelope in send(backend, 2, priority=p)]
        front = make_envelope()
        backend.defer(front).result(PATIENCE)
        levels = [*((min(priority, 9), envelope) for priority, envelope in sent), (10, front)]
        order = lane(make.url).in_order(levels, lambda item: item[0])
        assert found(make.url, backend) == [envelope.job_id for _, envelope in order]

    @pytest.mark.contract(142)
    def test_a_deferral_arrives_before_a_retry_that_is_due_with_it(
        self, make: BackendFactory
    ) -> None:
        backend = make("a")
        retry, deferral = make_envelope(priority=9), make_envelope()
        backend.publish(retry, 1).result(PATIENCE)
        backend.defer(deferral, 1).result(PATIENCE)
        wait_until(lambda: ready(make.url, work(backend)) == 2)
        expected = [deferral, retry]
        if lane(make.url).priorities != "strict":  # they are in one class, and the retry came first
            expected.reverse()
        assert found(make.url, backend) == [envelope.job_id for envelope in expected]

    def test_b07_a_payload_too_large_leaves_the_process_working(
        self, make: BackendFactory, settings: object, runs: Runs
    ) -> None:
        job = runs.job(name="tests.large", queue="a")
        prefix = make("a").topology.prefix
        settings.JOBQ = {  # type: ignore[attr-defined]
            "default": {
                "BACKEND": "django_jobq.backends.rabbitmq.RabbitMQBackend",
                "OUTBOX": "off",
                "HOLDS": "broker",
                "URL": make.url,
                "QUEUES": ["a"],
                "OPTIONS": {"prefix": prefix, "queue_type": queue_type()},
            }
        }
        with pytest.raises(PayloadTooLarge, match=r"20,000,\d{3} bytes"):
            job.enqueue("x" * 20_000_000)
        small = job.enqueue("small")
        assert job_ids(browse(make.url, work(make("a")))) == [small.id]


class TestHolds:
    backend_name = "rabbitmq"

    def test_b75_short_delays_pass_long_ones(self, make: BackendFactory) -> None:
        backend = make("a")
        began = time.time()
        sent = {delay: make_envelope() for delay in (60, 3600, 17, 3, 1)}
        for delay, envelope in sent.items():
            backend.publish(envelope, delay).result(PATIENCE)
        wait_until(lambda: found(make.url, backend) == [sent[1].job_id, sent[3].job_id], 10)
        assert 3 <= time.time() - began < 10

    def test_b73_a_delayed_job_makes_sure_of_its_target(self, make_apart: BackendFactory) -> None:
        backend = make_apart("a")
        envelope = make_envelope()
        backend.publish(envelope, 1).result(PATIENCE)  # the first thing that ever happened
        wait_until(lambda: found(make_apart.url, backend) == [envelope.job_id], 10)

    @pytest.mark.contract(139)
    def test_b77_queues_share_the_holds_and_get_their_own_back(self, make: BackendFactory) -> None:
        backend = make("b", "a.b", "c.a.b")
        sent = {name: make_envelope(name) for name in backend.queues}
        for envelope in sent.values():
            backend.publish(envelope, 1).result(PATIENCE)
        for name, envelope in sent.items():
            queue = work(backend, name)
            wait_until(lambda queue=queue: ready(make.url, queue), 10)
            assert job_ids(browse(make.url, queue)) == [envelope.job_id]

    @pytest.mark.contract(138, 144)
    def test_a_held_message_comes_back_as_it_went(self, make: BackendFactory) -> None:
        backend = make("a")
        envelope = make_envelope(priority=7)
        backend.publish(envelope, 1).result(PATIENCE)
        hold = f"{backend.topology.prefix}.hold.0.1"
        ((held, _),) = browse(make.url, hold)
        wait_until(lambda: ready(make.url, work(backend)), 10)
        ((properties, body),) = browse(make.url, work(backend))
        assert body == envelope.encode()
        assert properties.message_id == held.message_id is not None
        assert (properties.priority, properties.delivery_mode) == (7, 2)
        assert properties.type == envelope.job
        assert properties.headers["x-job-id"] == str(envelope.job_id)
        assert properties.headers["x-not-before"] <= time.time() * 1000

    @pytest.mark.contract(151)
    def test_what_returns_to_no_queue_is_kept(self, make_apart: BackendFactory) -> None:
        backend = make_apart("a")
        envelope = make_envelope()
        backend.publish(envelope, 1).result(PATIENCE)
        with channel(make_apart.url) as ch:
            ch.queue_delete(work(backend))
        lost = backend.topology.lost
        wait_until(lambda: ready(make_apart.url, lost) == 1, 10)
        assert job_ids(browse(make_apart.url, lost)) == [envelope.job_id]

    @pytest.mark.slow
    @pytest.mark.contract(10, 136, 139)
    async def test_ten_thousand_delays_need_no_more_queues_and_none_is_early(
        self, on_node: BackendFactory, node: PrivateNode
    ) -> None:
        backend = declared(on_node("a"))
        queues = node.ctl("list_queues", "name")
        generator = random.Random(1)
        due: dict[uuid.UUID, float] = {}
        consumer = backend.consume("a", 0)
        early: list[float] = []

        async def collect() -> None:
            arrived: set[uuid.UUID] = set()
            while len(arrived) < 10_000:
                delivery = await asyncio.wait_for(anext(consumer), PATIENCE)
                job_id = delivery.envelope.job_id
                if time.time() < due[job_id]:
                    early.append(due[job_id] - time.time())
                arrived.add(job_id)
                await delivery.ack()

        collecting = asyncio.create_task(collect())
        futures = []
        for _ in range(10_000):
            envelope, delay = make_envelope(), generator.uniform(0.001, 4)
            due[envelope.job_id] = time.time() + delay
            futures.append(backend.publish(envelope, delay))
            if len(futures) % 200 == 0:
                await asyncio.wrap_future(futures[-1])
        await asyncio.wait_for(collecting, 120)
        assert all(future.exception(PATIENCE) is None for future in futures)
        assert early == []
        assert sorted(node.ctl("list_queues", "name")) == sorted(queues)
        await consumer.aclose()


class TestDeadLetters:
    backend_name = "rabbitmq"

    @pytest.mark.contract(37, 59, 119)
    async def test_b123_bodies_that_are_no_envelope_end_as_dead_letters(
        self, make: BackendFactory, runs: Runs
    ) -> None:
        backend = declared(make("a"))
        runs.job()
        good = make_envelope()
        text = good.encode()
        bodies = [
            b"",
            b"\x80\x02",
            b"[]",
            b"null",
            text[:40],
            b'{"hello": "world"}',
            text.replace(b'"attempt":1', b'"attempt":"one"'),
            text.replace(b'"args":[1]', b'"args":5'),
            text.replace(b'"attempt":1', b'"attempt":0'),
            b"\x1f\x8b\x08\x00" + b"x" * 20,
            b"[" * 50_000,
            "\ud800".encode("utf-8", "surrogatepass"),
        ]
        plain = pika.BasicProperties()
        odd = pika.BasicProperties(
            content_encoding="gzip",
            content_type="application/x-pickle",
            headers={f"header-{n}": [n, {"deep": None}] for n in range(30)} | {"x-attempt": "no"},
        )
        with channel(make.url) as ch:
            for properties in (plain, odd):
                for body in bodies:
                    ch.basic_publish(backend.topology.entrance, "a", body, properties)
        await asyncio.wrap_future(backend.publish(good))
        async with working(backend):
            await until(lambda: runs.ended[good.job_id] == 1)
            await until(lambda: ready(make.url, backend.topology.dead) == 2 * len(bodies))
        filed = letters(make.url, backend.topology)
        assert sorted(letter.body for letter in filed) == sorted(bodies * 2)
        for letter in filed:
            assert (letter.cause, letter.queue) == ("decode", "a")
            assert letter.reason
        assert ready(make.url, work(backend)) == 0

    @pytest.mark.contract(107, 108, 145)
    async def test_b71_each_failed_job_is_filed_once_with_its_story(
        self, make: BackendFactory, runs: Runs
    ) -> None:
        def fail(_: object) -> None:
            raise ValueError("no such order")

        backend = declared(make("a"))
        runs.job(fail, retry=2)
        sent = {envelope.job_id for envelope in await asyncio.to_thread(send, backend, 5)}
        async with working(backend):
            await until(lambda: ready(make.url, backend.topology.dead) == 5)
        for letter in letters(make.url, backend.topology):
            sent.remove(letter.envelope.job_id)
            assert (letter.cause, letter.queue, letter.attempts) == ("exhausted", "a", 2)
            assert "no such order" in letter.reason
        assert not sent
        assert set(runs.started.values()) == {2}
        assert ready(make.url, work(backend)) == 0

    @pytest.mark.contract(118, 145)
    async def test_b07_a_reason_of_five_megabytes_is_filed(self, make: BackendFactory) -> None:
        backend = declared(make("a"))
        await asyncio.to_thread(send, backend, 1)
        consumer = backend.consume("a", 1)
        delivery = await asyncio.wait_for(anext(consumer), PATIENCE)
        await delivery.dead_letter("fatal", "ä" * 5_000_000)
        (letter,) = letters(make.url, backend.topology)
        assert "[5,000,000 characters]" in letter.reason
        await consumer.aclose()


@pytest.mark.slow
class TestQuorum:
    """Check what differs on quorum queues of whatever version the broker has."""

    backend_name = "rabbitmq"

    @pytest.mark.contract(134, 135, 138, 158)
    async def test_quorum_queues_hold_run_and_file(self, make: BackendFactory, runs: Runs) -> None:
        def fail(context: object) -> None:
            if context.priority == 1:  # type: ignore[attr-defined]
                raise ValueError("no")

        backend = declared(make("a", queue_type="quorum"))
        runs.job(fail)
        now = await asyncio.to_thread(send, backend, 3)
        bad = await asyncio.to_thread(send, backend, 1, priority=1)
        held = make_envelope()
        await asyncio.wrap_future(backend.publish(held, 1))
        async with working(backend):
            await until(lambda: len(runs.started) == 5)
            await until(lambda: ready(make.url, backend.topology.dead) == 1)
        assert set(runs.started) == {e.job_id for e in [*now, *bad, held]}
        (letter,) = letters(make.url, backend.topology)
        assert letter.envelope.job_id == bad[0].job_id

    @pytest.mark.contract(138)
    def test_what_a_quorum_queue_held_returns_in_the_high_class(self, make: BackendFactory) -> None:
        backend = declared(make("a", queue_type="quorum"))
        sent = {0: make_envelope(), 8: make_envelope(priority=8)}
        for envelope in sent.values():
            backend.publish(envelope, 1).result(PATIENCE)
        wait_until(lambda: ready(make.url, work(backend)) == 2, 10)
        classes = {
            tuple(job_ids([(properties, body)])): properties.priority
            for properties, body in browse(make.url, work(backend))
        }
        assert classes == {(sent[0].job_id,): 5, (sent[8].job_id,): 8}

    @pytest.mark.contract(158)
    def test_another_type_under_one_prefix_is_a_mismatch(self, make_apart: BackendFactory) -> None:
        declared(make_apart("a", queue_type="classic"))
        with pytest.raises(TopologyMismatch, match="x-queue-type"):
            declared(make_apart("a", queue_type="quorum"))


def test_cleaning_leaves_nothing_of_a_test(make: BackendFactory) -> None:
    """Check the tool that keeps these tests apart."""
    backend = declared(make("a"))
    send(backend, 2)
    backend.publish(make_envelope(), 1).result(PATIENCE)
    letter = codec.dead_letter(b"x", None, "a", "fatal", "x", "key")
    backend._publisher.publish(backend.topology.dead_exchange, "a", letter).result(PATIENCE)
    topology = Topology(prefix=backend.topology.prefix)
    clean(make.url, topology, [backend.queue("a")])
    declared(make("a"))
    time.sleep(1.2)  # when the held one would be back
    for queue in (work(backend), topology.dead, topology.lost):
        assert ready(make.url, queue) == 0
