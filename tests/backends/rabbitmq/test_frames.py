"""Reading deliveries from the bytes of a connection, against an independent encoder of frames."""

import asyncio
import datetime as dt
import decimal
import random
from typing import Any

import pytest
from pamqp import body, commands, frame, header, heartbeat

from django_jobq.backends.rabbitmq.consumer import frames
from django_jobq.backends.rabbitmq.consumer.frames import FrameReader, Message, Subscription

CHANNEL, TAG = 3, "default.1.abc"
OURS: dict[str, Any] = {"x-job-id": "1b4e28ba", "x-attempt": 2, "x-deferrals": 0}


class Receiver:
    """Note what a subscription is told."""

    def __init__(self, tag: str = TAG) -> None:
        self.messages: list[Message] = []
        self.closed: list[str] = []
        self.subscription = Subscription(self.messages.append, self.closed.append, {tag.encode()})


@pytest.fixture
def receiver() -> Receiver:
    return Receiver()


@pytest.fixture
async def reader(receiver: Receiver) -> FrameReader:
    reader = FrameReader()
    reader.subscribe(CHANNEL, receiver.subscription)
    return reader


def delivered(
    payload: bytes = b"{}",
    *,
    channel: int = CHANNEL,
    tag: str = TAG,
    number: int = 1,
    redelivered: bool = False,
    split: int = 100_000,
    **properties: Any,
) -> bytes:
    """Return the frames of one delivery, its body in parts of ``split`` bytes."""
    parts = [payload[start : start + split] for start in range(0, len(payload), split)]
    fields = commands.Basic.Properties(**properties)
    deliver = commands.Basic.Deliver(tag, number, redelivered, "jobq", "default")
    content = [header.ContentHeader(0, len(payload), fields), *map(body.ContentBody, parts)]
    return b"".join(frame.marshal(item, channel) for item in [deliver, *content])


def method(item: Any, channel: int = CHANNEL) -> bytes:
    return frame.marshal(item, channel)


async def left_for_the_client(reader: FrameReader) -> bytes:
    """Return what the client reads, without the signs of life."""
    reader.feed_eof()
    return (await reader.read()).replace(method(heartbeat.Heartbeat(), 0), b"")


async def test_a_delivery_becomes_a_message(reader: FrameReader, receiver: Receiver) -> None:
    reader.feed_data(
        delivered(
            b'{"job":"a"}',
            number=2**40,
            redelivered=True,
            content_type="application/json",
            delivery_mode=2,
            priority=7,
            message_id="m-1",
            message_type="shop.jobs.pay",
            headers=OURS,
        )
    )
    (message,) = receiver.messages
    assert (message.tag, message.redelivered, message.body) == (2**40, True, b'{"job":"a"}')
    expected = frames.Properties(OURS, 7, "m-1", "shop.jobs.pay")
    assert message.properties == expected
    assert await left_for_the_client(reader) == b""


async def test_no_properties_and_no_body(reader: FrameReader, receiver: Receiver) -> None:
    reader.feed_data(delivered(b""))
    (message,) = receiver.messages
    assert message == Message(1, False, frames.Properties(), b"")


async def test_every_property_is_stepped_over(reader: FrameReader, receiver: Receiver) -> None:
    reader.feed_data(
        delivered(
            content_type="a/b",
            content_encoding="utf-8",
            headers={"x": 1},
            delivery_mode=2,
            priority=255,
            correlation_id="c",
            reply_to="r",
            expiration="1000",
            message_id="ü" * 100,
            timestamp=dt.datetime(2030, 1, 1, tzinfo=dt.UTC),
            message_type="t",
            user_id="guest",
            app_id="app",
        )
    )
    assert receiver.messages[0].properties == frames.Properties({"x": 1}, 255, "ü" * 100, "t")


@pytest.mark.parametrize(
    "value",
    [
        "text",
        "",
        "ü" * 5_000,
        -1,
        2**31 - 1,
        -(2**31),
        2**40,
        -(2**62),
        True,
        1.5,
        None,
        decimal.Decimal("1.25"),
        dt.datetime(2030, 1, 1, tzinfo=dt.UTC),
        [{"count": 3, "queue": "jobq.hold.0.1", "routing-keys": ["a"]}],
        {"nested": {"deeper": 1}},
        bytearray(b"\x00\xff"),
    ],
)
async def test_headers_of_every_kind(
    reader: FrameReader, receiver: Receiver, value: object
) -> None:
    reader.feed_data(delivered(headers={"a": 1, "b": value, "c": "x"}))
    assert receiver.messages[0].properties.headers == {"a": 1, "b": value, "c": "x"}


async def test_text_that_is_no_utf8_stays_bytes(reader: FrameReader, receiver: Receiver) -> None:
    sent = delivered(headers={"value": "????", "after": 1}).replace(b"????", b"\xff\xfe\xfd\xfc")
    reader.feed_data(sent)
    assert receiver.messages[0].properties.headers == {"value": b"\xff\xfe\xfd\xfc", "after": 1}


