"""Operations on throwaway channels: one that is refused closes no channel that publishes."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from pika.channel import Channel
from pika.exceptions import ChannelClosedByBroker

from django_jobq.backends.rabbitmq.operations import Operation
from django_jobq.backends.rabbitmq.publisher.errors import channel_error
from django_jobq.backends.rabbitmq.publisher.items import Call


class Calls:
    """Run calls, each on a channel of its own."""

    def __init__(self) -> None:
        self._running: set[Call] = set()

    def __len__(self) -> int:
        return len(self._running)

    def __iter__(self) -> Iterator[Call]:
        return iter(list(self._running))

    def start(self, connection: Any, call: Call) -> None:
        """Open a channel for a call and run it there."""
        self._running.add(call)
        call.is_sent = True
        connection.channel(on_open_callback=lambda channel: self._run(call, channel))

    def take_all(self) -> list[Call]:
        """Remove and return what has no answer yet."""
        calls = list(self._running)
        self._running.clear()
        return calls

    def drop_done(self) -> None:
        """Forget calls that have failed meanwhile."""
        self._running = {call for call in self._running if not call.future.done()}

    def _run(self, call: Call, channel: Channel) -> None:
        answers: list[Any] = []
        remaining = deque(call.operations)
        current: list[Operation] = []

        def on_close(_channel: Channel, reason: Any) -> None:
            if call in self._running and isinstance(reason, ChannelClosedByBroker):
                self._running.discard(call)
                call.fail(channel_error(reason, current[-1].text if current else "a channel"))

        def step(answer: Any = None) -> None:
            if not channel.is_open:  # the answer crossed the end of the connection
                return
            if current:
                answers.append(current[-1].read(answer))
            if not remaining:
                self._running.discard(call)
                call.succeed(answers)
                channel.close()
                return
            operation = remaining.popleft()
            current.append(operation)
            getattr(channel, operation.method)(**operation.arguments, callback=step)

        channel.add_on_close_callback(on_close)
        step()
