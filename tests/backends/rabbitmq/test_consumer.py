"""Consuming: reconnects, what is kept over them, early arrivals, and the end of a consumer."""

import asyncio
import logging
import random
import threading
import time
import uuid
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from django_jobq.backends.base import Consumer, Delivery
from django_jobq.backends.rabbitmq import RabbitMQBackend, codec
from django_jobq.envelope import Envelope
from django_jobq.exceptions import AlreadySettled
from tests.backends.contract import make_envelope
from tests.backends.rabbitmq.support import (
    PATIENCE,
    BackendFactory,
    browse,
    channel,
    job_ids,
    letters,
    messages,
    ready,
    send,
    until,
)
from tests.broker import PrivateNode
from tests.proxy import Proxy

Consume = Callable[..., Consumer]


@pytest_asyncio.fixture
async def consume() -> AsyncIterator[Consume]:
    """Return consumers that are closed at the end."""
    made: list[Consumer] = []

    def consume(backend: RabbitMQBackend, queue: str = "a", prefetch: int = 10) -> Consumer:
        made.append(backend.consume(queue, prefetch))
        return made[-1]

    yield consume
    for consumer in made:
        await asyncio.wait_for(consumer.aclose(), PATIENCE)


async def take(consumer: Consumer, patience: float = PATIENCE) -> Delivery:
    return await asyncio.wait_for(anext(consumer), patience)


async def begin_one(
    backend: RabbitMQBackend, consume: Consume
) -> tuple[Envelope, Consumer, Delivery]:
    """Send a job and begin it; return its envelope, its consumer and its delivery."""
    (sent,) = send(backend, 1)
    consumer = consume(backend, prefetch=1)
    delivery = await take(consumer)
    assert await delivery.begin()
    return sent, consumer, delivery


async def expect_nothing(consumer: Consumer, seconds: float = 0.3) -> None:
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(anext(consumer), seconds)


async def ack_all(consumer: Consumer, number: int) -> list[uuid.UUID]:
    taken: list[uuid.UUID] = []
    while len(taken) < number:
        delivery = await take(consumer)
        if await delivery.begin():
            taken.append(delivery.envelope.job_id)
            await delivery.ack()
    return taken


async def has_messages(node: PrivateNode, backend: RabbitMQBackend, number: int) -> None:
    """Wait until the queue 'a' has so many messages, ready and unacknowledged."""
    name = backend.topology.work_queue(backend.queue("a"))
    deadline = time.monotonic() + PATIENCE
    while await asyncio.to_thread(messages, node, name) != number:
        assert time.monotonic() < deadline, "another number of messages is left"


