"""One channel of a consumer: what was delivered on it and is not acknowledged yet, in order.

A settled tag is acknowledged with others, when half of the prefetch is settled or after
FLUSH_INTERVAL: the settled prefix goes as one multiple ack and the rest singly, all in one write.
A tag is never acknowledged on another channel than its own.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable
from typing import Any

from django_jobq.backends.rabbitmq.consumer import frames
from django_jobq.backends.rabbitmq.consumer.link import OpenChannel, tolerate

FLUSH_INTERVAL = 0.001
# With half of the prefetch settled the broker has little left to send: acknowledge at once.
MOST_UNFLUSHED = 50


class Session:
    """Hold one channel; ``on_loss`` is told how many acks were on their way when it was lost.

    ``end`` is why the broker closed it, as far as it said so; ``is_cancelled`` tells that it has
    cancelled a consumer, after which the channel takes acks, but should consume no more.
    """

    def __init__(
        self, open_channel: OpenChannel, prefetch: int, on_loss: Callable[[int], None]
    ) -> None:
        self.end = ""
        self.is_cancelled = False
        self._open, self._prefetch, self._on_loss = open_channel, prefetch, on_loss
        self._is_lost = self._is_closed = False
        self._ended, self._drained = asyncio.Event(), asyncio.Event()
        self._is_draining = False
        self._consumer_tags: list[str] = []
        self._subscription: frames.Subscription | None = None
        # Each with the message, or with None once that is settled.
        self._tags: dict[int, frames.Message | None] = {}
        self._unflushed = 0
        self._flush_at = max(1, min(prefetch // 2, MOST_UNFLUSHED)) if prefetch else MOST_UNFLUSHED
        self._flush_handle: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def is_alive(self) -> bool:
        """Return whether the channel still takes acks."""
        return not self._is_lost and self._is_open()

    async def open(self, receive: Callable[[frames.Message], None]) -> None:
        """Prepare to receive messages."""
        channel = self._open.channel
        channel.on_consumer_cancel_callbacks.add(self._on_cancel)
        channel.closing.add_done_callback(lambda _: self.lose())
        self._subscription = frames.Subscription(receive, self._on_closed)
        self._open.reader.subscribe(self._open.number, self._subscription)
        if self._prefetch:
            await channel.basic_qos(prefetch_count=self._prefetch)

    async def consume(self, queue: str) -> None:
        """Let the broker send the messages of a queue."""
        assert self._subscription is not None
        tag = f"{queue[:100]}.{self._open.generation}.{uuid.uuid4().hex[:12]}"
        self._consumer_tags.append(tag)
        self._subscription.consumer_tags.add(tag.encode())
        # The reader takes the deliveries before the client sees them; one it saw would be stuck.
        await self._open.channel.basic_consume(queue, self._on_stray, consumer_tag=tag)

    async def ended(self) -> None:
        """Wait until the channel is lost or the broker has cancelled a consumer."""
        await self._ended.wait()

    async def drained(self) -> None:
        """Wait until all that was delivered is settled, or the channel is lost."""
        self._is_draining = True
        self._tell_if_drained()
        if self.is_alive:
            await self._drained.wait()

    async def cancel(self) -> None:
        """Let the broker send no more; what it has sent may still be settled.

        A consumer that the broker has cancelled stays registered in some versions until then.
        """
        for tag in self._consumer_tags:
            if self.is_alive:
                await tolerate(self._open.channel.basic_cancel(tag))

    async def close(self) -> None:
        """Close the channel: the broker takes back what is not acknowledged."""
        self.flush()
        self.lose()
        await self._open.close()

    def lose(self) -> None:
        """Take no more acks: the channel is gone, or of no use."""
        self._is_lost = True
        self._ended.set()
        self._drained.set()

    def expect(self, message: frames.Message) -> None:
        """Note a message that is to be acknowledged one day."""
        self._tags[message.tag] = message

    def holds(self, tag: int) -> bool:
        """Return whether a delivery is still to be settled on this channel."""
        return tag in self._tags and self.is_alive

    def forget(self, message_id: str) -> None:
        """Let go of what is not settled of a message; the broker has taken it back."""
        for tag, message in list(self._tags.items()):
            if message is not None and message.properties.message_id == message_id:
                del self._tags[tag]
        self._tell_if_drained()

    def acknowledge(self, tag: int) -> None:
        """Acknowledge a delivery with the next flush."""
        self._tags[tag] = None
        self._unflushed += 1
        if self._unflushed == self._flush_at:
            self._loop.call_soon(self.flush)
        elif self._flush_handle is None:
            self._flush_handle = self._loop.call_later(FLUSH_INTERVAL, self.flush)

    def flush(self) -> None:
        """Write what is to be acknowledged."""
        self._unflushed = 0
        if self._flush_handle is not None:
            self._flush_handle.cancel()
            self._flush_handle = None
        done = [tag for tag, message in self._tags.items() if message is None]
        if not done:
            return
        if not self._is_open():
            self._on_loss(len(done))
            self._tags.clear()
            return
        prefix = self._length_of_prefix()
        number = self._open.number
        acks = [frames.ack(number, tag) for tag in done[prefix:]]
        if prefix:
            acks.insert(0, frames.ack(number, done[prefix - 1], multiple=True))
        for tag in done:
            del self._tags[tag]
        self._open.writer.write(b"".join(acks))
        self._tell_if_drained()

    async def flush_to_the_broker(self) -> None:
        """Acknowledge what is settled, and wait until the broker has read it."""
        self.flush()
        if self.is_alive:
            # The methods of a channel are handled in order, so the answer tells of the acks too.
            await tolerate(self._open.channel.basic_qos(prefetch_count=self._prefetch))

    def give_back(self, tag: int) -> bool:
        """Put a delivery back in its place, and return whether the broker was told so."""
        if self._tags.pop(tag, None) is None or not self.is_alive:
            return False
        # Written as acks are: behind them it could name what one of them has acknowledged.
        self._open.writer.write(frames.give_back(self._open.number, tag))
        self._tell_if_drained()
        return True

    def _is_open(self) -> bool:
        opened = self._open
        return not (self._is_closed or opened.channel.is_closed or opened.writer.is_closing())

    def _length_of_prefix(self) -> int:
        for length, message in enumerate(self._tags.values()):
            if message is not None:
                return length
        return len(self._tags)

    def _tell_if_drained(self) -> None:
        if self._is_draining and not self._tags:
            self._drained.set()

    def _on_closed(self, reason: str) -> None:
        self.end = reason
        self._is_closed = True
        self.lose()

    async def _on_cancel(self, _frame: Any) -> None:
        self.is_cancelled = True
        self._ended.set()

    async def _on_stray(self, _message: object) -> None:
        self.lose()
