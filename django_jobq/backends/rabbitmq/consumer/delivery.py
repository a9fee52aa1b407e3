"""A message of one channel, as a delivery that is settled once."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from django_jobq.backends.base import Cause, Delivery, DeliveryLimitReached
from django_jobq.backends.rabbitmq import codec
from django_jobq.backends.rabbitmq.consumer.frames import Message
from django_jobq.backends.rabbitmq.consumer.session import Session
from django_jobq.envelope import Envelope
from django_jobq.exceptions import AlreadySettled, BackendError

if TYPE_CHECKING:
    from django_jobq.backends.rabbitmq.consumer.consumer import RabbitMQConsumer

Key = tuple[str, int, int]


class RabbitMQDelivery(Delivery):
    """Hold one message of one channel.

    ``key`` is job id, attempt and deferrals from the headers, or None for a foreign message.
    """

    def __init__(self, consumer: RabbitMQConsumer, session: Session, message: Message) -> None:
        super().__init__(consumer.config.name, message.body, 2 if message.redelivered else 1)
        properties = message.properties
        self.consumer, self.session, self.tag = consumer, session, message.tag
        self.redelivered = message.redelivered
        self.headers, self.priority = properties.headers, properties.priority
        self.type, self.message_id = properties.type, properties.message_id
        self.begun = False
        self.key = self._read_key()

    def early_by(self) -> float:
        """Return by how many seconds the message came before its time."""
        not_before = self.headers.get(codec.NOT_BEFORE)
        return not_before / 1000 - time.time() if isinstance(not_before, int) else 0.0

    @property
    def is_lost(self) -> bool:
        """Return whether the channel of the message is gone."""
        return not self.session.is_alive

    @property
    def filing_key(self) -> str:
        """Return by what the message is known as one dead letter."""
        return codec.filing_key(self.headers, self.message_id, self.body)

    @property
    def headers_of_copies(self) -> dict[str, Any]:
        """Return the headers of a message that takes the place of this one."""
        return {**codec.own_headers(self.headers), codec.FILING_KEY: self.filing_key}

    @property
    def starts(self) -> int:
        """Return how often the job was started without coming to anything."""
        starts = self.headers.get(codec.STARTS)
        counted = starts if isinstance(starts, int) else 0
        return counted + self.redelivered

    async def begin(self, start: int | None = None) -> bool:
        """Count the start of a redelivered job, unless that is done; see Delivery.begin()."""
        if not self.session.holds(self.tag):
            return False
        if self.redelivered or start is not None:
            self._refuse_too_many(self.starts if start is None else start)
        if self.redelivered and start is None:
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

    def drop(self) -> None:
        """Acknowledge a second copy of what is settled."""
        self.settled = True
        self.session.acknowledge(self.tag)

    def _refuse_too_many(self, start: int) -> None:
        if start > self.consumer.backend.options.delivery_limit:
            raise DeliveryLimitReached(start - 1)

    def _read_key(self) -> Key | None:
        job_id = self.headers.get(codec.JOB_ID)
        attempt, deferrals = self.headers.get(codec.ATTEMPT), self.headers.get(codec.DEFERRALS)
        if isinstance(job_id, str) and isinstance(attempt, int) and isinstance(deferrals, int):
            return job_id, attempt, deferrals
        return None

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
                headers = self.headers_of_copies
                headers.pop(codec.STARTS, None)
                await self.consumer.backend.republish(self, headers)
                self.consumer.settled(self)
                return
        self.consumer.release(self)

    def _check_alive(self, settle: Callable[[Delivery], Awaitable[None]]) -> None:
        if self.session.is_alive:
            return
        self.consumer.keep(self, settle)
        raise AlreadySettled(
            f"the channel of queue {self.queue!r} was lost meanwhile; what the job came to is kept"
            " and settles it when it is delivered again"
        )
