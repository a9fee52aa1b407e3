"""Publishing: one pika connection a process, on a daemon thread of its own.

Callers hand over a message and get a future; the thread alone touches pika. Every publish is
mandatory and confirmed, and they are pipelined:

1. A message is written in the order of arrival and kept, by its delivery tag, until its confirm.
2. A return names the message by its message id, which is unique per publish; the confirm that
   follows it then fails this future and no other.
3. A lost connection or channel puts what was not confirmed back in front; it is written again on
   the next one, until its deadline. That may make a second copy, never none.
4. At its deadline a message that was not written fails. One that was written and not confirmed
   fails as unknown and takes the connection down, since its silence cannot be trusted.
5. While the broker blocks publishers (an alarm), nothing is written and everything fails at once.
   So it does while the last attempt to connect has failed: the first caller of an outage waits,
   the others do not.

A forked child drops all of it without closing what its parent still uses.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import random
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import pika
from pika.adapters.select_connection import IOLoop, SelectConnection
from pika.channel import Channel
from pika.exceptions import (
    AMQPConnectionError,
    ChannelClosedByBroker,
)

from django_jobq.backends.rabbitmq.codec import PERSISTENT, Message
from django_jobq.backends.rabbitmq.operations import Operation
from django_jobq.backends.rabbitmq.options import RabbitMQOptions
from django_jobq.backends.rabbitmq.url import BrokerAddress
from django_jobq.exceptions import (
    AccessRefused,
    BackendError,
    BackendUnavailable,
    PublishFailed,
    TopologyMismatch,
)
from django_jobq.retry import exponential_backoff

logger = logging.getLogger("django_jobq.rabbitmq")

_TICK = 0.05
_FLUSH = 2.0
_NOT_FOUND, _PRECONDITION_FAILED, _ACCESS_REFUSED = 404, 406, 403


class _Publish:
    """Hold one message until its confirm."""

    def __init__(self, exchange: str, key: str, message: Message, deadline: float) -> None:
        self.exchange, self.key, self.message, self.deadline = exchange, key, message, deadline
        self.future: Future[None] = Future()
        self.written = False
        self.returned: str | None = None


class _Call:
    """Hold declarations or questions for a channel of their own."""

    def __init__(self, operations: Sequence[Operation], deadline: float) -> None:
        self.operations, self.deadline = operations, deadline
        self.future: Future[list[Any]] = Future()


class Publisher:
    """Give every thread of a process one connection to publish through."""

    def __init__(self, address: BrokerAddress, options: RabbitMQOptions) -> None:
        self._address, self._options = address, options
        self._lock = threading.Lock()
        self._engine: _Engine | None = None
        self._closed = False
        _publishers.add(self)

    def publish(self, exchange: str, key: str, message: Message) -> Future[None]:
        """Write a message; the future resolves with its confirm, or raises what became of it."""
        item = _Publish(exchange, key, message, self._deadline())
        self._running().submit(item)
        return item.future

    def call(self, operations: Sequence[Operation]) -> Future[list[Any]]:
        """Run operations in order on a throwaway channel; the future has their answers."""
        call = _Call(operations, self._deadline())
        self._running().submit(call)
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

    def _running(self) -> _Engine:
        engine = self._engine
        if engine is not None and engine.is_usable():
            return engine
        with self._lock:
            if self._closed:
                raise BackendUnavailable("the publisher is closed")
            if self._engine is None or not self._engine.is_usable():
                self._engine = _Engine(self._address, self._options)
                self._engine.start()
            return self._engine


class _Engine(threading.Thread):
    """Own the connection; every method but `submit()` and `stop()` runs on this thread."""

    def __init__(self, address: BrokerAddress, options: RabbitMQOptions) -> None:
        super().__init__(name="jobq-publisher", daemon=True)
        self.pid = os.getpid()
        self._address, self._options = address, options
        self._loop: Any = IOLoop()
        self._incoming: deque[_Publish | _Call] = deque()
        self._waiting: deque[_Publish | _Call] = deque()
        self._unconfirmed: dict[int, _Publish] = {}
        self._by_id: dict[str, _Publish] = {}
        self._calls: set[_Call] = set()
        self._connection: Any = None
        self._channel: Channel | None = None
        self._last_tag = 0
        self._failures = 0
        self._down: BackendError | None = None
        self._blocked: str | None = None
        self._stopping = self._closing = False
        self._woken = False
        atexit.register(self.stop)

    # Called by other threads

    def is_usable(self) -> bool:
        """Return whether the thread is this process's and has not ended."""
        return self.pid == os.getpid() and (self.ident is None or self.is_alive())

    def submit(self, item: _Publish | _Call) -> None:
        """Queue an item, or fail it at once while that is sure to be its end."""
        refusal = self._refusal()
        if refusal is not None:
            item.future.set_exception(refusal)
            return
        self._incoming.append(item)
        if not self._woken:
            self._woken = True
            self._loop.add_callback_threadsafe(self._drain)

    def stop(self) -> None:
        """Flush for a moment, then end."""
        atexit.unregister(self.stop)
        if not self.is_alive():
            return
        self._loop.add_callback_threadsafe(self._begin_stop)
        self.join(_FLUSH + 1)

    def _refusal(self) -> BackendError | None:
        if self._blocked is not None:
            return BackendUnavailable(f"the broker blocks publishers: {self._blocked}")
        if self._stopping:
            return BackendUnavailable("the publisher is closed")
        down = self._down
        if down is None:
            return None
        return type(down)(*down.args)

    # Connecting

    def run(self) -> None:
        """Serve until stopped."""
        self._loop.call_later(_TICK, self._tick)
        self._connect()
        try:
            self._loop.start()
        except Exception:
            logger.exception("The publisher's thread failed")
            self._down = BackendUnavailable("the publisher's thread failed")
        finally:
            self._fail_everything(BackendUnavailable("the publisher is closed"))
            if self._connection is not None and not self._connection.is_closed:
                self._terminate("the publisher is closed")
                # The socket is closed by a callback of the loop.
                self._loop.call_later(0, self._loop.stop)
                self._loop.start()
            self._loop.close()

    def _connect(self) -> None:
        if self._stopping:
            return
        self._connection = SelectConnection(
            _parameters(self._address, self._options),
            on_open_callback=self._on_open,
            on_open_error_callback=self._on_open_error,
            on_close_callback=self._on_close,
            custom_ioloop=self._loop,
        )

    def _on_open(self, connection: Any) -> None:
        connection.add_on_connection_blocked_callback(self._on_blocked)
        connection.add_on_connection_unblocked_callback(self._on_unblocked)
        if self._failures:
            logger.info("Publisher connected to %s", self._address)
        self._failures = 0
        self._down = None
        self._open_channel()

    def _on_open_error(self, _connection: Any, error: Any) -> None:
        self._failures += 1
        self._down = _connect_error(self._address, error)
        level = logging.WARNING if self._failures == 1 else logging.DEBUG
        logger.log(level, "%s", self._down)
        if isinstance(self._down, AccessRefused):
            self._fail_everything(self._down)
        self._reconnect_later()

    def _on_close(self, _connection: Any, reason: Any) -> None:
        self._connection = self._channel = None
        self._blocked = None
        if self._stopping:
            self._loop.stop()
            return
        logger.warning("Publisher lost its connection to %s: %s", self._address, reason)
        self._take_back()
        for call in list(self._calls):
            self._retry_call(call)
        self._connect()

    def _reconnect_later(self) -> None:
        if self._stopping:
            self._loop.stop()
            return
        longest = exponential_backoff(
            self._failures,
            base=self._options.reconnect_base,
            factor=2.0,
            longest=self._options.reconnect_max,
        )
        self._loop.call_later(random.uniform(0, longest), self._connect)

    def _on_blocked(self, _connection: Any, frame: Any) -> None:
        self._blocked = str(frame.method.reason)
        logger.warning("The broker blocks publishers: %s", self._blocked)
        for item in self._take_waiting():
            _fail(item.future, BackendUnavailable(f"the broker blocks publishers: {self._blocked}"))

    def _on_unblocked(self, *_: Any) -> None:
        self._blocked = None
        logger.info("The broker takes publishes again")

    # The publishing channel

    def _open_channel(self) -> None:
        self._connection.channel(on_open_callback=self._on_channel_open)

    def _on_channel_open(self, channel: Channel) -> None:
        channel.add_on_close_callback(self._on_channel_close)
        channel.add_on_return_callback(self._on_return)
        channel.confirm_delivery(self._on_confirm, callback=lambda _: self._on_ready(channel))

    def _on_ready(self, channel: Channel) -> None:
        self._channel = channel
        self._last_tag = 0
        self._drain()

    def _on_channel_close(self, _channel: Channel, reason: Any) -> None:
        self._channel = None
        if isinstance(reason, ChannelClosedByBroker) and reason.reply_code in (
            _NOT_FOUND,
            _ACCESS_REFUSED,
        ):
            self._fail_refused(reason)
        self._take_back()
        if self._connection is not None and self._connection.is_open:
            self._open_channel()

    def _fail_refused(self, reason: ChannelClosedByBroker) -> None:
        """Fail the publishes that the broker's text names; the others are written again."""
        for tag, item in list(self._unconfirmed.items()):
            if f"'{item.exchange}'" in reason.reply_text:
                self._forget(tag, item)
                _fail(item.future, _channel_error(reason, f"publishing to {item.exchange!r}"))

    def _take_back(self) -> None:
        """Put what was written and not confirmed in front of what waits, in order."""
        for item in reversed(self._unconfirmed.values()):
            if not item.future.done():
                item.written, item.returned = False, None
                self._waiting.appendleft(item)
        self._unconfirmed.clear()
        self._by_id.clear()

    def _drain(self) -> None:
        self._woken = False
        self._take_incoming()
        if self._channel is None or not self._channel.is_open or self._blocked is not None:
            return
        for item in self._take_waiting():
            if isinstance(item, _Call):
                self._start_call(item)
            else:
                self._write(self._channel, item)

    def _take_incoming(self) -> None:
        while self._incoming:
            self._waiting.append(self._incoming.popleft())

    def _take_waiting(self) -> list[_Publish | _Call]:
        self._take_incoming()
        items = list(self._waiting)
        self._waiting.clear()
        return items

    def _write(self, channel: Channel, item: _Publish) -> None:
        if not channel.is_open:
            self._waiting.append(item)
            return
        self._last_tag += 1
        self._unconfirmed[self._last_tag] = item
        self._by_id[item.message.message_id] = item
        item.written = True
        channel.basic_publish(
            item.exchange, item.key, item.message.body, _properties(item.message), mandatory=True
        )

    def _on_return(self, _channel: Channel, method: Any, properties: Any, _body: bytes) -> None:
        item = self._by_id.get(properties.message_id)
        if item is not None:
            item.returned = f"{method.reply_code} {method.reply_text}"

    def _on_confirm(self, frame: Any) -> None:
        method = frame.method
        is_ack = isinstance(method, pika.spec.Basic.Ack)
        tags = [method.delivery_tag]
        if method.multiple:
            tags = [tag for tag in self._unconfirmed if tag <= method.delivery_tag]
        for tag in tags:
            item = self._unconfirmed.get(tag)
            if item is not None:
                self._forget(tag, item)
                self._resolve(item, is_ack=is_ack)

    def _resolve(self, item: _Publish, *, is_ack: bool) -> None:
        where = f"{item.key!r} through exchange {item.exchange!r}"
        if item.returned is not None:
            error = PublishFailed(f"the broker returned a publish to {where}: {item.returned}")
            _fail(item.future, error)
        elif not is_ack:
            _fail(item.future, PublishFailed(f"the broker refused (nack) a publish to {where}"))
        elif not item.future.done():
            item.future.set_result(None)

    def _forget(self, tag: int, item: _Publish) -> None:
        del self._unconfirmed[tag]
        self._by_id.pop(item.message.message_id, None)

    # Throwaway channels

    def _start_call(self, call: _Call) -> None:
        self._calls.add(call)
        self._connection.channel(on_open_callback=lambda channel: self._run_call(call, channel))

    def _run_call(self, call: _Call, channel: Channel) -> None:
        answers: list[Any] = []
        remaining = deque(call.operations)
        current: list[Operation] = []

        def on_close(_channel: Channel, reason: Any) -> None:
            if call not in self._calls:
                return
            if isinstance(reason, ChannelClosedByBroker):
                self._calls.discard(call)
                _fail(call.future, _channel_error(reason, current[-1].text if current else "it"))

        def step(answer: Any = None) -> None:
            if current:
                answers.append(current[-1].read(answer))
            if not remaining:
                self._calls.discard(call)
                if not call.future.done():
                    call.future.set_result(answers)
                channel.close()
                return
            operation = remaining.popleft()
            current.append(operation)
            getattr(channel, operation.method)(**operation.arguments, callback=step)

        channel.add_on_close_callback(on_close)
        step()

    def _retry_call(self, call: _Call) -> None:
        self._calls.discard(call)
        self._waiting.appendleft(call)

    # Deadlines and the end

    def _tick(self) -> None:
        now = time.monotonic()
        silent = False
        for item in [*self._unconfirmed.values(), *self._waiting, *self._calls]:
            if item.deadline > now or item.future.done():
                continue
            written = isinstance(item, _Publish) and item.written
            silent = silent or written
            _fail(item.future, self._late(written=written))
        self._waiting = deque(item for item in self._waiting if not item.future.done())
        # The silence of a blocked connection is explained; heartbeats find one that is dead.
        if silent and self._connection is not None and self._blocked is None:
            self._drop_connection()
        self._calls = {call for call in self._calls if not call.future.done()}
        if self._stopping and not self._unconfirmed and not self._waiting:
            self._finish_stop()
        self._loop.call_later(_TICK, self._tick)

    def _late(self, *, written: bool) -> BackendError:
        limit = f"{self._options.publish_timeout:g} s"
        if written:
            return BackendUnavailable(
                f"{self._address} did not confirm a publish within {limit}; whether it has the"
                " job is not known"
            )
        return BackendUnavailable(f"no connection to {self._address} within {limit}")

    def _drop_connection(self) -> None:
        for tag, item in list(self._unconfirmed.items()):
            if item.future.done():
                self._forget(tag, item)
        self._terminate("no confirm in time")

    def _terminate(self, reason: str) -> None:
        """Drop the socket without a word: its peer may not be listening."""
        with contextlib.suppress(Exception):  # it may be half closed already
            self._connection._terminate_stream(AMQPConnectionError(reason))

    def _begin_stop(self) -> None:
        self._stopping = True
        if self._unconfirmed or self._waiting or self._incoming or self._calls:
            self._loop.call_later(_FLUSH, self._finish_stop)
        else:
            self._finish_stop()

    def _finish_stop(self) -> None:
        if self._closing:
            return
        self._closing = True
        if self._connection is not None and self._connection.is_open:
            self._connection.close()
            self._loop.call_later(_FLUSH, self._loop.stop)
        else:
            self._loop.stop()

    def _fail_everything(self, error: BackendError) -> None:
        items = [*self._unconfirmed.values(), *self._calls, *self._take_waiting()]
        self._unconfirmed.clear()
        self._by_id.clear()
        self._calls.clear()
        for item in items:
            _fail(item.future, error)


