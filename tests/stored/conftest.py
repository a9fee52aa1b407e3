"""A transport that leaves storing to the database, of which nothing but the jobs matters here."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest
from django.db import connections

from django_jobq.backends.handler import backends
from django_jobq.backends.memory import MemoryBackend
from django_jobq.conf import AliasSettings
from django_jobq.envelope import Envelope
from django_jobq.queues import QueueConfig
from django_jobq.worker.services import Service
from django_jobq.worker.stats import WorkerStats
from django_jobq.worker.worker import Worker
from tests.store.tools import USING

PATIENCE = 30.0


class StoringBackend(MemoryBackend):
    """Keep jobs in memory, but their holds and the outbox in the database.

    ``refuse`` makes a publish fail: it is called with the envelope and returns the error, or None.
    """

    leaves_storing = True
    refuse: Callable[[Envelope], Exception | None] = staticmethod(lambda _: None)

    def _submit(self, envelope: Envelope, delay: float, *, front: bool) -> Future[None]:
        error = self.refuse(envelope)
        if error is None:
            return super()._submit(envelope, delay, front=front)
        failed: Future[None] = Future()
        failed.set_exception(error)
        return failed


@pytest.fixture
def make_storing() -> Callable[..., StoringBackend]:
    """Return a factory of the backend of the alias default, which it becomes."""

    def make(**settings: Any) -> StoringBackend:
        values = {"alias": "default", "backend": "memory", "database": USING, **settings}
        values.setdefault("queues", {"default": QueueConfig(name="default")})
        backend = StoringBackend(AliasSettings(**values))
        backends._backends["default"] = backend
        return backend

    return make


@pytest.fixture
def storing(make_storing: Callable[..., StoringBackend]) -> StoringBackend:
    return make_storing()


@pytest.fixture
def burst(storing: StoringBackend) -> Callable[..., WorkerStats]:
    """Run a worker with lanes of its own until nothing is due."""

    def run(backend: StoringBackend = storing, **options: Any) -> WorkerStats:
        worker = Worker(backend, burst=True, **options)
        return asyncio.run(asyncio.wait_for(worker.run(), PATIENCE))

    return run


def work(service: Service, before: Callable[[], None] = lambda: None) -> float:
    """Let a service do one pass; what it calls is called on a thread, after ``before``."""

    def run(func: Callable[[], Any]) -> Any:
        try:
            before()
            return func()
        finally:
            connections.close_all()

    async def call(func: Callable[[], Any]) -> Any:
        return await asyncio.to_thread(run, func)

    return asyncio.run(service.work(call))
