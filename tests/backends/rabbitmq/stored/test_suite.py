"""The suite of producer and worker on RabbitMQ with an outbox, and with holds in the database."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import pytest
from django.conf import settings
from django.db import OperationalError, connections

from django_jobq.backends.base import Backend
from django_jobq.backends.rabbitmq import RabbitMQBackend
from django_jobq.queues import QueueConfig
from django_jobq.store import holds
from django_jobq.worker.relay import Relay
from tests.backends.rabbitmq_contract import RabbitMQHooks
from tests.backends.worker_contract import WorkerContract
from tests.store.tools import USING


class StoredRabbitMQHooks(RabbitMQHooks):
    backend_name: str = settings.DATABASES[USING]["ENGINE"].rpartition(".")[2]
    comes_back_at_once = False

    def make_backend(self, *queues: QueueConfig) -> RabbitMQBackend:
        return self._factory(*queues, database=USING)

    async def ready(self, backend: Backend, number: int, queue: str = "a") -> None:
        """Wait until a queue has that many jobs ready; what is due is published meanwhile."""
        relay = Relay(backend, USING)

        def sweep() -> None:
            try:
                relay.sweep()
            finally:
                connections.close_all()

        deadline = time.monotonic() + self.patience
        while backend.counts(queue).ready != number:
            assert time.monotonic() < deadline, "the state was not reached in time"
            await asyncio.to_thread(sweep)

    @contextmanager
    def break_storing(self, backend: Backend) -> Iterator[None]:
        refused = OperationalError("no space left on device")
        with mock.patch.object(holds, "put", side_effect=refused), super().break_storing(backend):
            yield


@pytest.mark.django_db(transaction=True, databases=[USING])
class TestWorkerWithDatabase(StoredRabbitMQHooks, WorkerContract):
    """Run the suite with each database."""
