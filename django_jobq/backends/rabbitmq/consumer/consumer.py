"""The stream of one queue, over as many channels as it takes.

1. `RabbitMQConsumer` opens a channel, makes sure of its queue, consumes under a fresh tag, and
   starts over when the channel or the connection is gone or the broker cancels the consumer. In the
   last case the channel retires: it lives on until all that it delivered is settled.
2. What arrives goes into the stream, but for what comes too early, was settled before, or is a
   second copy of a job that runs.
3. What a job came to while its channel was lost is kept, by job, attempt and deferrals: when the
   broker delivers the message again, it is settled and not run again; while the job still runs, the
   copy waits for it. A copy of what has not started takes its place.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from typing import TYPE_CHECKING, Any

from django_jobq.backends.base import Consumer, Delivery
from django_jobq.backends.rabbitmq.consumer.delivery import RabbitMQDelivery
from django_jobq.backends.rabbitmq.consumer.frames import Message
from django_jobq.backends.rabbitmq.consumer.link import CLOSE_TIMEOUT, is_outage
from django_jobq.backends.rabbitmq.consumer.outcomes import Outcomes, Settle
from django_jobq.backends.rabbitmq.consumer.session import Session
from django_jobq.exceptions import AlreadySettled, BackendError, ShutDown
from django_jobq.queues import QueueConfig

if TYPE_CHECKING:
    from django_jobq.backends.rabbitmq.backend import RabbitMQBackend

logger = logging.getLogger("django_jobq.rabbitmq")

_ARRIVAL_PATIENCE = 5.0
_PAUSE_AFTER_FAILURE = 1.0


class RabbitMQConsumer(Consumer):
    """Stream one queue; ``settle_losses`` counts acks that were lost with their channel."""

    def __init__(self, backend: RabbitMQBackend, config: QueueConfig, prefetch: int) -> None:
        self.backend, self.config = backend, config
        self.settle_losses = 0
        self.loop = asyncio.get_running_loop()
        self._prefetch = prefetch
        self._ready: deque[RabbitMQDelivery] = deque()
        self._changed = asyncio.Event()
        self._session: Session | None = None
        self._sessions: list[Session] = []
        self._task: asyncio.Task[None] | None = None
        self._spawned: set[asyncio.Task[None]] = set()
        self._closing = asyncio.Event()
        self._failure: BaseException | None = None
        self._outcomes = Outcomes()
        self._expected: dict[str | None, asyncio.Future[RabbitMQDelivery]] = {}
        self._counting = asyncio.Lock()

    async def __anext__(self) -> Delivery:
        """Wait for the next delivery."""
        if self._task is None and not self._has_ended():
            self._task = asyncio.create_task(self._serve())
        while True:
            if self._has_ended():
                raise StopAsyncIteration
            if self._ready:
                return self._ready.popleft()
            if self._failure is not None:
                raise self._failure
            self._changed.clear()
            await self._changed.wait()

    async def stop(self) -> None:
        """Cancel the consumer; what was not handed out goes back in order."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._changed.set()
        if self._session is not None:
            await self._session.cancel()
        unread = list(self._ready)
        self._ready.clear()
        # A classic queue puts each in front, so the first goes last; a quorum queue keeps a list.
        is_list = self.backend.topology.queue_type == "quorum"
        for delivery in unread if is_list else reversed(unread):
            self._give_back(delivery)

    async def aclose(self) -> None:
        """Acknowledge what is settled and close the channel: the broker takes back the rest."""
        await self.stop()
        sessions, self._session = [*self._sessions], None
        for session in sessions:
            session.flush()
            session.lose()
        if self._task is not None:
            # A cancellation may be swallowed by the client, so it comes last.
            _, left = await asyncio.wait({self._task}, timeout=CLOSE_TIMEOUT)
            if left:
                self._task.cancel()
                await asyncio.wait({self._task}, timeout=CLOSE_TIMEOUT)
        for session in sessions:
            await session.close()
        await self.backend.forget(self)

    def wake(self) -> None:
        """Let the stream look at its state again."""
        self._changed.set()

    def _has_ended(self) -> bool:
        return self._closing.is_set() or self.backend.is_closed

    # The channel

    async def _serve(self) -> None:
        try:
            while not self._closing.is_set():
                await self._try_to_consume()
        except ShutDown:
            pass
        except Exception as error:  # noqa: BLE001 - raised by the stream
            self._failure = error
        finally:
            self._changed.set()

    async def _try_to_consume(self) -> None:
        try:
            await self._consume_once()
        except (asyncio.CancelledError, Exception) as error:
            if not is_outage(error) or self._closing.is_set():
                raise
            logger.warning("Queue %s: consuming failed: %r", self.config.name, error)
            await asyncio.sleep(_PAUSE_AFTER_FAILURE)

    async def _consume_once(self) -> None:
        """Open a channel, consume, and return when the broker has ended that."""
        opened = await self.backend.link().channel(self._closing)
        session = Session(opened, self._prefetch, self._count_loss)
        self._sessions.append(session)
        try:
            await self._ensure()
            self._session = session
            await session.open(lambda message: self._receive(session, message))
            await self._subscribe(session)
            if not self._closing.is_set():
                # Of no use without their channel. A stopped consumer gives them back instead.
                self._ready = deque(delivery for delivery in self._ready if not delivery.is_lost)
        finally:
            # A stopped consumer keeps its channel, since deliveries of it may still be settled.
            if not (self._closing.is_set() and self._session is session):
                self._session = None
                self._spawn(self._retire(session))

    async def _subscribe(self, session: Session) -> None:
        """Consume from the queue, and from what is left of its older revisions, to the end."""
        older = await asyncio.to_thread(self.backend.older, self.config)
        for queue in (*older, self.backend.topology.work_queue(self.config)):
            self._leave_if_stopped()
            await session.consume(queue)
        await session.ended()
        if session.is_cancelled:
            logger.warning("The broker cancelled the consumer of queue %s", self.config.name)
        if session.end:
            logger.warning("Queue %s: its channel was closed: %s", self.config.name, session.end)

    async def _retire(self, session: Session) -> None:
        """Close a channel, once all that it delivered is settled if it still lives."""
        await session.cancel()
        await session.drained()
        self._sessions.remove(session)
        await session.close()

    async def _ensure(self) -> None:
        self._leave_if_stopped()
        await asyncio.to_thread(self.backend.ensure, self.config, again=True)
        self._leave_if_stopped()

    def _leave_if_stopped(self) -> None:
        if self._closing.is_set():
            raise ShutDown(self.backend.alias, self.backend.driver)

    def _count_loss(self, number: int) -> None:
        self.settle_losses += number
        logger.error(
            "Queue %s: the channel was lost with %s ack(s) on their way; those jobs may run again",
            self.config.name,
            number,
        )

    # What arrives

    def _receive(self, session: Session, message: Message) -> None:
        try:
            if session.is_alive:
                session.expect(message)
                self._sort(RabbitMQDelivery(self, session, message))
        except Exception:
            # Left alone it would stay unacknowledged for as long as the channel lives.
            logger.exception("Queue %s: taking a message failed", self.config.name)
            session.lose()

    def _sort(self, delivery: RabbitMQDelivery) -> None:
        expected = self._expected.get(delivery.message_id)
        if expected is not None and not expected.done():
            expected.set_result(delivery)
        elif self._outcomes.was_acknowledged(delivery):
            delivery.drop()
        elif delivery.early_by() > 1.0:
            self._spawn(self.backend.hold_again(delivery))
        elif (settle := self._outcomes.take(delivery)) is not None:
            self._spawn(self._settle_copy(delivery, settle))
        elif not self._outcomes.let_wait(delivery):
            self._replace_what_has_not_started(delivery)
            self._hand_over(delivery)

    def _replace_what_has_not_started(self, copy: RabbitMQDelivery) -> None:
        """Forget the delivery that the broker has taken back with its consumer, if it did so."""
        if copy.redelivered and copy.message_id is not None:
            for session in self._sessions:
                if session is not copy.session:
                    session.forget(copy.message_id)

    def _hand_over(self, delivery: RabbitMQDelivery) -> None:
        self._ready.append(delivery)
        self._changed.set()

    async def count_start(self, delivery: RabbitMQDelivery) -> RabbitMQDelivery | None:
        """Put a copy with a higher count in a message's place, and return it once it is here.

        The copy goes to the top of the queue and one is on its way at a time, so that what is
        counted is what starts; None if another consumer got it, or it was settled meanwhile.
        """
        async with self._counting:
            if self._outcomes.was_acknowledged(delivery):
                delivery.drop()
                return None
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

    # Settling

    def begin(self, delivery: RabbitMQDelivery) -> None:
        """Note that a job runs, so that a copy of it waits."""
        self._outcomes.begin(delivery)

    def settled(self, delivery: RabbitMQDelivery) -> None:
        """Note that a delivery is to be acknowledged at the next flush."""
        self._outcomes.end(delivery)
        self._outcomes.acknowledge(delivery.message_id)
        delivery.session.acknowledge(delivery.tag)
        for copy in self._outcomes.copies(delivery):
            if copy.session.holds(copy.tag):
                copy.drop()

    async def flush_to_the_broker(self) -> None:
        """Acknowledge what is settled, and wait until the broker has read it."""
        for session in [*self._sessions]:
            await session.flush_to_the_broker()

    def release(self, delivery: RabbitMQDelivery) -> None:
        """Hand a delivery back to its place in the queue."""
        for copy in self._outcomes.copies(delivery):
            self._hand_over(copy)
        if not self._give_back(delivery):
            raise AlreadySettled(f"the channel of queue {self.config.name!r} is gone")

    def keep(self, delivery: RabbitMQDelivery, settle: Settle) -> None:
        """Keep what a job came to whose channel is lost, for when its message comes back."""
        copy = self._outcomes.keep(delivery, settle)
        if copy is not None:
            self._spawn(self._settle_copy(copy, settle))

    async def _settle_copy(self, copy: RabbitMQDelivery, settle: Settle) -> None:
        try:
            await settle(copy)
        except Exception:
            logger.exception("Queue %s: settling a redelivered job failed", self.config.name)
            with contextlib.suppress(BackendError):
                await copy.release()

    def _give_back(self, delivery: RabbitMQDelivery) -> bool:
        self._outcomes.end(delivery)
        return delivery.session.give_back(delivery.tag)

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._spawned.add(task)
        task.add_done_callback(self._spawned.discard)
