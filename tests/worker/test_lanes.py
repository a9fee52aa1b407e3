"""Lanes: how many calls run at once, on which thread, in which context, and how they end."""

import asyncio
import contextvars
import gc
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connections

from django_jobq.worker.lanes import AsyncLanes, ThreadLanes

DEADLINE = 20.0

language = contextvars.ContextVar("language", default="none")


class Payload:
    """Something that a weak reference can watch."""


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE):
        while not condition():  # noqa: ASYNC110 - threads tell nobody
            await asyncio.sleep(0.002)


async def ended(future: asyncio.Future[Any]) -> asyncio.Future[Any]:
    """Wait for a future without raising what it holds."""
    done, _ = await asyncio.wait({future}, timeout=DEADLINE)
    assert done, "the call never ended"
    return future


@pytest.fixture
async def threads() -> AsyncIterator[ThreadLanes]:
    """Return two thread lanes."""
    lanes = ThreadLanes(2)
    lanes.start()
    yield lanes
    await lanes.stop(DEADLINE)


@pytest.fixture
async def tasks() -> AsyncIterator[AsyncLanes]:
    """Return two lanes for coroutines."""
    lanes = AsyncLanes(2)
    yield lanes
    await lanes.stop()


@pytest.fixture
def file_database(tmp_path: Path, django_db_blocker: Any) -> Iterator[str]:
    """Return an alias whose connections really open and close."""
    connections.settings["file"] = {
        **connections.settings["default"],
        "NAME": str(tmp_path / "lanes.sqlite3"),
    }
    with django_db_blocker.unblock():
        yield "file"
        connections["file"].close()
    del connections["file"], connections.settings["file"]


# Threads


async def test_thread_returns_the_result(threads: ThreadLanes) -> None:
    assert await threads.submit(lambda: "done").future == "done"


@pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3), KeyboardInterrupt()])
async def test_thread_delivers_whatever_was_raised(
    threads: ThreadLanes, error: BaseException
) -> None:
    def fail() -> None:
        raise error

    future = await ended(threads.submit(fail).future)

    assert future.exception() is error
    assert await threads.submit(lambda: "the thread lives on").future == "the thread lives on"


@pytest.mark.contract(57)
async def test_threads_run_as_many_calls_as_there_are_lanes(threads: ThreadLanes) -> None:
    together = threading.Barrier(2)
    gate = threading.Event()
    started: list[int] = []

    def call(number: int) -> None:
        started.append(number)
        if number < 2:
            together.wait(DEADLINE)
            assert gate.wait(DEADLINE)

    calls = [threads.submit(partial(call, number)) for number in range(3)]
    await until(lambda: together.n_waiting == 0 and len(started) >= 2)

    assert sorted(started) == [0, 1]
    gate.set()
    await asyncio.gather(*(call.future for call in calls))
    assert sorted(started) == [0, 1, 2]


async def test_all_threads_start_at_once() -> None:
    before = set(threading.enumerate())
    lanes = ThreadLanes(3)
    lanes.start()

    new = set(threading.enumerate()) - before
    assert len(new) == 3
    assert all(thread.daemon for thread in new)
    await lanes.stop(DEADLINE)
    assert not any(thread.is_alive() for thread in new)


async def test_context_of_a_call_does_not_reach_the_next() -> None:
    lanes = ThreadLanes(1)
    lanes.start()

    assert await lanes.submit(lambda: language.set("de") and language.get()).future == "de"
    assert await lanes.submit(language.get).future == "none"
    await lanes.stop(DEADLINE)


async def test_cancelled_caller_does_not_hurt_the_thread(threads: ThreadLanes) -> None:
    gate, finished = threading.Event(), threading.Event()

    def call() -> None:
        assert gate.wait(DEADLINE)
        finished.set()

    future = threads.submit(call).future
    future.cancel()
    gate.set()
    await until(finished.is_set)

    assert await threads.submit(lambda: "next").future == "next"


@pytest.mark.contract(61)
async def test_replaced_thread_makes_room_and_ends_when_it_returns() -> None:
    lanes = ThreadLanes(1)
    lanes.start()
    gate = threading.Event()
    seen: list[threading.Thread] = []

    def get_stuck() -> None:
        seen.append(threading.current_thread())
        assert gate.wait(DEADLINE)

    stuck = lanes.submit(get_stuck)
    behind = lanes.submit(threading.current_thread)
    await until(lambda: bool(seen))
    assert not behind.future.done()

    lanes.replace(stuck)
    second = await asyncio.wait_for(behind.future, DEADLINE)
    assert second is not seen[0]

    gate.set()
    await until(lambda: not seen[0].is_alive())
    assert await lanes.submit(threading.current_thread).future is second
    await lanes.stop(DEADLINE)


async def test_stop_waits_no_longer_than_it_is_told() -> None:
    lanes = ThreadLanes(1)
    lanes.start()
    gate = threading.Event()
    call = lanes.submit(lambda: gate.wait(DEADLINE))

    await asyncio.wait_for(lanes.stop(0.05), 5)

    gate.set()
    assert await asyncio.wait_for(call.future, DEADLINE)


def test_result_for_a_closed_loop_is_dropped() -> None:
    gate, left = threading.Event(), threading.Event()
    threads: list[threading.Thread] = []

    async def submit() -> None:
        lanes = ThreadLanes(1)
        lanes.start()

        def call() -> None:
            threads.append(threading.current_thread())
            left.wait(DEADLINE)

        lanes.submit(call)
        await until(lambda: bool(threads))
        await lanes.stop(0)

    asyncio.run(submit())
    left.set()
    gate.set()

    threads[0].join(DEADLINE)
    assert not threads[0].is_alive()