_publishers: weakref.WeakSet[Publisher] = weakref.WeakSet()
_inherited: list[object] = []


def _forget_all() -> None:
    for publisher in list(_publishers):
        publisher.forget()


os.register_at_fork(after_in_child=_forget_all)


def _fail(future: Future[Any], error: BackendError) -> None:
    if not future.done():
        future.set_exception(type(error)(*error.args).with_traceback(None))


def _properties(message: Message) -> pika.BasicProperties:
    return pika.BasicProperties(
        content_type=message.content_type,
        delivery_mode=PERSISTENT,
        message_id=message.message_id,
        type=message.type,
        priority=message.priority,
        headers=dict(message.headers),
    )


def _parameters(address: BrokerAddress, options: RabbitMQOptions) -> pika.ConnectionParameters:
    return pika.ConnectionParameters(
        host=address.host,
        port=address.port,
        virtual_host=address.vhost,
        credentials=pika.PlainCredentials(address.user, address.password),
        heartbeat=int(options.heartbeat),
        blocked_connection_timeout=None,
        socket_timeout=options.publish_timeout,
        stack_timeout=options.publish_timeout * 2,
        ssl_options=(
            pika.SSLOptions(options.tls_context(), options.server_hostname or address.host)
            if address.tls
            else None
        ),
        client_properties={"connection_name": f"{options.connection_name} publisher"},
    )


def _connect_error(address: BrokerAddress, error: Any) -> BackendError:
    """Tell a refusal, which no waiting mends, from an outage.

    The client guesses at a refusal whenever a connection ends early; the broker's own words count.
    """
    text = f"{error} {getattr(error, 'exceptions', '')}"
    if "ACCESS_REFUSED" in text:
        return AccessRefused(f"the broker refuses the user or password of {address}")
    if "NOT_ALLOWED" in text:
        return AccessRefused(f"the broker refuses or does not have the vhost of {address}")
    return BackendUnavailable(f"cannot connect to {address}: {str(error) or type(error).__name__}")


def _channel_error(reason: ChannelClosedByBroker, what: str) -> BackendError:
    text = f"{what}: {reason.reply_code} {reason.reply_text}"
    if reason.reply_code == _PRECONDITION_FAILED:
        return TopologyMismatch(
            f"{text}. It exists with other arguments: change the setting back, delete it, or give"
            " the queue another 'revision'"
        )
    if reason.reply_code == _ACCESS_REFUSED:
        return AccessRefused(text)
    return PublishFailed(text) if reason.reply_code == _NOT_FOUND else BackendError(text)
