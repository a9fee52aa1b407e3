"""The publisher's thread, which alone touches pika.

1. Callers put items into a queue; one wake-up takes all that has gathered. What one turn publishes
   goes to the broker in one write, in the order of arrival, and waits for its confirm.
2. A lost connection or channel puts what was not confirmed back in front; it is written again on
   the next one, until its deadline. That may make a second copy, never none.
3. At its deadline a message that was not written fails. One that was written and not confirmed
   fails as unknown and takes the connection down, since its silence cannot be trusted.
4. While the broker blocks publishers (an alarm), nothing is written and everything fails at once.
   So it does while the last attempt to connect has failed, and from a deadline that passed in
   silence until there is a new connection: the first caller of an outage waits, the others do not.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import struct
import threading
import time
from collections import deque
from typing import Any

from pika.adapters.select_connection import IOLoop
from pika.channel import Channel
from pika.exceptions import AMQPConnectionError, AMQPError, ChannelClosedByBroker

from django_jobq.backends.rabbitmq.options import RabbitMQOptions
from django_jobq.backends.rabbitmq.publisher import errors
from django_jobq.backends.rabbitmq.publisher.calls import Calls
from django_jobq.backends.rabbitmq.publisher.confirms import Confirms
from django_jobq.backends.rabbitmq.publisher.connection import (
    GatheringConnection,
    parameters,
    properties,
)
from django_jobq.backends.rabbitmq.publisher.items import Call, Item, Publish
from django_jobq.backends.rabbitmq.url import BrokerAddress
from django_jobq.exceptions import AccessRefused, BackendError, BackendUnavailable, PublishFailed

logger = logging.getLogger("django_jobq.rabbitmq")

_TICK = 0.05
_FLUSH = 2.0


class Engine(threading.Thread):
    """Own the connection; every method but `submit()` and `stop()` runs on this thread."""

    def __init__(self, address: BrokerAddress, options: RabbitMQOptions) -> None:
        super().__init__(name="jobq-publisher", daemon=True)
        self.pid = os.getpid()
        self._address, self._options = address, options
        self._loop: Any = IOLoop()
        self._incoming: deque[Item] = deque()
        self._waiting: deque[Item] = deque()
        self._confirms = Confirms()
        self._calls = Calls()
        self._connection: GatheringConnection | None = None
        self._channel: Channel | None = None
        self._failures = 0
        self._refused_by: BaseException | None = None
        self._down: BackendError | None = None
        self._blocked: str | None = None
        self._stopping = self._closing = False
        self._is_woken = self._is_ticking = False
        atexit.register(self.stop)

    # Called by other threads

    def is_usable(self) -> bool:
        """Return whether the thread is this process's and has not ended."""
        return self.pid == os.getpid() and (self.ident is None or self.is_alive())

    def submit(self, item: Item) -> None:
        """Queue an item, or fail it at once while that is sure to be its end."""
        refusal = self._refusal()
        if refusal is not None:
            item.fail(refusal)
            return
        self._incoming.append(item)
        if not self._is_woken:
            self._is_woken = True
            self._loop.add_callback_threadsafe(self._drain)

    def stop(self) -> None:
        """Flush for a moment, then end."""
        atexit.unregister(self.stop)
        if self.is_alive():
            self._loop.add_callback_threadsafe(self._begin_stop)
            self.join(_FLUSH + 1)

    def _refusal(self) -> BackendError | None:
        if self._blocked is not None:
            return BackendUnavailable(f"the broker blocks publishers: {self._blocked}")
        if self._stopping:
            return BackendUnavailable("the publisher is closed")
        return self._down

    # Connecting

    def run(self) -> None:
        """Serve until stopped."""
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
        self._connection = GatheringConnection(
            parameters(self._address, self._options),
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
        self._down = self._refused_by = None
        self._open_channel()

    def _on_open_error(self, _connection: Any, error: Any) -> None:
        self._failures += 1
        self._down = errors.connect_error(self._address, error)
        self._refused_by = self._down.__cause__
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
        self._waiting.extendleft(self._calls.take_all())
        self._connect()

    def _reconnect_later(self) -> None:
        if self._stopping:
            self._loop.stop()
            return
        self._loop.call_later(self._options.reconnect_wait(self._failures), self._connect)

    def _on_blocked(self, _connection: Any, frame: Any) -> None:
        self._blocked = str(frame.method.reason)
        logger.warning("The broker blocks publishers: %s", self._blocked)
        for item in self._take_waiting():
            item.fail(BackendUnavailable(f"the broker blocks publishers: {self._blocked}"))

    def _on_unblocked(self, *_: Any) -> None:
        self._blocked = None
        logger.info("The broker takes publishes again")

    # The publishing channel

    def _open_channel(self) -> None:
        assert self._connection is not None
        self._connection.channel(on_open_callback=self._on_channel_open)

    def _on_channel_open(self, channel: Channel) -> None:
        channel.add_on_close_callback(self._on_channel_close)
        channel.add_on_return_callback(self._confirms.on_return)
        channel.confirm_delivery(
            self._confirms.on_confirm, callback=lambda _: self._on_ready(channel)
        )

    def _on_ready(self, channel: Channel) -> None:
        self._channel = channel
        self._drain()

    def _on_channel_close(self, _channel: Channel, reason: Any) -> None:
        self._channel = None
        if isinstance(reason, ChannelClosedByBroker):
            self._fail_refused(reason)
        self._take_back()
        if self._connection is not None and self._connection.is_open:
            self._open_channel()

    def _fail_refused(self, reason: ChannelClosedByBroker) -> None:
        """Fail the publishes that the broker's text names; the others are written again."""
        for item in self._confirms.take(lambda item: errors.is_about(reason, item)):
            item.fail(errors.channel_error(reason, f"publishing to {item.exchange!r}"))

    def _take_back(self) -> None:
        """Put what was written and not confirmed in front of what waits, in order."""
        for item in reversed(self._confirms.take_all()):
            if not item.future.done():
                item.is_sent, item.returned = False, None
                self._waiting.appendleft(item)

    def _drain(self) -> None:
        self._is_woken = False
        self._take_incoming()
        self._keep_ticking()
        channel, connection = self._channel, self._connection
        if channel is None or not channel.is_open or self._blocked is not None:
            return
        assert connection is not None
        with connection.gathering():
            for item in self._take_waiting():
                if isinstance(item, Call):
                    self._calls.start(connection, item)
                else:
                    self._write(channel, item)

    def _take_incoming(self) -> None:
        while self._incoming:
            self._waiting.append(self._incoming.popleft())

    def _take_waiting(self) -> list[Item]:
        self._take_incoming()
        items = list(self._waiting)
        self._waiting.clear()
        return items

    def _write(self, channel: Channel, item: Publish) -> None:
        if not channel.is_open:
            self._waiting.append(item)
            return
        message = item.message
        try:
            channel.basic_publish(
                item.exchange, item.key, message.body, properties(message), mandatory=True
            )
        except (UnicodeError, struct.error, TypeError, ValueError, AMQPError) as error:
            refusal = PublishFailed(f"a message cannot be encoded: {error}")
            refusal.__cause__ = error
            item.fail(refusal)
            return
        self._confirms.add(item)

    # Deadlines and the end

    def _keep_ticking(self) -> None:
        """Look at deadlines for as long as there are any."""
        if not self._is_ticking and (self._is_busy() or self._stopping):
            self._is_ticking = True
            self._loop.call_later(_TICK, self._tick)

    def _is_busy(self) -> bool:
        return bool(self._confirms or self._waiting or self._incoming or self._calls)

    def _tick(self) -> None:
        self._is_ticking = False
        late = self._fail_late()
        connection = self._connection
        was_sent = any(isinstance(item, Publish) and item.is_sent for item in late)
        # The silence of a blocked connection is explained; heartbeats find one that is dead.
        is_silent = was_sent and connection is not None and self._blocked is None
        if is_silent or (late and (connection is None or not connection.is_open)):
            # Until there is a new connection, which may take as long as the one that was late.
            self._down = self._down or BackendUnavailable(f"{self._address} does not answer")
        if is_silent:
            self._terminate("no confirm in time")
        if self._stopping and not self._confirms and not self._waiting:
            self._finish_stop()
        self._keep_ticking()

    def _fail_late(self) -> list[Item]:
        """Fail and return the items whose deadline has passed."""
        now = time.monotonic()
        items = [*self._confirms, *self._waiting, *self._calls]
        late = [item for item in items if item.deadline <= now and not item.future.done()]
        for item in late:
            error = item.late(self._address, self._options.publish_timeout)
            error.__cause__ = self._refused_by if not item.is_sent else None
            item.fail(error)
        self._waiting = deque(item for item in self._waiting if not item.future.done())
        self._calls.drop_done()
        return late

    def _terminate(self, reason: str) -> None:
        """Drop the socket without a word: its peer may not be listening."""
        with contextlib.suppress(Exception):  # it may be half closed already
            assert self._connection is not None
            self._connection._terminate_stream(AMQPConnectionError(reason))

    def _begin_stop(self) -> None:
        self._stopping = True
        if self._is_busy():
            self._loop.call_later(_FLUSH, self._finish_stop)
            self._keep_ticking()
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
        for item in [*self._confirms.take_all(), *self._calls.take_all(), *self._take_waiting()]:
            item.fail(error)
