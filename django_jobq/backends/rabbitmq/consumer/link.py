"""The connection that all consumers of a backend share on one event loop.

Each new connection has a higher generation. Consumers that notice the same outage wait for the same
attempt. `_Transport` gives the client a reader that takes the deliveries out; see frames.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Awaitable
from typing import Any

import aio_pika
import aiormq
from aiormq.exceptions import (
    AMQPConnectionError,
    AMQPError,
    InvalidFrameError,
    ProbableAuthenticationError,
)
from yarl import URL

from django_jobq.backends.rabbitmq.consumer.frames import FrameReader
from django_jobq.backends.rabbitmq.options import RabbitMQOptions
from django_jobq.backends.rabbitmq.url import BrokerAddress
from django_jobq.backends.rabbitmq.versions import shortcoming
from django_jobq.exceptions import AccessRefused, BackendUnavailable, ShutDown

logger = logging.getLogger("django_jobq.rabbitmq")

CONNECT_TIMEOUT = 10.0
CLOSE_TIMEOUT = 3.0
# What a client of the broker raises for a lost connection, and a transport below it.
LOST = (AMQPError, OSError, RuntimeError, asyncio.TimeoutError)


def is_outage(error: BaseException) -> bool:
    """Return whether an error says no more than that a channel or its connection is gone.

    The client says so with a bare Exception, too, and by cancelling what waits for an answer.
    """
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and not task.cancelling()
    return isinstance(error, (BackendUnavailable, *LOST)) or type(error) is Exception


async def tolerate(call: Awaitable[object]) -> None:
    """Wait a moment for a call that the client may fail in any way.

    One that is under way when its channel dies raises a bare Exception or CancelledError, which
    must not pass for a cancellation of whoever waits.
    """
    task = asyncio.ensure_future(call)
    await asyncio.wait({task}, timeout=CLOSE_TIMEOUT)
    if not task.done():
        task.cancel()
    elif not task.cancelled():
        task.exception()


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class OpenChannel:
    """Hold a channel with the two ends of its connection, which has a ``generation``."""

    channel: Any
    reader: FrameReader
    writer: asyncio.StreamWriter
    generation: int

    @property
    def number(self) -> int:
        """Return the number of the channel on its connection."""
        return int(self.channel.number)

    async def close(self) -> None:
        """Close the channel, if it is still there."""
        self.reader.unsubscribe(self.number)
        if not self.channel.is_closed:
            await tolerate(self.channel.close())


async def _close(connection: aio_pika.Connection) -> None:
    """Close a connection, so that nothing of it outlives a loop that ends meanwhile.

    By itself it waits, when it is cancelled, for an end that never comes.
    """
    underlay, connection.transport = connection.transport, None
    await connection.close()
    if underlay is not None:
        await tolerate(underlay.connection.close())


class Link:
    """Hold the consuming connection of a backend on one event loop."""

    def __init__(self, address: BrokerAddress, options: RabbitMQOptions) -> None:
        self.generation = 0
        self._address, self._options = address, options
        self._connection: Any = None
        self._transport: _Transport | None = None
        self._lock = asyncio.Lock()
        self._closing = asyncio.Event()
        self._failures = 0

    async def channel(self, stopped: asyncio.Event) -> OpenChannel:
        """Return a new channel, however long that takes.

        Raise ShutDown if the link is closed or ``stopped`` set meanwhile, and AccessRefused if
        access is refused.
        """
        while True:
            async with self._lock:
                if self._closing.is_set() or stopped.is_set():
                    raise ShutDown("consumer", "rabbitmq")
                try:
                    return await self._open()
                except ProbableAuthenticationError as error:
                    raise AccessRefused(
                        f"the broker refuses the user or password of {self._address}"
                    ) from error
                except LOST as error:
                    # A connection that gives no channel is dead, whatever it says of itself.
                    await self._drop()
                    if isinstance(error, InvalidFrameError) and "Connection.Close" in str(error):
                        raise AccessRefused(
                            f"the broker refuses or does not have the vhost of {self._address}"
                        ) from error
                    await self._wait_after(error, stopped)

    async def close(self) -> None:
        """End a wait to reconnect, close the connection, and never connect again."""
        self._closing.set()
        await self._drop()

    async def _open(self) -> OpenChannel:
        if self._connection is None or self._connection.is_closed:
            self._transport = _Transport(self._address, self._options)
            self._connection = await self._connect(self._transport)
            self.generation += 1
            self._failures = 0
            self._tell_of_the_broker()
        transport = self._transport
        assert transport is not None
        async with asyncio.timeout(CONNECT_TIMEOUT):
            channel = self._connection.channel(publisher_confirms=False)
            await channel.initialize()
            underlay = await channel.get_underlay_channel()
        return OpenChannel(underlay, transport.reader, transport.writer, self.generation)

    def _tell_of_the_broker(self) -> None:
        logger.info("Consuming from %s", self._address)
        properties = self._connection.transport.connection.server_properties
        missing = shortcoming(self._options.queue_type, str(properties.get("version", "")))
        if missing is not None and self.generation == 1:
            logger.warning("%s", missing)

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await _close(connection)

    async def _connect(self, transport: _Transport) -> Any:
        address, options = self._address, self._options
        url = URL.build(
            scheme="amqps" if address.tls else "amqp",
            host=address.host,
            port=address.port,
            user=address.user,
            password=address.password,
            path="/" + address.vhost.replace("/", "%2F"),
            query={"heartbeat": str(int(options.heartbeat))},
        )
        connection = aio_pika.Connection(
            url, client_properties={"connection_name": f"{options.connection_name} consumer"}
        )
        connection.kwargs["transport_factory"] = transport
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                await connection.connect()
        except BaseException:
            # Or it closes itself when it is collected, on a loop that may be gone by then.
            await _close(connection)
            raise
        return connection

    async def _wait_after(self, error: BaseException, stopped: asyncio.Event) -> None:
        self._failures += 1
        wait = self._options.reconnect_wait(self._failures)
        logger.warning(
            "No consuming connection to %s (%s); attempt %s in %.1f s",
            self._address,
            str(error) or type(error).__name__,
            self._failures + 1,
            wait,
        )
        ends = [asyncio.ensure_future(event.wait()) for event in (self._closing, stopped)]
        await asyncio.wait(ends, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()


class _Transport(aiormq.TransportFactory):
    """Connect a socket for the client, and keep its two ends."""

    reader: FrameReader
    writer: asyncio.StreamWriter

    def __init__(self, address: BrokerAddress, options: RabbitMQOptions) -> None:
        self._address, self._options = address, options

    async def create(
        self, url: URL, **kwargs: Any
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect to the address; what the client makes of it by itself does not matter."""
        loop, address = asyncio.get_running_loop(), self._address
        tls: dict[str, Any] = {}
        if address.tls:
            name = self._options.server_hostname or address.host
            tls = {"ssl": self._options.tls_context(), "server_hostname": name}
        self.reader = FrameReader()
        protocol = asyncio.StreamReaderProtocol(self.reader, loop=loop)
        try:
            transport, _ = await loop.create_connection(
                lambda: protocol, address.host, address.port, **tls
            )
        except OSError as error:
            raise AMQPConnectionError(*error.args) from error
        self.writer = asyncio.StreamWriter(transport, protocol, self.reader, loop)
        return self.reader, self.writer
