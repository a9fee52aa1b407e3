"""The hooks of the conformance suites for the memory backend, on a clock that the suites move."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from django_jobq.backends.base import Backend
from django_jobq.backends.memory import ManualClock, MemoryBackend
from django_jobq.backends.memory.state import QueueState
from django_jobq.conf import AliasSettings
from django_jobq.queues import QueueConfig
from tests.backends.hooks import BackendHooks


class MemoryHooks(BackendHooks):
    backend_name = "memory"
    backend_class: type[MemoryBackend] = MemoryBackend

    def setup_method(self) -> None:
        super().setup_method()
        self.clock = ManualClock()

    def make_backend(self, *queues: QueueConfig) -> Backend:
        settings = AliasSettings(
            alias="default", backend="memory", queues={config.name: config for config in queues}
        )
        return self.backend_class(settings, clock=self.clock)

    async def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def now(self) -> float:
        return self.clock()

    async def inject(self, backend: Backend, queue: str, body: bytes) -> None:
        assert isinstance(backend, MemoryBackend)
        backend.inject(queue, body)

    @contextmanager
    def break_storing(self, backend: Backend) -> Iterator[None]:
        with mock.patch.object(QueueState, "insert", side_effect=OSError("disk on fire")):
            yield

    @contextmanager
    def break_filing(self, backend: Backend) -> Iterator[None]:
        with mock.patch.object(QueueState, "bury", side_effect=OSError("disk on fire")):
            yield

    async def dead_letters(self, backend: Backend, queue: str) -> list[Any]:
        assert isinstance(backend, MemoryBackend)
        return list(backend.dead_letters(queue))

    def is_untouched(self, backend: Backend) -> bool:
        assert isinstance(backend, MemoryBackend)
        return backend.queue_names() == []
