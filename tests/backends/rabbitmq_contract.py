"""The hooks of the contract suite for the RabbitMQ backend, on one prefix for the whole session."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from django_jobq.backends.base import Backend
from django_jobq.backends.rabbitmq import RabbitMQBackend
from django_jobq.envelope import Envelope
from django_jobq.queues import QueueConfig
from tests.backends.contract import BackendContract, make_envelope
from tests.backends.rabbitmq.support import BackendFactory, channel, letters
from tests.lane import lane


class RabbitMQHooks(BackendContract):
    backend_name = "rabbitmq"
    # Holds round up to a second; what takes the rest of it is waited for with patience.
    granularity = 0.25
    patience = 10.0
    silence = 0.2

    @pytest.fixture(autouse=True)
    def _fresh_queues(
        self, shared_broker: str, session_prefix: Callable[[str], str]
    ) -> Iterator[None]:
        self.url = shared_broker
        self.lane = lane(shared_broker)
        self._factory = BackendFactory(shared_broker, session_prefix)
        yield
        self._factory.close()

    def make_backend(self, *queues: QueueConfig) -> RabbitMQBackend:
        return self._factory(*queues)

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def inject(self, backend: Backend, queue: str, body: bytes) -> None:
        assert isinstance(backend, RabbitMQBackend)
        with channel(self.url) as ch:
            ch.basic_publish(backend.topology.entrance, queue, body)

    @contextmanager
    def break_storing(self, backend: Backend) -> Iterator[None]:
        assert isinstance(backend, RabbitMQBackend)
        topology = backend.topology
        work = topology.work_queue(backend.queue("a"))
        with self.no_route(backend, work, topology.entrance, "a"):
            yield

    @contextmanager
    def break_filing(self, backend: Backend) -> Iterator[None]:
        assert isinstance(backend, RabbitMQBackend)
        topology = backend.topology
        with self.no_route(backend, topology.dead, topology.dead_exchange, ""):
            yield

    async def dead_letters(self, backend: Backend, queue: str) -> list[Any]:
        assert isinstance(backend, RabbitMQBackend)
        found = letters(self.url, backend.topology)
        # What the broker itself dead-lettered has no header of ours.
        return [letter for letter in found if letter.queue in (queue, None)]

    # What the suite demands of priorities, as far as quorum queues of a version have them

    async def arrivals(self, backend: Backend, number: int) -> list[Envelope]:
        await self.until(lambda: backend.counts("a").ready == number)
        taken = await self.take_many(backend.consume("a", 0), number)
        return [delivery.envelope for delivery in taken]

    @pytest.mark.contract(7)
    async def test_higher_priorities_come_first(self) -> None:
        if self.lane.priorities == "strict":
            return await super().test_higher_priorities_come_first()
        backend = self.open("a")
        levels = (0, 9, 4, 0, 9, 5, 4, 6)
        sent = [await self.publish(backend, make_envelope(priority=level)) for level in levels]
        expected = self.lane.in_order(sent, lambda envelope: envelope.priority)
        assert await self.arrivals(backend, len(levels)) == expected
        return None

    @pytest.mark.contract(32, 44, 97, 100)
    async def test_what_is_deferred_returns_at_the_top(self) -> None:
        if self.lane.priorities == "strict":
            return await super().test_what_is_deferred_returns_at_the_top()
        backend = self.open("a")
        deferred = await self.defer(backend, make_envelope(), 1)
        meanwhile = await self.publish(backend, make_envelope(priority=4))
        await self.pass_time(1 + self.granularity)
        first = deferred if self.lane.priorities == "two classes" else meanwhile
        assert (await self.arrivals(backend, 2))[0] == first
        return None

    @pytest.mark.contract(101)
    async def test_a_retry_returns_at_its_own_priority(self) -> None:
        if self.lane.priorities == "strict":
            return await super().test_a_retry_returns_at_its_own_priority()
        backend = self.open("a")
        await self.defer(backend, make_envelope(priority=2))
        consumer = backend.consume("a", 1)
        delivery = await self.take(consumer)
        await consumer.stop()
        again = delivery.envelope.next_attempt()
        await delivery.retry(again, 0)
        higher = await self.publish(backend, make_envelope(priority=5))
        expected = [higher, again] if self.lane.priorities == "two classes" else [again, higher]
        assert await self.arrivals(backend, 2) == expected
        return None

    @pytest.mark.contract(43)
    async def test_a_delayed_job_returns_behind_its_priority(self) -> None:
        if self.lane.queue_type == "classic":
            return await super().test_a_delayed_job_returns_behind_its_priority()
        # A quorum hold raises what is in it to 5, so that is the priority it is behind.
        backend = self.open("a")
        delayed = await self.publish(backend, make_envelope(), 1)
        meanwhile = await self.publish(backend, make_envelope(priority=5))
        await self.pass_time(1 + self.granularity)
        assert await self.arrivals(backend, 2) == [meanwhile, delayed]
        return None

    @contextmanager
    def no_route(
        self, backend: RabbitMQBackend, queue: str, exchange: str, key: str
    ) -> Iterator[None]:
        """Unbind a queue, and forbid the backend to repair that."""
        with channel(self.url) as ch:
            ch.queue_unbind(queue, exchange, key)
        may_declare = backend._may_declare
        backend._may_declare = lambda: False  # type: ignore[method-assign]
        try:
            yield
        finally:
            backend._may_declare = may_declare  # type: ignore[method-assign]
            with channel(self.url) as ch:
                ch.queue_bind(queue, exchange, key)
