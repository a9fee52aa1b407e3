"""The suite of backends on RabbitMQ, with what its priorities come to on quorum queues."""

import pytest

from django_jobq.backends.base import Backend
from django_jobq.envelope import Envelope
from tests.backends.contract import BackendContract
from tests.backends.hooks import make_envelope
from tests.backends.rabbitmq_contract import RabbitMQHooks


class TestRabbitMQContract(RabbitMQHooks, BackendContract):
    """Run the suite on the type of queue under test."""

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