async def test_thread_keeps_nothing_of_its_last_call() -> None:
    lanes = ThreadLanes(1)
    lanes.start()
    payload = Payload()
    watched = weakref.ref(payload)
    await lanes.submit(partial(id, payload)).future
    del payload

    await until(lambda: gc.collect() >= 0 and watched() is None)
    await lanes.stop(DEADLINE)


async def test_thread_closes_its_connections_at_the_end(file_database: str) -> None:
    lanes = ThreadLanes(1)
    lanes.start()

    def connect() -> Any:
        connections[file_database].ensure_connection()
        return connections[file_database]

    connection = await lanes.submit(connect).future
    assert connection.connection is not None
    await lanes.stop(DEADLINE)

    assert connection.connection is None


# Coroutines


async def test_lane_returns_the_result(tasks: AsyncLanes) -> None:
    async def call() -> str:
        return "done"

    assert await tasks.run(call) == "done"


async def test_lane_delivers_an_exception(tasks: AsyncLanes) -> None:
    async def call() -> None:
        raise ValueError("x")

    with pytest.raises(ValueError, match="x"):
        await tasks.run(call)


@pytest.mark.contract(57)
async def test_lanes_run_as_many_coroutines_as_there_are_lanes(tasks: AsyncLanes) -> None:
    gate = asyncio.Event()
    running: set[int] = set()

    async def call(number: int) -> None:
        running.add(number)
        await gate.wait()

    calls = [asyncio.create_task(tasks.run(partial(call, number))) for number in range(3)]
    await until(lambda: len(running) == 2)
    for _ in range(20):
        await asyncio.sleep(0)

    assert running == {0, 1}
    gate.set()
    await asyncio.gather(*calls)
    assert running == {0, 1, 2}


async def test_each_lane_has_a_thread_of_its_own(tasks: AsyncLanes) -> None:
    gate = asyncio.Event()
    seen: list[list[int]] = []

    async def call() -> None:
        mine = [await sync_to_async(threading.get_ident)()]
        seen.append(mine)
        await gate.wait()
        mine.append(await sync_to_async(threading.get_ident)())

    calls = [asyncio.create_task(tasks.run(call)) for _ in range(2)]
    await until(lambda: len(seen) == 2)
    gate.set()
    await asyncio.gather(*calls)

    assert [len(set(idents)) for idents in seen] == [1, 1]
    assert seen[0][0] != seen[1][0]
    assert threading.get_ident() not in (seen[0][0], seen[1][0])


async def test_lane_keeps_its_thread_from_call_to_call() -> None:
    lanes = AsyncLanes(1)

    first = await lanes.run(sync_to_async(threading.get_ident))
    second = await lanes.run(sync_to_async(threading.get_ident))

    assert first == second
    await lanes.stop()


async def test_context_of_a_coroutine_does_not_reach_the_next() -> None:
    lanes = AsyncLanes(1)

    async def change() -> str:
        await sync_to_async(language.set)("de")
        return language.get()

    async def look() -> tuple[str, str]:
        return language.get(), await sync_to_async(language.get)()

    assert await lanes.run(change) == "de"
    assert await lanes.run(look) == ("none", "none")
    await lanes.stop()


async def test_cancelled_caller_cancels_the_coroutine_and_frees_the_lane() -> None:
    lanes = AsyncLanes(1)
    seen: list[str] = []

    async def call() -> None:
        seen.append("started")
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("ended")

    caller = asyncio.create_task(lanes.run(call))
    await until(lambda: seen == ["started"])
    caller.cancel()
    await asyncio.wait({caller}, timeout=DEADLINE)
    await until(lambda: seen == ["started", "ended"])

    assert caller.cancelled()
    assert await asyncio.wait_for(lanes.run(sync_to_async(lambda: "next")), DEADLINE) == "next"
    await lanes.stop()


async def test_call_cancelled_before_its_turn_never_starts() -> None:
    lanes = AsyncLanes(1)
    gate = asyncio.Event()
    seen: list[str] = []

    async def note(what: str) -> None:
        seen.append(what)

    first = asyncio.create_task(lanes.run(gate.wait))
    second = asyncio.create_task(lanes.run(partial(note, "cancelled")))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait({second}, timeout=DEADLINE)
    gate.set()
    await first
    await lanes.run(partial(note, "third"))

    assert seen == ["third"]
    await lanes.stop()


async def test_lane_keeps_nothing_of_its_last_call() -> None:
    lanes = AsyncLanes(1)
    payload = Payload()
    watched = weakref.ref(payload)

    async def call(what: Payload) -> None:
        await asyncio.sleep(0)

    await lanes.run(partial(call, payload))
    del payload

    await until(lambda: gc.collect() >= 0 and watched() is None)
    await lanes.stop()


async def test_lane_closes_its_connections_at_the_end(file_database: str) -> None:
    lanes = AsyncLanes(1)

    def connect() -> Any:
        connections[file_database].ensure_connection()
        return connections[file_database]

    connection = await lanes.run(sync_to_async(connect))
    assert connection.connection is not None
    await lanes.stop()

    assert connection.connection is None


async def test_stopping_lanes_that_never_ran_is_harmless() -> None:
    await AsyncLanes(3).stop()


async def test_stop_does_not_wait_for_a_coroutine_that_hangs() -> None:
    lanes = AsyncLanes(1)
    gate = asyncio.Event()
    hanging = asyncio.create_task(lanes.run(gate.wait))
    await asyncio.sleep(0)

    await asyncio.wait_for(lanes.stop(), 10)

    assert not hanging.done()
    gate.set()
    await asyncio.wait_for(hanging, DEADLINE)
