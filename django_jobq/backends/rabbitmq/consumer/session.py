"""One channel of a consumer: what was delivered on it and is not acknowledged yet, in order.

A settled tag is acknowledged with others, when half of the prefetch is settled or after
FLUSH_INTERVAL: the settled prefix goes as one multiple ack and the rest singly, all in one write.
A tag is never acknowledged on another channel than its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from django_jobq.backends.rabbitmq.consumer import frames
from django_jobq.backends.rabbitmq.consumer.link import OpenChannel, tolerate

FLUSH_INTERVAL = 0.001
# With half of the prefetch settled the broker has little left to send: acknowledge at once.
MOST_UNFLUSHED = 50


class Session:
    """Hold one channel; ``on_loss`` is told how many acks were on their way when it was lost."""

    def __init__(
        self, open_channel: OpenChannel, tag: str, prefetch: int, on_loss: Callable[[int], None]
    ) -> None:
        self.tag = tag
        self.lost = asyncio.Event()
        self.is_cancelled = False
        self._open, self._prefetch, self._on_loss = open_channel, prefetch, on_loss
        self._is_closed = False
        self._tags: dict[int, bool] = {}
        self._unflushed = 0
        self._flush_at = max(1, min(prefetch // 2, MOST_UNFLUSHED)) if prefetch else MOST_UNFLUSHED
        self._flush_handle: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    @property
    def is_alive(self) -> bool:
        """Return whether the channel still takes acks."""
        return not self.lost.is_set() and self._is_open()

    async def consume(self, queue: str, receive: Callable[[frames.Message], None]) -> None:
        """Let the broker send the messages of a queue."""
        channel = self._open.channel
        channel.on_consumer_cancel_callbacks.add(self._on_cancel)
        channel.closing.add_done_callback(lambda _: self.lost.set())
        if self._prefetch:
            await channel.basic_qos(prefetch_count=self._prefetch)
        self._open.reader.subscribe(
            self._open.number, frames.Subscription(self.tag.encode(), receive, self._on_closed)
        )
        # The reader takes the deliveries before the client sees them; one it saw would be lost.
        await channel.basic_consume(queue, self._on_cancel, consumer_tag=self.tag)

    async def cancel(self) -> None:
        """Let the broker send no more; what it has sent may still be settled."""
        if self.is_alive:
            await tolerate(self._open.channel.basic_cancel(self.tag))

    async def close(self) -> None:
        """Close the channel: the broker takes back what is not acknowledged."""
        self.flush()
        self.lost.set()
        await self._open.close()

    def expect(self, tag: int) -> None:
        """Note a delivery that is to be acknowledged one day."""
        self._tags[tag] = False

    def acknowledge(self, tag: int) -> None:
        """Acknowledge a delivery with the next flush."""
        self._tags[tag] = True
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
        done = [tag for tag, settled in self._tags.items() if settled]
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
        return True

    def _is_open(self) -> bool:
        opened = self._open
        return not (self._is_closed or opened.channel.is_closed or opened.writer.is_closing())

    def _length_of_prefix(self) -> int:
        for length, settled in enumerate(self._tags.values()):
            if not settled:
                return length
        return len(self._tags)

    def _on_closed(self) -> None:
        self._is_closed = True
        self.lost.set()

    async def _on_cancel(self, _: object) -> None:
        self.is_cancelled = True
        self.lost.set()
