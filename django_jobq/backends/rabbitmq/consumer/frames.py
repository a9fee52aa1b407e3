"""Deliveries, read straight from the bytes of a connection.

The client decodes what arrives frame by frame and field by field, which for a small job costs more
than everything else that a worker does. `FrameReader` stands in front of it:

1. What arrives is split into frames.
2. A delivery for a subscribed channel, with the header and body frames behind it, becomes one
   `Message` for the subscriber.
3. Every other frame goes on to the client as it is. So does everything, once there is something
   that is no frame: the client knows what to say about that.

The client takes a connection for dead that brings it no frame for some heartbeats; what is read
here is made known to it as one.
"""

from __future__ import annotations

import asyncio
import dataclasses
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, SupportsIndex

from pamqp import decode

_KINDS = METHOD, HEADER, BODY, HEARTBEAT = 1, 2, 3, 8
_END = 0xCE
# Type, channel and size in front of a frame's payload; one byte ends it.
_HEAD = struct.Struct(">BHL")
_PAYLOAD = _HEAD.size
_OVERHEAD = _PAYLOAD + 1
_DELIVER = struct.pack(">HH", 60, 60)
_CHANNEL_CLOSE = struct.pack(">HH", 20, 40)
# A method with a delivery tag and flags: one frame.
_SETTLE = struct.Struct(">BHLHHQBB")
_ACK, _NACK, _SIZE = 80, 120, 13
_MULTIPLE, _REQUEUE = 1, 2
_HEARTBEAT_FRAME = struct.pack(">BHLB", HEARTBEAT, 0, 0, _END)
_SIGN_OF_LIFE = 1.0


@dataclasses.dataclass(frozen=True, slots=True)
class Properties:
    """Hold the properties of a message that a consumer looks at."""

    headers: dict[str, Any] = dataclasses.field(default_factory=dict)
    priority: int = 0
    message_id: str | None = None
    type: str | None = None


@dataclasses.dataclass(slots=True)
class Message:
    """Hold one delivery as it comes from the broker."""

    tag: int
    redelivered: bool
    properties: Properties
    body: bytes


@dataclasses.dataclass(frozen=True, slots=True)
class Subscription:
    """Tell what to do with the deliveries of a channel, and when the broker closes it and why."""

    receive: Callable[[Message], None]
    closed: Callable[[str], None]
    consumer_tags: set[bytes] = dataclasses.field(default_factory=set)


@dataclasses.dataclass(slots=True)
class _Partial:
    receive: Callable[[Message], None]
    tag: int
    redelivered: bool
    missing: int = -1
    properties: Properties = dataclasses.field(default_factory=Properties)
    parts: list[bytes] = dataclasses.field(default_factory=list)

    def message(self) -> Message:
        return Message(self.tag, self.redelivered, self.properties, b"".join(self.parts))


