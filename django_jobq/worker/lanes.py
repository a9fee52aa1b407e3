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
from collections import deque
from collections.abc import Callable, Coroutine
from queue import SimpleQueue
from typing import Any, Generic, TypeVar, cast

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import connections

R = TypeVar("R")


class ThreadCall(Generic[R]):
    """Hold one call for a thread and the future, on the event loop, that gets its result."""

    def __init__(self, func: Callable[[], R], future: asyncio.Future[R]) -> None:
        self.abandoned = False
        self.thread: threading.Thread | None = None
        self.future = future
        self._func = func
        self._result: R | None = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Call the function, on a thread, in a fresh copy of the context."""
        self.thread = threading.current_thread()
        try:
            self._result = contextvars.copy_context().run(self._func)
        except StopIteration as error:  # the one exception that no future takes
            self._error = RuntimeError(f"a call raised {error!r}")
        except BaseException as error:  # noqa: BLE001 - whatever it is belongs to who waits
            self._error = error

    def settle(self) -> None:
        """Resolve the future, on its loop."""
        if self.future.done():
            return
        if self._error is None:
            self.future.set_result(cast(R, self._result))
        else:
            self.future.set_exception(self._error)


class ThreadLanes:
    """Run calls on ``size`` threads, with as few wake-ups as possible.

    A wake-up costs more than a small job, on either side. So at most one lane is being woken at a
    time: it wakes the next one if there is more to do, and whoever is done looks for more before it
    sleeps. Calls that end while the loop is busy are settled together, in one turn of it.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._work: deque[ThreadCall[Any] | None] = deque()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._is_ringing = False
        self._ended: deque[ThreadCall[Any]] = deque()
        self._is_loop_woken = False
        self._threads: list[threading.Thread] = []
        self._started = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        """Start all threads at once: when the interpreter exits, none may start any more."""
        self._loop = asyncio.get_running_loop()
        for _ in range(self._size):
            self._start_one()

    def submit(self, func: Callable[[], R]) -> ThreadCall[R]:
        """Hand a call to the next free thread."""
        assert self._loop is not None
        call = ThreadCall(func, self._loop.create_future())
        self._put(call)
        return call

    @property
    def is_behind(self) -> bool:
        """Return whether every thread is busy and as many calls wait."""
        return len(self._work) >= self._size

    def replace(self, call: ThreadCall[Any]) -> None:
        """Give up the thread of a call that does not return and start another."""
        call.abandoned = True
        if call.thread in self._threads:
            self._threads.remove(call.thread)
        self._start_one()

    async def stop(self, timeout: float) -> None:
        """Let idle threads close their connections and end; wait at most ``timeout`` seconds."""
        for _ in self._threads:
            self._put(None)
        give_up = time.monotonic() + timeout
        while any(thread.is_alive() for thread in self._threads) and time.monotonic() < give_up:  # noqa: ASYNC110 - threads end without an event
            await asyncio.sleep(0.005)

    def _start_one(self) -> None:
        self._started += 1
        name = f"jobq-{self._started}"
        thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _put(self, call: ThreadCall[Any] | None) -> None:
        self._work.append(call)
        self._ring()

    def _ring(self) -> None:
        if not self._is_ringing:
            self._is_ringing = True
            self._bell.put(None)

    def _serve(self) -> None:
        while True:
            try:
                call = self._work.popleft()
            except IndexError:
                self._bell.get()
                # Before the next look: what is put in after that look rings again.
                self._is_ringing = False
                continue
            if self._work:
                self._ring()
            if call is None:
                break
            call.run()
            self._tell(call)
            if call.abandoned:
                break
            del call  # or the last job's arguments and traceback would live until the next
        connections.close_all()

    def _tell(self, call: ThreadCall[Any]) -> None:
        self._ended.append(call)
        if not self._is_loop_woken:
            self._is_loop_woken = True
            assert self._loop is not None
            with contextlib.suppress(RuntimeError):  # the loop is closed: the worker has given up
                self._loop.call_soon_threadsafe(self._settle_ended)

    def _settle_ended(self) -> None:
        # Before the look: a call that ends after it wakes the loop again.
        self._is_loop_woken = False
        while self._ended:
            self._ended.popleft().settle()


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
