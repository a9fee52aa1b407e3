"""Consuming: one aio-pika connection a worker, one channel a queue, its own reconnect loop.

1. `Link` opens the connection that all consumers of a backend share; each new one has a higher
   generation. Consumers that notice the same outage wait for the same attempt.
2. `RabbitMQConsumer` opens a channel, makes sure of its queue, consumes under a fresh tag, and
   starts over when the channel or the connection is gone or the broker cancels the consumer. The
   client's callback only hands over: the client cancels its callbacks when a channel dies.
3. A settled tag is acknowledged with others, when half of the prefetch is settled or after
   FLUSH_INTERVAL: the settled prefix goes as one multiple ack and the rest singly. A tag of an
   older channel is never acknowledged.
4. What a job came to while its channel was lost is kept, by job, attempt and deferrals: when the
   broker delivers the message again, it is settled and not run again; while the job still runs, the
   copy waits for it.

No type of the client leaves this module.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import random
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

import aio_pika
from aiormq.exceptions import AMQPError, InvalidFrameError, ProbableAuthenticationError
from yarl import URL

from django_jobq.backends.base import Cause, Consumer, Delivery, DeliveryLimitReached
from django_jobq.backends.rabbitmq import codec
from django_jobq.backends.rabbitmq.options import RabbitMQOptions
from django_jobq.backends.rabbitmq.url import BrokerAddress
from django_jobq.envelope import Envelope
from django_jobq.exceptions import (
    AccessRefused,
    AlreadySettled,
    BackendError,
    BackendUnavailable,
    ShutDown,
)
from django_jobq.queues import QueueConfig
from django_jobq.retry import exponential_backoff

if TYPE_CHECKING:
    from django_jobq.backends.rabbitmq.backend import RabbitMQBackend

logger = logging.getLogger("django_jobq.rabbitmq")

FLUSH_INTERVAL = 0.001
# With half of the prefetch settled the broker has little left to send: acknowledge at once.
MOST_UNFLUSHED = 50
CONNECT_TIMEOUT = 10.0
CLOSE_TIMEOUT = 3.0
# What a client of the broker raises for a lost connection, and a transport below it.
_LOST = (AMQPError, OSError, RuntimeError, asyncio.TimeoutError)
_KEPT_OUTCOMES = 10_000
_ARRIVAL_PATIENCE = 5.0

Key = tuple[str, int, int]


class Link:
    """Hold the consuming connection of a backend on one event loop."""

    def __init__(self, address: BrokerAddress, options: RabbitMQOptions) -> None:
        self.generation = 0
        self._address, self._options = address, options
        self._connection: Any = None
        self._lock = asyncio.Lock()
        self._closing = asyncio.Event()
        self._failures = 0

    async def channel(self, stopped: asyncio.Event) -> tuple[Any, int]:
        """Return a new channel and the generation of its connection, however long that takes.

        Raise ShutDown if the link is closed or ``stopped`` set meanwhile, and AccessRefused if the
        broker refuses the user, the password or the vhost.
        """
        while True:
            async with self._lock:
                if self._closing.is_set() or stopped.is_set():
                    raise ShutDown("consumer", "rabbitmq")
                try:
                    if self._connection is None or self._connection.is_closed:
                        self._connection = await self._connect()
                        self.generation += 1
                        self._failures = 0
                        logger.info("Consuming from %s", self._address)
                    async with asyncio.timeout(CONNECT_TIMEOUT):
                        channel = self._connection.channel(publisher_confirms=False)
                        await channel.initialize()
                        return await channel.get_underlay_channel(), self.generation
                except ProbableAuthenticationError as error:
                    raise AccessRefused(
                        f"the broker refuses the user or password of {self._address}"
                    ) from error
                except _LOST as error:
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

    async def _drop(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(*_LOST):
                async with asyncio.timeout(CLOSE_TIMEOUT):
                    await connection.close()

    async def _connect(self) -> Any:
        address, options = self._address, self._options
        kwargs: dict[str, Any] = {}
        if address.tls:
            kwargs["ssl_context"] = options.tls_context()
        url = URL.build(
            scheme="amqps" if address.tls else "amqp",
            host=address.host,
            port=address.port,
            user=address.user,
            password=address.password,
            path="/" + address.vhost.replace("/", "%2F"),
            query={"heartbeat": str(int(options.heartbeat))},
        )
        async with asyncio.timeout(CONNECT_TIMEOUT):
            return await aio_pika.connect(
                url,
                client_properties={"connection_name": f"{options.connection_name} consumer"},
                **kwargs,
            )

    async def _wait_after(self, error: BaseException, stopped: asyncio.Event) -> None:
        self._failures += 1
        options = self._options
        longest = exponential_backoff(
            self._failures,
            base=options.reconnect_base,
            factor=2.0,
            longest=options.reconnect_max,
        )
        wait = random.uniform(0, longest)
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


@dataclasses.dataclass(slots=True, eq=False)
class _Session:
    """Hold one channel with what was delivered on it and is not acknowledged yet, in order."""

    channel: Any
    tag: str
    lost: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)
    open_tags: OrderedDict[int, bool] = dataclasses.field(default_factory=OrderedDict)

    @property
    def is_alive(self) -> bool:
        return not self.lost.is_set() and not self.channel.is_closed


class RabbitMQConsumer(Consumer):
    """Stream one queue, over as many channels as it takes."""

    def __init__(self, backend: RabbitMQBackend, config: QueueConfig, prefetch: int) -> None:
        self.backend, self.config = backend, config
        self._prefetch = prefetch
        self._ready: deque[RabbitMQDelivery] = deque()
        self._changed = asyncio.Event()
        self._session: _Session | None = None
        self._task: asyncio.Task[None] | None = None
        self._flush_handle: asyncio.TimerHandle | None = None
        self._spawned: set[asyncio.Task[None]] = set()
        self._stopped = False
        self._closing = asyncio.Event()
        self._failure: BaseException | None = None
        self._in_hand: dict[Key, RabbitMQDelivery] = {}
        self._kept: OrderedDict[Key, Callable[[Delivery], Awaitable[None]]] = OrderedDict()
        self._copies: dict[Key, RabbitMQDelivery] = {}
        self._done: OrderedDict[str, None] = OrderedDict()
        self._expected: dict[str | None, asyncio.Future[RabbitMQDelivery]] = {}
        self._counting = asyncio.Lock()
        self.settle_losses = 0
        self._unflushed = 0
        self._flush_at = max(1, min(prefetch // 2, MOST_UNFLUSHED)) if prefetch else MOST_UNFLUSHED
        self.loop = asyncio.get_running_loop()

    async def __anext__(self) -> Delivery:
        """Wait for the next delivery."""
        if self._task is None and not self._stopped and not self.backend.is_closed:
            self._task = asyncio.create_task(self._serve())
        while True:
            if self._ready and not self._stopped and not self.backend.is_closed:
                return self._ready.popleft()
            if self._stopped or self.backend.is_closed:
                raise StopAsyncIteration
            if self._failure is not None:
                raise self._failure
            self._changed.clear()
            await self._changed.wait()

    async def stop(self) -> None:
        """Cancel the consumer; what was not handed out goes back in order."""
        if self._stopped:
            return
        self._stopped = True
        self._closing.set()
        self._changed.set()
        session = self._session
        if session is not None and session.is_alive:
            with contextlib.suppress(*_LOST):
                async with asyncio.timeout(CLOSE_TIMEOUT):
                    await session.channel.basic_cancel(session.tag)
        unread = list(self._ready)
        self._ready.clear()
        # Each goes back to the front, so the first goes last.
        for delivery in reversed(unread):
            await self._nack(delivery)

    async def aclose(self) -> None:
        """Acknowledge what is settled and close the channel: the broker takes back the rest."""
        await self.stop()
        await self.flush()
        session, self._session = self._session, None
        if session is not None:
            session.lost.set()
        if self._task is not None:
            # A cancellation may be swallowed by the client, so it comes last.
            _, left = await asyncio.wait({self._task}, timeout=CLOSE_TIMEOUT)
            if left:
                self._task.cancel()
                await asyncio.wait({self._task}, timeout=CLOSE_TIMEOUT)
        if session is not None:
            await _close_channel(session.channel)
        await self.backend.forget(self)

    def wake(self) -> None:
        """Let the stream look at its state again."""
        self._changed.set()

    # The channel

    async def _serve(self) -> None:
        while not self._stopped:
            try:
                await self._consume_once()
            except ShutDown:
                break
            except (BackendUnavailable, *_LOST) as error:
                if self._stopped:
                    break
                logger.warning("Queue %s: consuming failed: %s", self.config.name, error)
                await asyncio.sleep(1)
            except BackendError as error:
                self._failure = error
                break
        self._changed.set()

    async def _consume_once(self) -> None:
        """Open a channel, consume, and return when it is lost."""
        channel, generation = await self.backend.link().channel(self._closing)
        try:
            self._leave_if_stopped()
            await asyncio.to_thread(self.backend.ensure, self.config, again=True)
            self._leave_if_stopped()
            tag = f"{self.config.name[:100]}.{generation}.{uuid.uuid4().hex[:12]}"
            session = _Session(channel, tag)

            async def receive(message: Any) -> None:
                self._receive(session, message)

            async def cancelled(_frame: Any) -> None:
                logger.warning("The broker cancelled the consumer of queue %s", self.config.name)
                session.lost.set()

            channel.on_consumer_cancel_callbacks.add(cancelled)
            channel.closing.add_done_callback(lambda _: session.lost.set())
            if self._prefetch:
                await channel.basic_qos(prefetch_count=self._prefetch)
            self._leave_if_stopped()
            self._session = session
            name = self.backend.topology.work_queue(self.config)
            await channel.basic_consume(name, receive, consumer_tag=tag)
            if self._stopped:
                session.lost.set()
            await session.lost.wait()
            self._ready.clear()
        finally:
            # A stopped consumer keeps its channel, since deliveries of it may still be settled.
            if not (self._stopped and self._session and self._session.channel is channel):
                await _close_channel(channel)

    def _leave_if_stopped(self) -> None:
        if self._stopped:
            raise ShutDown(self.backend.alias, self.backend.driver)

    def _receive(self, session: _Session, message: Any) -> None:
        properties = message.header.properties
        delivery = RabbitMQDelivery(
            self,
            session,
            tag=message.delivery.delivery_tag,
            body=message.body,
            headers=properties.headers or {},
            priority=properties.priority or 0,
            type=properties.message_type,
            message_id=properties.message_id,
            redelivered=bool(message.delivery.redelivered),
        )
        session.open_tags[delivery.tag] = False
        expected = self._expected.get(delivery.message_id)
        if expected is not None and not expected.done():
            expected.set_result(delivery)
            return
        if delivery.redelivered and delivery.message_id in self._done:
            # Its ack was lost on the way; the message id is the same, unlike that of any copy.
            delivery.settled = True
            self._acknowledge(delivery)
            return
        if delivery.early_by() > 1.0:
            self._spawn(self.backend.hold_again(delivery))
            return
        key = delivery.key
        if delivery.redelivered and key is not None:
            if key in self._kept:
                self._spawn(self._settle_copy(delivery, self._kept.pop(key)))
                return
            first = self._in_hand.get(key)
            if first is not None and not first.settled:
                self._copies[key] = delivery
                return
        self._hand_over(delivery)

    def _hand_over(self, delivery: RabbitMQDelivery) -> None:
        self._ready.append(delivery)
        self._changed.set()

    # Settling

    def settled(self, delivery: RabbitMQDelivery) -> None:
        """Note that a delivery is to be acknowledged at the next flush."""
        self._forget(delivery)
        if delivery.message_id is not None:
            self._done[delivery.message_id] = None
            while len(self._done) > _KEPT_OUTCOMES:
                self._done.popitem(last=False)
        self._acknowledge(delivery)

    def _acknowledge(self, delivery: RabbitMQDelivery) -> None:
        delivery.session.open_tags[delivery.tag] = True
        self._unflushed += 1
        if self._unflushed == self._flush_at:
            self._spawn(self.flush())
        elif self._flush_handle is None:
            self._flush_handle = self.loop.call_later(FLUSH_INTERVAL, self._flush_soon)

    def _flush_soon(self) -> None:
        self._spawn(self.flush())

    async def flush(self) -> None:
        """Acknowledge what is settled: the settled prefix at once, the rest singly."""
        self._unflushed = 0
        if self._flush_handle is not None:
            self._flush_handle.cancel()
            self._flush_handle = None
        session = self._session
        if session is None:
            return
        tags = session.open_tags
        last = None
        for tag, done in list(tags.items()):
            if not done:
                break
            last = tag
            del tags[tag]
        singles = [tag for tag, done in tags.items() if done]
        for tag in singles:
            del tags[tag]
        try:
            if last is not None:
                await session.channel.basic_ack(last, multiple=True, wait=False)
            for tag in singles:
                await session.channel.basic_ack(tag, wait=False)
        except _LOST as error:
            lost = len(singles) + (last is not None)
            self.settle_losses += lost
            logger.error(  # noqa: TRY400 - an outage, not a fault of the code
                "Queue %s: the channel was lost with acks on their way (%s); those jobs may run"
                " again",
                self.config.name,
                error,
            )

    async def flush_to_the_broker(self) -> None:
        """Acknowledge what is settled, and wait until the broker has read it."""
        await self.flush()
        session = self._session
        if session is not None and session.is_alive:
            # The methods of a channel are handled in order, so the answer tells of the acks too.
            with contextlib.suppress(*_LOST):
                async with asyncio.timeout(CLOSE_TIMEOUT):
                    await session.channel.basic_qos(prefetch_count=self._prefetch)

    async def release(self, delivery: RabbitMQDelivery) -> None:
        """Hand a delivery back to its place in the queue."""
        copy = self._copies.pop(delivery.key, None) if delivery.key is not None else None
        if copy is not None:
            self._hand_over(copy)
        if not await self._nack(delivery):
            raise AlreadySettled(f"the channel of queue {self.config.name!r} is gone")

    async def count_start(self, delivery: RabbitMQDelivery) -> RabbitMQDelivery | None:
        """Put a copy with a higher count in a message's place, and return it once it is here.

        The copy goes to the top of the queue and one is on its way at a time, so that what is
        counted is what starts; None if another consumer got it.
        """
        async with self._counting:
            message = self.backend.counted_copy(delivery)
            arrival: asyncio.Future[RabbitMQDelivery] = self.loop.create_future()
            self._expected[message.message_id] = arrival
            try:
                await self.backend.send(delivery, message)
                delivery.settled = True
                self.settled(delivery)
                await self.backend.flush_acks()
                async with asyncio.timeout(_ARRIVAL_PATIENCE):
                    return await arrival
            except TimeoutError:
                return None
            finally:
                del self._expected[message.message_id]

    def begin(self, delivery: RabbitMQDelivery) -> None:
        """Note that a job runs, so that a copy of it waits."""
        if delivery.key is not None:
            self._in_hand[delivery.key] = delivery

    def keep(
        self, delivery: RabbitMQDelivery, settle: Callable[[Delivery], Awaitable[None]]
    ) -> None:
        """Keep what a job came to whose channel is lost, for when its message comes back."""
        self._forget(delivery)
        key = delivery.key
        if key is None:
            return
        copy = self._copies.pop(key, None)
        if copy is not None and copy.session.is_alive:
            self._spawn(self._settle_copy(copy, settle))
            return
        self._kept[key] = settle
        while len(self._kept) > _KEPT_OUTCOMES:
            self._kept.popitem(last=False)

    def _forget(self, delivery: RabbitMQDelivery) -> None:
        key = delivery.key
        if key is not None and self._in_hand.get(key) is delivery:
            del self._in_hand[key]

    async def _settle_copy(
        self, copy: RabbitMQDelivery, settle: Callable[[Delivery], Awaitable[None]]
    ) -> None:
        try:
            await settle(copy)
        except Exception:
            logger.exception("Queue %s: settling a redelivered job failed", self.config.name)
            with contextlib.suppress(BackendError):
                await copy.release()

    async def _nack(self, delivery: RabbitMQDelivery) -> bool:
        session = delivery.session
        self._forget(delivery)
        if session.open_tags.pop(delivery.tag, None) is None or not session.is_alive:
            return False
        try:
            await session.channel.basic_nack(delivery.tag, requeue=True)
        except _LOST:
            return False
        return True

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._spawned.add(task)
        task.add_done_callback(self._spawned.discard)


async def _close_channel(channel: Any) -> None:
    if not channel.is_closed:
        with contextlib.suppress(*_LOST):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await channel.close()


class RabbitMQDelivery(Delivery):
    """Hold one message of one channel."""

    def __init__(
        self,
        consumer: RabbitMQConsumer,
        session: _Session,
        *,
        tag: int,
        body: bytes,
        headers: Mapping[str, Any],
        priority: int,
        type: str | None,
        message_id: str | None,
        redelivered: bool,
    ) -> None:
        super().__init__(consumer.config.name, body, 2 if redelivered else 1)
        self.consumer, self.session = consumer, session
        self.tag, self.headers, self.priority, self.type = tag, headers, priority, type
        self.message_id = message_id
        self.redelivered = redelivered
        self.begun = False

    @property
    def key(self) -> Key | None:
        """Return job id, attempt and deferrals from the headers, or None for a foreign message."""
        job_id = self.headers.get(codec.JOB_ID)
        attempt, deferrals = self.headers.get(codec.ATTEMPT), self.headers.get(codec.DEFERRALS)
        if isinstance(job_id, str) and isinstance(attempt, int) and isinstance(deferrals, int):
            return job_id, attempt, deferrals
        return None

    def early_by(self) -> float:
        """Return by how many seconds the message came before its time."""
        not_before = self.headers.get(codec.NOT_BEFORE)
        return not_before / 1000 - time.time() if isinstance(not_before, int) else 0.0

    @property
    def is_lost(self) -> bool:
        """Return whether the channel of the message is gone."""
        return not self.session.is_alive

    @property
    def starts(self) -> int:
        """Return how often the job was started without coming to anything."""
        starts = self.headers.get(codec.STARTS)
        counted = starts if isinstance(starts, int) else 0
        return counted + self.redelivered

    async def begin(self) -> bool:
        """Count the start of a redelivered job; see Delivery.begin()."""
        if not self.session.is_alive:
            return False
        if self.redelivered:
            if self.starts > self.consumer.backend.options.delivery_limit:
                raise DeliveryLimitReached(self.starts - 1)
            copy = await self.consumer.count_start(self)
            if copy is None:
                return False
            self._take_the_place_of(copy)
        elif self.starts:
            # It may kill this process: what is done must not come back and be counted with it.
            await self.consumer.backend.flush_acks()
        self.begun = True
        self.consumer.begin(self)
        return True

    def _take_the_place_of(self, copy: RabbitMQDelivery) -> None:
        self.session, self.tag, self.message_id = copy.session, copy.tag, copy.message_id
        self.headers, self.redelivered = copy.headers, copy.redelivered
        self.settled, copy.settled = False, True

    async def _ack(self) -> None:
        self._check_alive(lambda copy: copy.ack())
        self.consumer.settled(self)

    async def _replace(self, successor: Envelope, delay: float, *, front: bool) -> None:
        def again(copy: Delivery) -> Awaitable[None]:
            return copy.defer(successor, delay) if front else copy.retry(successor, delay)

        self._check_alive(again)
        await self.consumer.backend.store(successor, delay, front=front)
        self.consumer.settled(self)

    async def _dead_letter(self, cause: Cause, reason: str, final: Envelope | None) -> None:
        self._check_alive(lambda copy: copy.dead_letter(cause, reason, final))
        await self.consumer.backend.file(self, cause, reason, final)
        self.consumer.settled(self)

    async def _release(self) -> None:
        if self.begun and self.session.is_alive:
            # A nack would count as a start that came to nothing; a fresh copy does not.
            with contextlib.suppress(BackendError):
                headers = codec.own_headers(self.headers)
                headers.pop(codec.STARTS, None)
                await self.consumer.backend.republish(self, headers)
                self.consumer.settled(self)
                return
        await self.consumer.release(self)

    def _check_alive(self, settle: Callable[[Delivery], Awaitable[None]]) -> None:
        if self.session.is_alive:
            return
        self.consumer.keep(self, settle)
        raise AlreadySettled(
            f"the channel of queue {self.queue!r} was lost meanwhile; what the job came to is kept"
            " and settles it when it is delivered again"
        )
