"""A queue whose messages are read as they come and removed once somebody has stored them.

It is a list more than a stream: what waits is seen again and again until it is removed. What is not
removed when its channel is lost comes again on the next one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from django_jobq.backends.rabbitmq.consumer.frames import Message
from django_jobq.backends.rabbitmq.consumer.link import OpenChannel, is_outage
from django_jobq.backends.rabbitmq.consumer.session import Session
from django_jobq.exceptions import BackendUnavailable, ShutDown

if TYPE_CHECKING:
    from django_jobq.backends.rabbitmq.backend import RabbitMQBackend

# Bodies may be as large as the broker allows.
PREFETCH = 20
_ARRIVAL_PATIENCE = 2.0


class Inbox:
    """Read one queue of the broker."""

    def __init__(self, backend: RabbitMQBackend, queue: str) -> None:
        self.loop = asyncio.get_running_loop()
        self._backend, self._queue = backend, queue
        self._session: Session | None = None
        self._closing = asyncio.Event()
        self._waiting: dict[int, Message] = {}
        self._arrived = asyncio.Event()

    async def messages(self) -> list[Message]:
        """Return what has come and was not removed, or raise BackendUnavailable."""
        session = self._session
        if session is None or session.is_cancelled or not session.is_alive:
            await self._open()
        return list(self._waiting.values())

    def remove(self, messages: Iterable[Message]) -> None:
        """Acknowledge messages; one whose channel was lost comes again."""
        for message in messages:
            if self._session is not None and self._waiting.get(message.tag) is message:
                del self._waiting[message.tag]
                self._session.acknowledge(message.tag)

    async def aclose(self) -> None:
        """Close the channel: the broker takes back what is not removed."""
        self._closing.set()
        await self._drop()
        await self._backend.forget(self)

    async def _open(self) -> None:
        await self._drop()
        if self._backend.is_closed:
            raise ShutDown(self._backend.alias, self._backend.driver)
        opened = await self._backend.link().channel(self._closing)
        self._session = session = Session(opened, PREFETCH, lambda _: None)
        try:
            await self._consume(opened, session)
        except (asyncio.CancelledError, Exception) as error:
            await self._drop()
            if not is_outage(error):
                raise
            if session.end.startswith("404") and self._backend.settings.declare == "auto":
                await asyncio.to_thread(self._backend.declare_shared)
            reason = session.end or repr(error)
            raise BackendUnavailable(f"cannot read queue {self._queue!r}: {reason}") from error

    async def _consume(self, opened: OpenChannel, session: Session) -> None:
        """Begin to consume, and wait a moment for what is in the queue already."""
        await session.open(self._receive)
        there = await opened.channel.queue_declare(self._queue, passive=True)
        await session.consume(self._queue)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ARRIVAL_PATIENCE):
                while session.is_alive and len(self._waiting) < min(there.message_count, PREFETCH):
                    self._arrived.clear()
                    await self._arrived.wait()

    def _receive(self, message: Message) -> None:
        assert self._session is not None
        self._session.expect(message)
        self._waiting[message.tag] = message
        self._arrived.set()

    async def _drop(self) -> None:
        session, self._session = self._session, None
        self._waiting.clear()
        if session is not None:
            await session.close()
