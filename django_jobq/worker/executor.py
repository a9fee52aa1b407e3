"""Running attempts: on the worker's own lanes, or on the thread of the caller."""

from __future__ import annotations

import abc
import asyncio
import dataclasses
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from asgiref.sync import sync_to_async

from django_jobq.worker.attempt import (
    GRACE,
    Attempt,
    Execution,
    describe_end,
    run_async,
    run_sync,
)
from django_jobq.worker.databases import with_fresh_connections
from django_jobq.worker.lanes import AsyncLanes, ThreadLanes
from django_jobq.worker.time_limit import TimeLimit

R = TypeVar("R")


class Executor(abc.ABC):
    """Run attempts, and the receivers and hooks that concern them."""

    def start(self) -> None:  # noqa: B027 - not every executor has something to start
        """Prepare; called on the loop."""

    @abc.abstractmethod
    async def run(self, attempt: Attempt) -> Execution:
        """Run an attempt to its end; return before it, ``stuck``, if it outlives its timeout."""

    @abc.abstractmethod
    async def call(self, func: Callable[[], R]) -> R:
        """Call a function where sync jobs run, and return what it returns."""

    async def tell(self, func: Callable[[], None]) -> None:
        """Call receivers where sync jobs run; they may end later, but before `stop()` does."""
        await self.call(func)

    async def stop(self, timeout: float = 1.0) -> None:  # noqa: B027
        """Close what the lanes hold; wait at most ``timeout`` seconds."""


class LaneExecutor(Executor):
    """Run sync jobs on threads and async jobs on the loop, up to ``concurrency`` of each.

    A thread that does not return is given up and another takes its place, if only for the hooks
    and receivers of a worker that is about to end.
    """

    def __init__(self, concurrency: int) -> None:
        self._threads = ThreadLanes(concurrency)
        self._tasks: AsyncLanes[Execution] = AsyncLanes(concurrency, lambda run: run.stuck)

    def start(self) -> None:
        """Start the threads."""
        self._threads.start()

    async def run(self, attempt: Attempt) -> Execution:
        """Run an attempt on a lane."""
        if attempt.job.is_async:
            return await self._tasks.run(partial(run_async, attempt, owned=True))
        timer = _Timer(attempt.timeout)
        call = self._threads.submit(partial(run_sync, attempt, timer.limit, owned=True))
        if attempt.timeout is None:
            return await call.future
        wait = attempt.timeout + GRACE
        try:
            done, _ = await asyncio.wait({call.future}, timeout=wait)
        finally:
            timer.cancel()
        if done:
            return call.future.result()
        self._threads.replace(call)
        return dataclasses.replace(describe_end(attempt.timed_out(), wait), stuck=True)

    async def call(self, func: Callable[[], R]) -> R:
        """Call on a thread lane."""
        return await self._threads.submit(partial(with_fresh_connections, func)).future

    async def tell(self, func: Callable[[], None]) -> None:
        """Call on a thread lane; wait for it only while the lanes are behind."""
        call = self._threads.submit(func)
        if self._threads.is_behind:
            await call.future

    async def stop(self, timeout: float = 1.0) -> None:
        """End the lanes that are idle, and those that soon are."""
        await self._tasks.stop()
        await self._threads.stop(timeout)


class CallerExecutor(Executor):
    """Run every job on the thread that called ``async_to_sync``, with its connections."""

    async def run(self, attempt: Attempt) -> Execution:
        """Run an attempt on the calling thread, an async one on the loop."""
        if attempt.job.is_async:
            return await run_async(attempt, owned=False)
        timer = _Timer(attempt.timeout)
        try:
            return await sync_to_async(run_sync)(attempt, timer.limit, owned=False)
        finally:
            timer.cancel()

    async def call(self, func: Callable[[], R]) -> R:
        """Call on the calling thread."""
        return await sync_to_async(func)()


class _Timer:
    """Start a time limit's timer on this loop at the moment the job's thread asks for it."""

    def __init__(self, seconds: float | None) -> None:
        self.limit = None if seconds is None else TimeLimit(self._ask)
        self._seconds = seconds or 0.0
        self._loop = asyncio.get_running_loop()
        self._handle: asyncio.TimerHandle | None = None
        self._over = False

    def cancel(self) -> None:
        self._over = True
        if self._handle is not None:
            self._handle.cancel()

    def _ask(self, expire: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(self._start, expire)

    def _start(self, expire: Callable[[], None]) -> None:
        if not self._over:
            self._handle = self._loop.call_later(self._seconds, expire)