class FrameReader(asyncio.StreamReader):
    """Read a connection for its client, and take out the deliveries of subscribed channels."""

    def __init__(self) -> None:
        super().__init__()
        self._subscriptions: dict[int, Subscription] = {}
        self._partials: dict[int, _Partial] = {}
        self._rest = b""
        self._is_raw = False
        self._loop_time = asyncio.get_running_loop().time
        self._next_sign_of_life = 0.0

    def subscribe(self, channel: int, subscription: Subscription) -> None:
        """Take the deliveries of a channel's consumers from now on."""
        self._subscriptions[channel] = subscription

    def unsubscribe(self, channel: int) -> None:
        """Leave a channel to the client again, but for the rest of what has begun to arrive."""
        self._subscriptions.pop(channel, None)

    def feed_data(self, data: Iterable[SupportsIndex]) -> None:
        """Take what has arrived."""
        left: list[bytes] = []
        taken = False
        for kind, channel, frame in self._split(bytes(data)):
            if self._take(kind, channel, frame):
                taken = True
            else:
                left.append(frame)
        if taken and self._loop_time() >= self._next_sign_of_life:
            self._next_sign_of_life = self._loop_time() + _SIGN_OF_LIFE
            left.append(_HEARTBEAT_FRAME)
        if left:
            super().feed_data(b"".join(left))

    def feed_eof(self) -> None:
        """Note the end; what is left of a frame is the client's to complain about."""
        if self._rest:
            super().feed_data(self._rest)
            self._rest = b""
        super().feed_eof()

    def _split(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Yield kind, channel and bytes of each whole frame; keep what is left for later."""
        data = self._rest + data
        position, length = 0, len(data)
        while length - position >= _OVERHEAD and not self._is_raw:
            kind, channel, size = _HEAD.unpack_from(data, position)
            self._is_raw = kind not in _KINDS
            end = position + _OVERHEAD + size
            if end > length or self._is_raw:
                break
            yield kind, channel, data[position:end]
            position = end
        self._rest = data[position:]
        if self._is_raw and self._rest:
            yield 0, 0, self._rest
            self._rest = b""

    def _take(self, kind: int, channel: int, frame: bytes) -> bool:
        """Use a frame of a subscribed channel; return False if it is the client's."""
        if kind == METHOD:
            subscription = self._subscriptions.get(channel)
            return subscription is not None and self._take_method(channel, frame, subscription)
        partial = self._partials.get(channel)
        if partial is None:
            return False
        if kind == HEADER:
            (partial.missing,) = struct.unpack_from(">Q", frame, _PAYLOAD + 4)
            partial.properties = read_properties(frame[_PAYLOAD + 12 : -1])
        else:
            partial.parts.append(frame[_PAYLOAD:-1])
            partial.missing -= len(frame) - _OVERHEAD
        if partial.missing == 0:
            del self._partials[channel]
            partial.receive(partial.message())
        return True

    def _take_method(self, channel: int, frame: bytes, subscription: Subscription) -> bool:
        method = frame[_PAYLOAD : _PAYLOAD + 4]
        if method == _DELIVER:
            start = _PAYLOAD + 5
            end = start + frame[start - 1]
            if frame[start:end] in subscription.consumer_tags:
                tag, redelivered = struct.unpack_from(">QB", frame, end)
                self._partials[channel] = _Partial(subscription.receive, tag, bool(redelivered))
                return True
        elif method == _CHANNEL_CLOSE:
            self.unsubscribe(channel)
            subscription.closed(_close_reason(frame))
        return False


def _close_reason(frame: bytes) -> str:
    start = _PAYLOAD + 7
    text = frame[start : start + frame[start - 1]].decode(errors="replace")
    return f"{int.from_bytes(frame[start - 3 : start - 1])} {text}"


def ack(channel: int, tag: int, *, multiple: bool = False) -> bytes:
    """Return the frame that acknowledges a delivery, or all up to it."""
    flags = _MULTIPLE if multiple else 0
    return _SETTLE.pack(METHOD, channel, _SIZE, 60, _ACK, tag, flags, _END)


def give_back(channel: int, tag: int) -> bytes:
    """Return the frame that puts a delivery back in its place in the queue."""
    return _SETTLE.pack(METHOD, channel, _SIZE, 60, _NACK, tag, _REQUEUE, _END)


def read_properties(data: bytes) -> Properties:
    """Return the properties of a content header's flags and fields.

    What cannot be read makes a message without properties: its body decides.
    """
    try:
        return _read_properties(data)
    except (ValueError, IndexError, struct.error):
        return Properties()


def _read_properties(data: bytes) -> Properties:
    flags = data[0] << 8 | data[1]
    position, texts, headers, priority = 2, {}, {}, 0
    for bit, kind in _FIELDS:
        if not flags & bit:
            continue
        if kind == "text":
            end = position + 1 + data[position]
            texts[bit] = data[position + 1 : end]
        elif kind == "table":
            end = position + 4 + int.from_bytes(data[position : position + 4])
            headers = _read_table(data[position + 4 : end])
        elif kind == "octet":
            end = position + 1
            if bit == _PRIORITY:
                priority = data[position]
        else:
            end = position + 8
        position = end
    message_id, type = texts.get(_MESSAGE_ID), texts.get(_TYPE)
    return Properties(
        headers,
        priority,
        None if message_id is None else message_id.decode(),
        None if type is None else type.decode(),
    )


_PRIORITY, _MESSAGE_ID, _TYPE = 1 << 11, 1 << 7, 1 << 5
# In the order in which they travel: content type and encoding, headers, delivery mode, priority,
# correlation id, reply to, expiration, message id, timestamp, type, user, application, cluster.
_FIELDS = tuple(
    (1 << 15 - number, kind)
    for number, kind in enumerate(
        ["text", "text", "table", "octet", "octet", *["text"] * 4, "time", *["text"] * 4]
    )
)


def _read_table(data: bytes) -> dict[str, Any]:
    """Return a table; the kinds that our own messages have are read at once."""
    found: dict[str, Any] = {}
    position, length = 0, len(data)
    while position < length:
        start = position + 1 + data[position]
        name = data[position + 1 : start].decode()
        kind = data[start : start + 1]
        if kind == b"S":
            end = start + 5 + int.from_bytes(data[start + 1 : start + 5])
            found[name] = _text(data[start + 5 : end])
        elif kind == b"I":
            end = start + 5
            found[name] = int.from_bytes(data[start + 1 : end], signed=True)
        elif kind == b"l":
            end = start + 9
            found[name] = int.from_bytes(data[start + 1 : end], signed=True)
        else:
            read, found[name] = decode.embedded_value(data[start:])
            end = start + read
        position = end
    return found


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
