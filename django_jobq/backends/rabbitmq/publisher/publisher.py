"""What callers see: publish from any thread, and get a future.

A forked child drops what it inherited without closing what its parent still uses.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from django_jobq.backends.rabbitmq.codec import Message
from django_jobq.backends.rabbitmq.operations import Operation
from django_jobq.backends.rabbitmq.options import RabbitMQOptions
from django_jobq.backends.rabbitmq.publisher.engine import Engine
from django_jobq.backends.rabbitmq.publisher.items import Call, Item, Publish, Recover
from django_jobq.backends.rabbitmq.url import BrokerAddress
from django_jobq.exceptions import BackendUnavailable


class Publisher:
    """Give every thread of a process one connection to publish through."""

    def __init__(self, address: BrokerAddress, options: RabbitMQOptions) -> None:
        self._address, self._options = address, options
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._closed = False
        _publishers.add(self)

    def publish(
        self, exchange: str, key: str, message: Message, recover: Recover | None = None
    ) -> Future[None]:
        """Write a message; the future resolves with its confirm, or raises what became of it."""
        item = Publish(exchange, key, message, self._deadline(), recover)
        self._submit(item)
        return item.future

    def publish_again(self, item: Publish) -> None:
        """Write a message once more that found no place, with all of its time."""
        item.deadline = self._deadline()
        try:
            self._submit(item)
        except BackendUnavailable as error:
            item.fail(error)

    def call(self, operations: Sequence[Operation], patience: float = 0.0) -> Future[list[Any]]:
        """Run operations in order on a throwaway channel; the future has what is read of them.

        The broker may take ``patience`` seconds for them, if that is more than for a publish.
        """
        call = Call(operations, self._deadline(), patience)
        self._submit(call)
        return call.future

    def close(self) -> None:
        """Flush what is not confirmed yet, for a moment, and end the thread; final."""
        with self._lock:
            engine, self._engine, self._closed = self._engine, None, True
        if engine is not None:
            engine.stop()

    def forget(self) -> None:
        """Drop what a forked child inherited."""
        _inherited.append(self._engine)
        self._engine = None
        self._lock = threading.Lock()

    def _deadline(self) -> float:
        return time.monotonic() + self._options.publish_timeout

    def _submit(self, item: Item) -> None:
        """Give an item to the thread, which is made for the first one.

        That one is there before the thread connects: it waits for an outage to end, and does not
        fail because the first connection was refused.
        """
        engine = self._engine
        if engine is None or not engine.is_usable():
            with self._lock:
                if self._closed:
                    raise BackendUnavailable("the publisher is closed")
                engine = self._engine
                if engine is None or not engine.is_usable():
                    engine = self._engine = Engine(self._address, self._options)
                    engine.submit(item)
                    engine.start()
                    return
        engine.submit(item)


_publishers: weakref.WeakSet[Publisher] = weakref.WeakSet()
_inherited: list[object] = []


def _forget_all() -> None:
    for publisher in list(_publishers):
        publisher.forget()


os.register_at_fork(after_in_child=_forget_all)