class TestReconnecting:
    backend_name = "rabbitmq"

    @pytest.mark.contract(152)
    async def test_b47_a_consumer_resumes_with_its_prefetch(
        self, proxied: BackendFactory, proxy: Proxy, node: PrivateNode, consume: Consume
    ) -> None:
        backend = proxied("a")
        consumer = consume(backend, prefetch=3)
        send(backend, 1)
        await ack_all(consumer, 1)
        for _ in range(3):
            await has_messages(node, backend, 0)
            proxy.cut()
            sent = await asyncio.to_thread(send, backend, 5)
            taken = [await take(consumer) for _ in range(3)]
            await expect_nothing(consumer)
            for delivery in taken:
                await delivery.ack()
            taken += [await take(consumer) for _ in range(2)]
            for delivery in taken[3:]:
                await delivery.ack()
            assert {d.envelope.job_id for d in taken} == {e.job_id for e in sent}

    @pytest.mark.contract(157)
    async def test_consumers_that_notice_one_outage_open_one_connection(
        self, proxied: BackendFactory, proxy: Proxy, consume: Consume
    ) -> None:
        backend = proxied("a", "b", "c")
        consumers = {queue: consume(backend, queue) for queue in "abc"}
        for queue, consumer in consumers.items():
            send(backend, 1, queue=queue)
            await ack_all(consumer, 1)
        assert proxy.accepted == 2  # one to publish, one to consume
        proxy.cut()
        for queue, consumer in consumers.items():
            send(backend, 1, queue=queue)
            await ack_all(consumer, 1)
        assert proxy.accepted == 4

    @pytest.mark.contract(154)
    async def test_publishing_and_consuming_use_connections_of_their_own(
        self, on_node: BackendFactory, node: PrivateNode, consume: Consume
    ) -> None:
        backend = on_node("a", connection_name="shop")
        send(backend, 1)
        await take(consume(backend))
        shown = await asyncio.to_thread(node.ctl, "list_connections", "client_properties")
        for half in ("shop publisher", "shop consumer"):
            assert shown.count(f'"{half}"') == 1

    @pytest.mark.contract(156)
    async def test_closing_during_a_wait_to_reconnect_returns_and_ends_it(
        self, proxied: BackendFactory, proxy: Proxy
    ) -> None:
        backend = proxied("a", reconnect_base="60s", reconnect_max="60s")
        consumer = backend.consume("a", 1)
        send(backend, 1)
        await take(consumer)
        proxy.refuse()
        waiting = asyncio.create_task(anext(consumer))
        await until(lambda: backend.link()._failures > 0)
        began = time.monotonic()
        await asyncio.wait_for(consumer.aclose(), 10)
        await asyncio.to_thread(backend.close)
        assert time.monotonic() - began < 5
        with pytest.raises(StopAsyncIteration):
            await asyncio.wait_for(waiting, 5)
        proxy.resume()
        accepted = proxy.accepted
        await asyncio.sleep(0.5)
        assert proxy.accepted == accepted

    @pytest.mark.contract(29, 156)
    async def test_a_consumer_may_be_closed_at_any_moment(self, make: BackendFactory) -> None:
        backend = make("a")
        backend.declare(backend.queues.values())
        generator = random.Random(4)
        for _ in range(100):
            consumer = backend.consume("a", 1)
            waiting = asyncio.create_task(anext(consumer))
            await asyncio.sleep(generator.uniform(0, 0.02))
            await asyncio.wait_for(consumer.aclose(), 10)
            with pytest.raises(StopAsyncIteration):
                await asyncio.wait_for(waiting, 10)

    @pytest.mark.contract(152)
    async def test_b49_a_deleted_queue_is_declared_and_consumed_again(
        self, make: BackendFactory, consume: Consume, caplog: pytest.LogCaptureFixture
    ) -> None:
        backend = make("a")
        consumer = consume(backend)
        send(backend, 1)
        await ack_all(consumer, 1)
        waiting = asyncio.create_task(take(consumer))
        for _ in range(2):
            with channel(make.url) as ch:
                ch.queue_delete(backend.topology.work_queue(backend.queue("a")))
            (sent,) = await asyncio.to_thread(send, backend, 1)
            delivery = await asyncio.wait_for(waiting, 10)
            assert delivery.envelope == sent
            await delivery.ack()
            waiting = asyncio.create_task(take(consumer))
        waiting.cancel()
        assert "cancelled the consumer of queue a" in caplog.text

    @pytest.mark.contract(26, 152)
    async def test_b49_what_a_deleted_queue_had_delivered_is_settled_on_its_channel(
        self, make: BackendFactory, consume: Consume
    ) -> None:
        """What runs can be retried, what has not started can start, and then the channel ends."""
        backend = make("a")
        sent = await asyncio.to_thread(send, backend, 2)
        consumer = consume(backend)
        running, waiting = await take(consumer), await take(consumer)
        assert await running.begin()
        first = consumer._session
        with channel(make.url) as ch:
            ch.queue_delete(backend.topology.work_queue(backend.queue("a")))
        await until(lambda: consumer._session not in (first, None))
        assert await waiting.begin()
        await waiting.ack()
        again = running.envelope.next_attempt()
        await running.retry(again, 0)
        assert [running.envelope, waiting.envelope] == sent
        assert (await take(consumer)).envelope == again
        await until(lambda: consumer._sessions == [consumer._session])

    @pytest.mark.contract(152)
    async def test_b49_a_queue_deleted_while_nobody_publishes_is_declared_by_its_consumer(
        self, make: BackendFactory, consume: Consume
    ) -> None:
        backend = make("a")
        consumer = consume(backend)
        send(backend, 1)
        await ack_all(consumer, 1)
        name = backend.topology.work_queue(backend.queue("a"))
        with channel(make.url) as ch:
            ch.queue_delete(name)

        def consumers() -> int:
            with channel(make.url) as ch:
                try:
                    return ch.queue_declare(name, passive=True).method.consumer_count
                except Exception:  # noqa: BLE001 - it is not there yet
                    return 0

        await until(consumers, 10)


