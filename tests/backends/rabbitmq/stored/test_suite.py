"""The suite of producer and worker on RabbitMQ with an outbox, and with holds in the database."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from unittest import mock

import pytest
from django.conf import settings
from django.db import OperationalError

from django_jobq.backends.base import Backend
from django_jobq.backends.memory import MemoryDeadLetter
from django_jobq.backends.rabbitmq import RabbitMQBackend
from django_jobq.envelope import decode_or_none
from django_jobq.models import DeadLetter
from django_jobq.queues import QueueConfig
from django_jobq.store import holds
from django_jobq.worker.relay import Relay
from tests.backends.rabbitmq_contract import RabbitMQHooks
from tests.backends.worker_contract import WorkerContract
from tests.store.tools import USING

R = TypeVar("R")


def letters_on_file(queue: str) -> list[MemoryDeadLetter]:
    """Return dead letters of the database as the suite wants them."""
    return [
        MemoryDeadLetter(
            queue=letter.queue,
            body=bytes(letter.body),
            cause=letter.cause,
            reason=letter.reason,
            envelope=decode_or_none(bytes(letter.body)),
            attempts=letter.attempts,
            died_at=letter.died_at.timestamp(),
        )
        for letter in DeadLetter.objects.using(USING).filter(queue=queue).order_by("id")
    ]


class StoredRabbitMQHooks(RabbitMQHooks):
    backend_name: str = settings.DATABASES[USING]["ENGINE"].rpartition(".")[2]
    comes_back_at_once = False

    def make_backend(self, *queues: QueueConfig) -> RabbitMQBackend:
        return self._factory(*queues, database=USING)

    def held_level(self) -> int:
        return 0  # since the database holds it

    async def ready(self, backend: Backend, number: int, queue: str = "a") -> None:
        """Wait until a queue has that many jobs ready; what is due is published meanwhile."""
        relay = Relay(backend, USING)

        deadline = time.monotonic() + self.patience
        while backend.counts(queue).ready != number:
            assert time.monotonic() < deadline, "the state was not reached in time"
            await self.on_thread(relay.sweep)

    async def dead_letters(self, backend: Backend, queue: str) -> list[Any]:
        """Return what is on file, and what no worker has filed yet."""
        waiting = await super().dead_letters(backend, queue)
        found = await self.on_thread(letters_on_file, queue)
        bodies = [letter.body for letter in found]
        return [*found, *(letter for letter in waiting if letter.body not in bodies)]

    @contextmanager
    def break_storing(self, backend: Backend) -> Iterator[None]:
        refused = OperationalError("no space left on device")
        with mock.patch.object(holds, "put", side_effect=refused), super().break_storing(backend):
            yield


@pytest.mark.django_db(transaction=True, databases=[USING])
class TestWorkerWithDatabase(StoredRabbitMQHooks, WorkerContract):
    """Run the suite with each database."""
