"""Operations on throwaway channels: one that is refused closes no channel that publishes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from pika.channel import Channel
from pika.exceptions import ChannelClosedByBroker

from django_jobq.backends.rabbitmq.operations import Operation
from django_jobq.backends.rabbitmq.publisher.connection import GatheringConnection
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

    def start(self, connection: GatheringConnection, call: Call) -> None:
        """Open a channel for a call and run it there."""
        self._running.add(call)
        call.is_sent = True
        call.deadline = max(call.deadline, time.monotonic() + call.patience)
        connection.channel(on_open_callback=lambda channel: self._run(call, channel, connection))

    def take_all(self) -> list[Call]:
        """Remove and return what has no answer yet."""
        calls = list(self._running)
        self._running.clear()
        return calls

    def drop_done(self) -> None:
        """Forget calls that have failed meanwhile."""
        self._running = {call for call in self._running if not call.future.done()}

    def _run(self, call: Call, channel: Channel, connection: GatheringConnection) -> None:
        """Send all operations at once, and wait only for what has to be read and for the last."""
        answers: list[Any] = []

        def on_close(_channel: Channel, reason: Any) -> None:
            if call in self._running and isinstance(reason, ChannelClosedByBroker):
                self._running.discard(call)
                call.fail(channel_error(reason, _text_of(call.operations, reason)))

        def on_answer(operation: Operation, answer: Any) -> None:
            if not channel.is_open:  # the answer crossed the end of the connection
                return
            if operation.read is not None:
                answers.append(operation.read(answer))
            if operation is call.operations[-1]:
                self._running.discard(call)
                call.succeed(answers)
                channel.close()

        channel.add_on_close_callback(on_close)
        with connection.gathering():
            for operation in call.operations:
                is_awaited = operation.read is not None or operation is call.operations[-1]
                callback = partial(on_answer, operation) if is_awaited else None
                getattr(channel, operation.method)(**operation.arguments, callback=callback)


def _text_of(operations: Sequence[Operation], reason: ChannelClosedByBroker) -> str:
    """Return the text of the operation that the broker's words are about."""
    for operation in operations:
        names = (operation.arguments.get("queue"), operation.arguments.get("exchange"))
        if any(name and f"'{name}'" in reason.reply_text for name in names):
            return operation.text
    return operations[-1].text