class TestKeptOutcomes:
    backend_name = "rabbitmq"

    @pytest.mark.contract(153)
    @pytest.mark.parametrize("how", ["ack", "retry", "defer", "dead_letter"])
    async def test_what_a_job_came_to_settles_its_redelivery(
        self, proxied: BackendFactory, proxy: Proxy, node: PrivateNode, consume: Consume, how: str
    ) -> None:
        backend = proxied("a")
        sent, consumer, delivery = await begin_one(backend, consume)
        proxy.cut()
        await until(lambda: delivery.is_lost)
        with pytest.raises(AlreadySettled, match="kept"):
            await settle(delivery, how)
        later = await self.after(backend, consumer, how)
        if how == "retry":
            assert later == sent.next_attempt()
        elif how == "defer":
            assert later == sent.deferred()
        elif how == "dead_letter":
            (letter,) = letters(proxied.url, backend.topology)
            assert letter.envelope == sent
        await has_messages(node, backend, 0)

    async def after(self, backend: RabbitMQBackend, consumer: Consumer, how: str) -> object:
        """Return the envelope of the next run, if there is one; it is acknowledged."""
        if how in ("ack", "dead_letter"):
            await expect_nothing(consumer, 2)
            return None
        delivery = await take(consumer)
        await delivery.ack()
        return delivery.envelope

    @pytest.mark.contract(153)
    async def test_a_copy_waits_for_the_job_that_still_runs(
        self, proxied: BackendFactory, proxy: Proxy, node: PrivateNode, consume: Consume
    ) -> None:
        backend = proxied("a")
        _, consumer, delivery = await begin_one(backend, consume)
        for _ in range(2):
            proxy.cut()
            await until(lambda: delivery.is_lost)
            await expect_nothing(consumer, 1.5)  # reconnected meanwhile
        with pytest.raises(AlreadySettled):
            await delivery.ack()
        await has_messages(node, backend, 0)
        (after,) = send(backend, 1)
        assert (await take(consumer)).envelope == after

    @pytest.mark.contract(153)
    async def test_a_copy_runs_if_the_job_is_handed_back(
        self, proxied: BackendFactory, proxy: Proxy, consume: Consume
    ) -> None:
        backend = proxied("a")
        sent, consumer, delivery = await begin_one(backend, consume)
        proxy.cut()
        await until(lambda: delivery.is_lost)
        with pytest.raises(AlreadySettled):
            await delivery.release()
        again = await take(consumer)
        assert again.envelope == sent

    @pytest.mark.contract(33, 153)
    async def test_an_old_tag_never_settles_a_new_message(
        self, proxied: BackendFactory, proxy: Proxy, node: PrivateNode, consume: Consume
    ) -> None:
        backend = proxied("a")
        consumer = consume(backend, prefetch=1)
        send(backend, 1)
        old = await take(consumer)
        proxy.cut()
        await until(lambda: old.is_lost)
        again = await take(consumer)
        assert again.envelope == old.envelope
        assert again.deliveries == 2
        with pytest.raises(AlreadySettled):
            await old.release()
        await consumer.flush_to_the_broker()
        await has_messages(node, backend, 1)


