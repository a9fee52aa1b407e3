"""The hooks of the contract suite for the RabbitMQ backend, on one prefix for the whole session."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from django_jobq.backends.base import Backend
from django_jobq.backends.rabbitmq import RabbitMQBackend
from django_jobq.queues import QueueConfig
from tests.backends.hooks import BackendHooks
from tests.backends.rabbitmq.support import BackendFactory, channel, letters
from tests.lane import lane


class RabbitMQHooks(BackendHooks):
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
        self.priorities = self.lane.priorities
        self._factory = BackendFactory(shared_broker, session_prefix)
        yield
        self._factory.close()

    def make_backend(self, *queues: QueueConfig) -> RabbitMQBackend:
        return self._factory(*queues)

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def held_level(self) -> int:
        return self.lane.held_level

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

    def is_untouched(self, backend: Backend) -> bool:
        assert isinstance(backend, RabbitMQBackend)
        return backend._publisher._engine is None and not backend._links

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
