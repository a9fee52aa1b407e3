"""Where jobs run: a fixed number of threads for sync code, and of tasks for async code.

Threads are daemons of the worker's own rather than an executor's: a thread that never returns must
neither keep the interpreter from exiting nor take the place of the next one. An async lane lives
inside a ThreadSensitiveContext, so that its async ORM has a thread and connections of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import dataclasses
import threading
import time
from collections.abc import Callable, Coroutine
from queue import SimpleQueue
from typing import Any, Generic, TypeVar, cast

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import connections

R = TypeVar("R")


class ThreadCall(Generic[R]):
    """Hold one call for a thread and the future, on the event loop, that gets its result."""

    def __init__(self, func: Callable[[], R]) -> None:
        self.abandoned = False
        self._func = func
        self._loop = asyncio.get_running_loop()
        self.future: asyncio.Future[R] = self._loop.create_future()

    def run(self) -> None:
        """Call the function in a fresh copy of the context."""
        try:
            result = contextvars.copy_context().run(self._func)
        except StopIteration as error:  # the one exception that no future takes
            self._tell(self.future.set_exception, RuntimeError(f"a call raised {error!r}"))
        except BaseException as error:  # noqa: BLE001 - whatever it is belongs to who waits
            self._tell(self.future.set_exception, error)
        else:
            self._tell(self.future.set_result, result)

    def _tell(self, settle: Callable[[Any], None], value: object) -> None:
        def settle_if_awaited() -> None:
            if not self.future.done():
                settle(value)

        with contextlib.suppress(RuntimeError):  # the loop is closed: the worker has given up
            self._loop.call_soon_threadsafe(settle_if_awaited)


class ThreadLanes:
    """Run calls on ``size`` threads."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._work: SimpleQueue[ThreadCall[Any] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Start all threads at once: when the interpreter exits, none may start any more."""
        for _ in range(self._size):
            self._start_one()

    def submit(self, func: Callable[[], R]) -> ThreadCall[R]:
        """Hand a call to the next free thread."""
        call = ThreadCall(func)
        self._work.put(call)
        return call

    def replace(self, call: ThreadCall[Any]) -> None:
        """Give up the thread of a call that does not return and start another."""
        call.abandoned = True
        self._start_one()

    async def stop(self, timeout: float) -> None:
        """Let idle threads close their connections and end; wait at most ``timeout`` seconds."""
        for _ in self._threads:
            self._work.put(None)
        give_up = time.monotonic() + timeout
        while any(thread.is_alive() for thread in self._threads) and time.monotonic() < give_up:  # noqa: ASYNC110 - threads end without an event
            await asyncio.sleep(0.005)

    def _start_one(self) -> None:
        name = f"jobq-{len(self._threads) + 1}"
        thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _serve(self) -> None:
        while (call := self._work.get()) is not None:
            call.run()
            if call.abandoned:
                break
            del call  # or the last job's arguments and traceback would live until the next
        connections.close_all()


@dataclasses.dataclass(slots=True, eq=False)
class _AsyncCall:
    func: Callable[[], Coroutine[Any, Any, Any]]
    future: asyncio.Future[Any]
    task: asyncio.Task[Any] | None = None


class AsyncLanes(Generic[R]):
    """Run coroutines on ``size`` tasks, each with a thread of its own for the async ORM.

    A lane whose call came back as ``is_stuck`` is given up with its thread, and another starts.
    """

    def __init__(self, size: int, is_stuck: Callable[[R], bool] = lambda _: False) -> None:
        self._size, self._is_stuck = size, is_stuck
        self._work: asyncio.Queue[_AsyncCall | None] = asyncio.Queue()
        self._lanes: set[asyncio.Task[None]] = set()

    async def run(self, func: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Run a coroutine function on the next free lane, in a task of its own."""
        while len(self._lanes) < self._size:
            self._start_one()
        call = _AsyncCall(func, asyncio.get_running_loop().create_future())
        self._work.put_nowait(call)
        try:
            return cast(R, await call.future)
        except asyncio.CancelledError:
            if call.task is not None:
                call.task.cancel()
            raise

    async def stop(self) -> None:
        """Let idle lanes close their connections and end."""
        for _ in self._lanes:
            self._work.put_nowait(None)
        if self._lanes:
            await asyncio.wait(self._lanes, timeout=1)

    def _start_one(self) -> None:
        # An empty context: the language of whoever started the worker is not the jobs'.
        lane = asyncio.create_task(self._serve(), context=contextvars.Context())
        self._lanes.add(lane)
        lane.add_done_callback(self._lanes.discard)

    async def _serve(self) -> None:
        threads = ThreadSensitiveContext()
        await threads.__aenter__()  # type: ignore[no-untyped-call]
        while (call := await self._work.get()) is not None:
            if not call.future.done() and await self._run_one(call):
                # Leaving the context would wait, and block the loop, for a thread that is stuck.
                return
            del call  # or the last job's arguments would live until the next
        await sync_to_async(connections.close_all)()
        await threads.__aexit__(None, None, None)  # type: ignore[no-untyped-call]

    async def _run_one(self, call: _AsyncCall) -> bool:
        """Run a call, settle its future, and return whether it is stuck."""
        call.task = asyncio.create_task(call.func())
        await asyncio.wait({call.task})
        if call.task.cancelled():
            call.future.cancel()
            return False
        error = call.task.exception()
        if call.future.done():
            return False
        if error is not None:
            call.future.set_exception(error)
            return False
        call.future.set_result(call.task.result())
        return self._is_stuck(call.task.result())