class TestEarlyArrivals:
    backend_name = "rabbitmq"

    @pytest.mark.contract(141)
    async def test_what_comes_early_is_held_again_uncounted_and_told_once(
        self, make: BackendFactory, consume: Consume, caplog: pytest.LogCaptureFixture
    ) -> None:
        backend = make("a")
        backend.declare(backend.queues.values())
        due = time.time() + 3
        sent = [make_envelope(priority=4) for _ in range(5)]
        for envelope in sent:  # as a policy with a lower TTL lets them out
            message = codec.encode(envelope, 4, held=3)
            backend._publisher.publish(backend.topology.entrance, "a", message).result(PATIENCE)
        consumer = consume(backend)
        for _ in sent:
            delivery = await take(consumer)
            assert time.time() >= due - 1.05
            assert delivery.envelope in sent
            assert delivery.deliveries == 1
            assert delivery.starts == 0
            await delivery.ack()
        told = [r for r in caplog.records if "held again" in r.getMessage()]
        assert [record.levelno for record in told] == [logging.WARNING]

    @pytest.mark.slow
    @pytest.mark.contract(140, 143)
    async def test_five_holds_in_a_row_make_up_a_long_delay(
        self, make: BackendFactory, consume: Consume, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("django_jobq.backends.rabbitmq.topology.MAX_HOLD", 2)
        backend = make("a")
        consumer = consume(backend)
        holds = []
        hold_again = backend.hold_again
        monkeypatch.setattr(
            backend, "hold_again", lambda delivery: holds.append(delivery) or hold_again(delivery)
        )
        (sent,) = [make_envelope(priority=3, headers={"trace": "t"})]
        began = time.time()
        backend.publish(sent, 9.4).result(PATIENCE)
        delivery = await take(consumer)
        assert 9.4 - 1.0 <= time.time() - began < 9.4 + 10
        assert delivery.envelope == sent
        assert delivery.priority == backend.topology.priority(3, held=True)
        assert len(holds) == 4
        # The broker counts the passes of a message; to it each hold was the first one.
        assert [death["count"] for death in holds[-1].headers["x-death"]] == [1]
        await delivery.ack()

    @pytest.mark.slow
    @pytest.mark.contract(98, 143)
    async def test_five_deferrals_in_a_row_arrive(
        self, make: BackendFactory, consume: Consume
    ) -> None:
        backend = make("a")
        (sent,) = send(backend, 1)
        consumer = consume(backend)
        for number in range(5):
            delivery = await take(consumer)
            assert delivery.envelope.job_id == sent.job_id
            assert delivery.envelope.deferrals == number
            await delivery.defer(delivery.envelope.deferred(), 1)
        delivery = await take(consumer)
        assert (delivery.envelope.deferrals, delivery.envelope.attempt) == (5, 1)
        await delivery.ack()


class TestEnding:
    backend_name = "rabbitmq"

    @pytest.mark.contract(19)
    async def test_stopping_gives_back_what_was_not_handed_out_at_once_and_in_order(
        self, make: BackendFactory
    ) -> None:
        backend = make("a")
        sent = send(backend, 30)
        consumer = backend.consume("a", 20)
        first = await take(consumer)
        await until(lambda: len(consumer._ready) == 19)
        await consumer.stop()
        name = backend.topology.work_queue(backend.queue("a"))
        await until(lambda: ready(make.url, name) == 29, 3)
        assert job_ids(browse(make.url, name)) == [envelope.job_id for envelope in sent[1:]]
        await first.ack()
        await consumer.aclose()
        assert ready(make.url, name) == 29

    @pytest.mark.contract(19)
    async def test_b67_what_was_only_buffered_is_not_counted_as_started(
        self, make: BackendFactory, consume: Consume
    ) -> None:
        backend = make("a")
        sent = send(backend, 3)
        for _ in range(8):  # more than the delivery limit
            consumer = backend.consume("a", 10)
            await take(consumer)
            await until(lambda consumer=consumer: len(consumer._ready) == 2)
            await consumer.aclose()
        consumer = consume(backend)
        assert set(await ack_all(consumer, 3)) == {envelope.job_id for envelope in sent}

    @pytest.mark.contract(19)
    async def test_a_job_handed_back_is_not_counted_as_a_start(
        self, make: BackendFactory, consume: Consume
    ) -> None:
        backend = make("a")
        (sent,) = send(backend, 1)
        for _ in range(8):  # more than the delivery limit
            consumer = backend.consume("a", 1)
            delivery = await take(consumer)
            assert await delivery.begin()
            await consumer.stop()
            await delivery.release()
            await consumer.aclose()
        delivery = await take(consume(backend))
        assert delivery.envelope == sent
        assert delivery.starts == 0


async def settle(delivery: Delivery, how: str) -> None:
    match how:
        case "ack":
            await delivery.ack()
        case "retry":
            await delivery.retry(delivery.envelope.next_attempt(), 0)
        case "defer":
            await delivery.defer(delivery.envelope.deferred(), 0)
        case "dead_letter":
            await delivery.dead_letter("fatal", "why not")


@pytest.mark.contract(15, 156)
def test_a_loop_that_ends_while_its_connection_closes_is_not_held_up(make: BackendFactory) -> None:
    async def begin_to_close(turns: int) -> None:
        backend = make("a")
        consumer = backend.consume("a", 10)
        await asyncio.to_thread(send, backend, 1)
        await take(consumer)
        backend.close()
        for _ in range(turns):
            await asyncio.sleep(0)

    for turns in range(12):
        # On a daemon thread, since a loop that is held up never gives its thread back.
        thread = threading.Thread(target=asyncio.run, args=(begin_to_close(turns),), daemon=True)
        thread.start()
        thread.join(PATIENCE)
        assert not thread.is_alive(), f"held up after {turns} turns of the loop"
