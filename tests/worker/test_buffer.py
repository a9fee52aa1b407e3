"""The buffer between consumers and the dispatcher."""

import asyncio

import pytest

from django_jobq.backends.base import Cause, Delivery
from django_jobq.envelope import Envelope
from django_jobq.worker.buffer import RoundRobinBuffer


class Pulled(Delivery):
    """A delivery that is only passed around."""

    async def _ack(self) -> None: ...

    async def _replace(self, successor: Envelope, delay: float, *, front: bool) -> None: ...

    async def _dead_letter(self, cause: Cause, reason: str, final: Envelope | None) -> None: ...

    async def _release(self) -> None: ...


def fill(buffer: RoundRobinBuffer, queue: str, letters: str) -> None:
    """Put one delivery for each letter of a text."""
    for letter in letters:
        buffer.put(queue, Pulled(queue, letter.encode(), 1))


async def take(buffer: RoundRobinBuffer, count: int) -> str:
    return "".join([(await buffer.get()).body.decode() for _ in range(count)])


async def test_one_queue_is_first_in_first_out() -> None:
    buffer = RoundRobinBuffer(["a"])
    fill(buffer, "a", "123")

    assert await take(buffer, 3) == "123"


@pytest.mark.contract(56)
async def test_queues_are_served_in_turn() -> None:
    buffer = RoundRobinBuffer(["a", "b", "c"])
    fill(buffer, "a", "123456")
    fill(buffer, "b", "xy")
    fill(buffer, "c", "Z")

    assert await take(buffer, 9) == "1xZ2y3456"


@pytest.mark.contract(56)
async def test_queue_that_fills_later_gets_the_next_turn() -> None:
    buffer = RoundRobinBuffer(["a", "b"])
    fill(buffer, "a", "1234")

    assert await take(buffer, 2) == "12"
    fill(buffer, "b", "xy")

    assert await take(buffer, 4) == "x3y4"


async def test_get_waits_for_a_delivery() -> None:
    buffer = RoundRobinBuffer(["a", "b"])
    waiting = asyncio.create_task(take(buffer, 1))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()

    fill(buffer, "b", "x")

    assert await asyncio.wait_for(waiting, 10) == "x"


@pytest.mark.contract(65)
async def test_cancelled_get_has_taken_nothing() -> None:
    buffer = RoundRobinBuffer(["a"])
    waiting = asyncio.create_task(take(buffer, 1))
    await asyncio.sleep(0)
    fill(buffer, "a", "12")
    waiting.cancel()
    await asyncio.wait({waiting}, timeout=10)

    assert waiting.cancelled()
    assert len(buffer) == 2
    assert await take(buffer, 2) == "12"


def test_length_counts_all_queues() -> None:
    buffer = RoundRobinBuffer(["a", "b"])
    assert len(buffer) == 0
    fill(buffer, "a", "12")
    fill(buffer, "b", "x")

    assert len(buffer) == 3


@pytest.mark.contract(65)
def test_drain_takes_everything_in_order() -> None:
    buffer = RoundRobinBuffer(["a", "b"])
    fill(buffer, "b", "xy")
    fill(buffer, "a", "12")

    assert [item.body for item in buffer.drain()] == [b"1", b"2", b"x", b"y"]
    assert len(buffer) == 0
    assert buffer.drain() == []