@pytest.mark.parametrize("size", [1, 2, 3, 7, 8, 100, 5_000])
async def test_pieces_of_any_size(reader: FrameReader, receiver: Receiver, size: int) -> None:
    bodies = [bytes([65 + number]) * (number * 1_000) for number in range(5)]
    other = method(commands.Basic.QosOk())
    stream = b"".join(
        delivered(text, number=number, split=700, headers=OURS) + other
        for number, text in enumerate(bodies)
    )
    for start in range(0, len(stream), size):
        reader.feed_data(stream[start : start + size])
    assert [message.body for message in receiver.messages] == bodies
    assert [message.tag for message in receiver.messages] == [0, 1, 2, 3, 4]
    assert await left_for_the_client(reader) == other * 5


async def test_frames_of_channels_may_alternate(reader: FrameReader, receiver: Receiver) -> None:
    second = Receiver("second")
    reader.subscribe(9, second.subscription)
    one = delivered(b"x" * 3_000, split=1_000)
    two = delivered(b"y" * 3_000, split=1_000, channel=9, tag="second")
    other = delivered(b"z", channel=5, tag="somebody")
    pieces = [_frames_of(one), _frames_of(two), _frames_of(other)]
    mixed = random.Random(7).sample([0] * 5 + [1] * 5 + [2] * 3, 13)
    reader.feed_data(b"".join(pieces[which].pop(0) for which in mixed))
    assert [message.body for message in receiver.messages] == [b"x" * 3_000]
    assert [message.body for message in second.messages] == [b"y" * 3_000]
    assert await left_for_the_client(reader) == other


def _frames_of(stream: bytes) -> list[bytes]:
    found = []
    while stream:
        end = 8 + int.from_bytes(stream[3:7])
        found.append(stream[:end])
        stream = stream[end:]
    return found


async def test_what_is_no_delivery_goes_on_in_order(reader: FrameReader) -> None:
    sent = [
        method(commands.Basic.ConsumeOk(TAG)),
        method(heartbeat.Heartbeat(), 0),
        method(commands.Basic.Cancel(TAG)),
        method(commands.Connection.Blocked("low on memory"), 0),
    ]
    reader.feed_data(sent[0] + delivered() + sent[1] + sent[2])
    reader.feed_data(delivered() + sent[3])
    reader.feed_eof()
    found = _frames_of(await reader.read())
    assert [item for item in found if item != sent[1]] == [sent[0], sent[2], sent[3]]
    assert found.count(sent[1]) == 2  # its own, and one for the deliveries


async def test_deliveries_are_a_sign_of_life_now_and_then(reader: FrameReader) -> None:
    for _ in range(100):
        reader.feed_data(delivered())
    reader.feed_eof()
    assert await reader.read() in (method(heartbeat.Heartbeat(), 0) * n for n in (1, 2, 3))


async def test_the_close_of_a_channel_is_told_at_once(
    reader: FrameReader, receiver: Receiver
) -> None:
    closing = method(commands.Channel.Close(406, "PRECONDITION_FAILED", 0, 0))
    reader.feed_data(delivered() + closing)
    assert receiver.closed == ["406 PRECONDITION_FAILED"]
    assert await left_for_the_client(reader) == closing


async def test_another_consumer_of_the_channel_is_the_clients(reader: FrameReader) -> None:
    other = delivered(tag="another")
    reader.feed_data(other)
    assert await left_for_the_client(reader) == other


async def test_an_unsubscribed_channel_is_the_clients_from_its_next_method_on(
    reader: FrameReader, receiver: Receiver
) -> None:
    first, second = delivered(b"x" * 3_000, split=1_000), delivered(b"y")
    reader.feed_data(first[:200])
    reader.unsubscribe(CHANNEL)
    reader.feed_data(first[200:] + second)
    assert [message.body for message in receiver.messages] == [b"x" * 3_000]
    assert await left_for_the_client(reader) == second


@pytest.mark.parametrize("rubbish", [b"AMQP\x00\x00\x09\x01", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
async def test_what_is_no_frame_is_left_to_the_client(
    reader: FrameReader, receiver: Receiver, rubbish: bytes
) -> None:
    reader.feed_data(delivered() + rubbish)
    reader.feed_data(b"more" + delivered())
    assert len(receiver.messages) == 1
    assert await left_for_the_client(reader) == rubbish + b"more" + delivered()


async def test_the_beginning_of_a_frame_is_the_clients_at_the_end(reader: FrameReader) -> None:
    reader.feed_data(method(commands.Basic.QosOk())[:5])
    assert await left_for_the_client(reader) == method(commands.Basic.QosOk())[:5]


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b"\xff\xff\x05ab", b"\x20\x00\x00\x00\x00\x05\x01aZ"]
)
def test_properties_that_cannot_be_read_are_none(data: bytes) -> None:
    assert frames.read_properties(data) in (frames.Properties(), frames.Properties(headers={}))


@pytest.mark.parametrize("multiple", [True, False])
def test_an_acknowledgement_is_what_the_protocol_says(multiple: bool) -> None:
    expected = frame.marshal(commands.Basic.Ack(2**33, multiple), 7)
    assert frames.ack(7, 2**33, multiple=multiple) == expected


def test_giving_back_is_what_the_protocol_says() -> None:
    assert frames.give_back(7, 5) == frame.marshal(commands.Basic.Nack(5, False, True), 7)


async def test_a_reader_reads_as_fast_as_it_is_fed(reader: FrameReader) -> None:
    reader.feed_data(delivered(b"x" * 20_000_000, split=131_064))
    reader.feed_data(method(commands.Basic.QosOk()))
    assert await asyncio.wait_for(reader.readexactly(20), 5)
