"""What the conformance suites need of a backend, and the tools that they share.

Each test makes backends of its own, so queues must be fresh at every `make_backend()`.
"""

import asyncio
import time
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Literal

import pytest

from django_jobq.backends.base import Backend, Consumer, Delivery
from django_jobq.envelope import Envelope
from django_jobq.exceptions import ShutDown
from django_jobq.queues import QueueConfig

DEFAULT_CONFIG = QueueConfig(name="a")


def make_envelope(queue: str = "a", **fields: Any) -> Envelope:
    """Return an envelope that needs no registered job."""
    values: dict[str, Any] = {
        "job_id": uuid.uuid4(),
        "job": "tests.noop",
        "queue": queue,
        "enqueued_at": time.time_ns() // 1_000_000,
        "args": [1],
        "kwargs": {"text": "naïve"},
    }
    return Envelope(**{**values, **fields})


class BackendHooks(ABC):
    """Give the suites one backend; ``granularity`` is the seconds to which its holds may round up.

    Let a hook class inherit from it, and what pytest collects from that and from a suite.
    """

    backend_name: str
    granularity = 0.0
    patience = 2.0
    """How long a delivery that must come may take; seconds."""
    silence = 0.1
    """How long to wait for a delivery that must not come; seconds."""
    priorities: Literal["strict", "two classes", "none"] = "strict"
    """How the priorities of a queue order its jobs."""

    # Hooks

    @abstractmethod
    def make_backend(self, *queues: QueueConfig) -> Backend:
        """Return a new backend whose queues are empty."""

    @abstractmethod
    async def pass_time(self, seconds: float) -> None:
        """Let time pass for holds: move a clock, or sleep."""

    def now(self) -> float:
        """Return the seconds of the clock that holds go by."""
        return time.monotonic()

    def held_level(self) -> int:
        """Return the level that what comes back from a delay or a retry has at least."""
        return 0

    @abstractmethod
    async def inject(self, backend: Backend, queue: str, body: bytes) -> None:
        """Put a raw body on a queue, as a foreign publisher would."""

    @abstractmethod
    def break_storing(self, backend: Backend) -> AbstractContextManager[None]:
        """Let storing a successor fail meanwhile."""

    @abstractmethod
    def break_filing(self, backend: Backend) -> AbstractContextManager[None]:
        """Let storing a dead letter fail meanwhile."""

    @abstractmethod
    async def dead_letters(self, backend: Backend, queue: str) -> list[Any]:
        """Return the queue's dead letters: objects with the fields of a MemoryDeadLetter."""

    @abstractmethod
    def is_untouched(self, backend: Backend) -> bool:
        """Return whether nothing has reached for the transport yet."""

    # Tools

    def setup_method(self) -> None:
        self._opened: list[Backend] = []

    def teardown_method(self) -> None:
        for backend in self._opened:
            backend.close()

    def open(self, *queues: QueueConfig | str) -> Backend:
        """Return a backend with these queues declared."""
        configs = self._configs(queues)
        backend = self.make(*configs)
        backend.declare(configs)
        return backend

    def make(self, *queues: QueueConfig | str) -> Backend:
        """Return a backend that is closed at the end of the test."""
        backend = self.make_backend(*self._configs(queues))
        self._opened.append(backend)
        return backend

    def _configs(self, queues: Iterable[QueueConfig | str]) -> list[QueueConfig]:
        configs = [QueueConfig(name=q) if isinstance(q, str) else q for q in queues]
        return configs or [DEFAULT_CONFIG]

    async def publish(self, backend: Backend, envelope: Envelope, delay: float = 0) -> Envelope:
        await asyncio.wrap_future(backend.publish(envelope, delay))
        return envelope

    async def defer(self, backend: Backend, envelope: Envelope, delay: float = 0) -> Envelope:
        await asyncio.wrap_future(backend.defer(envelope, delay))
        return envelope

    async def take(self, consumer: Consumer) -> Delivery:
        return await asyncio.wait_for(anext(consumer), self.patience)

    async def take_many(self, consumer: Consumer, number: int) -> list[Delivery]:
        return [await self.take(consumer) for _ in range(number)]

    async def expect_nothing(self, consumer: Consumer) -> None:
        try:
            delivery = await asyncio.wait_for(anext(consumer), self.silence)
        except TimeoutError:
            return
        pytest.fail(f"unexpected delivery of {delivery.body!r}")

    async def expect_end(self, consumer: Consumer) -> None:
        with pytest.raises((StopAsyncIteration, ShutDown)):
            await asyncio.wait_for(anext(consumer), self.patience)

    async def until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + self.patience
        while not condition():
            assert time.monotonic() < deadline, "the state was not reached in time"
            await asyncio.sleep(0.01)
