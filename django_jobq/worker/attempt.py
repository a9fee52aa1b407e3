"""One attempt of a job, from clean connections to a described ending.

The same steps surround sync and async code: close stale database connections, make the job the
current one, tell that it starts, call it, describe what it raised, clean up. The worker's own
threads are cleaned; the thread of a caller (tests, ``--burst`` through call_command) keeps its
connections, transactions and query log.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from asgiref.sync import sync_to_async
from django.conf import settings
from django.db import close_old_connections, connections, reset_queries

from django_jobq import signals
from django_jobq.context import JobContext, current_log_fields, set_current_job
from django_jobq.control import JobTimeout
from django_jobq.durations import format_seconds
from django_jobq.jobs import Job
from django_jobq.worker.failures import Failure, describe
from django_jobq.worker.time_limit import TimeLimit

logger = logging.getLogger("django_jobq.worker")

# How long a job may take to end after its timeout, before it counts as one that never will.
GRACE = 5.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Hold what one run of a job needs; ``timeout`` is seconds."""

    job: Job[..., Any]
    context: JobContext
    args: list[Any]
    kwargs: dict[str, Any]
    timeout: float | None

    def bind(self) -> Callable[[], Any]:
        """Return the call of the job's function."""
        leading = (self.context,) if self.job.takes_context else ()
        return partial(self.job.func, *leading, *self.args, **self.kwargs)

    def timed_out(self) -> JobTimeout:
        """Return the error of a run that took too long."""
        return JobTimeout(f"timed out after {format_seconds(self.timeout or 0)}")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """Tell how an attempt ended; ``duration`` is seconds, ``stuck`` means it has not returned."""

    duration: float
    error: BaseException | None = None
    failure: Failure | None = None
    stuck: bool = False


def run_sync(attempt: Attempt, limit: TimeLimit | None, *, owned: bool) -> Execution:
    """Run a sync job in this thread, which is the worker's own if ``owned``."""
    _enter(attempt, owned=owned)
    started = time.perf_counter()
    error: BaseException | None = None
    try:
        call = attempt.bind()
        _refuse_awaitable(call() if limit is None else limit.call(call))
    except KeyboardInterrupt as interrupt:
        if not owned:
            raise
        error = interrupt
    except JobTimeout as timeout:
        error = (
            timeout if timeout.args else attempt.timed_out().with_traceback(timeout.__traceback__)
        )
    except BaseException as raised:  # noqa: BLE001 - sys.exit() in a job is a failure of the job
        error = raised
    duration = time.perf_counter() - started
    _leave(owned=owned)
    return describe_end(error, duration)


async def run_async(attempt: Attempt, *, owned: bool) -> Execution:
    """Run an async job on this loop."""
    await sync_to_async(_enter)(attempt, owned=owned)
    set_current_job(attempt.context)
    started = time.perf_counter()
    task = asyncio.create_task(_catch(attempt.bind()))
    try:
        done, _ = await asyncio.wait({task}, timeout=attempt.timeout)
        if done:
            error = asyncio.CancelledError() if task.cancelled() else task.result()
        else:
            error = attempt.timed_out()
            task.cancel()
            done, _ = await asyncio.wait({task}, timeout=GRACE)
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.wait({task}, timeout=GRACE)
        raise
    duration = time.perf_counter() - started
    if done:
        leaving = asyncio.ensure_future(sync_to_async(_leave)(owned=owned))
        # A job that timed out may have left its thread blocked for good.
        patience = GRACE if isinstance(error, JobTimeout) else None
        done, _ = await asyncio.wait({leaving}, timeout=patience)
    return dataclasses.replace(describe_end(error, duration), stuck=not done)


async def _catch(call: Callable[[], Any]) -> BaseException | None:
    """Return what the job raised: SystemExit, raised in a task, would end the loop."""
    try:
        await call()
    except BaseException as raised:  # noqa: BLE001 - as in run_sync()
        return raised
    return None


def describe_end(error: BaseException | None, duration: float) -> Execution:
    """Return how an attempt ended, with its exception as text."""
    if error is None:
        return Execution(duration=duration)
    failure = describe(error)
    # The traceback keeps every frame of the job alive, and this one in a cycle.
    return Execution(duration=duration, error=error.with_traceback(None), failure=failure)


def _refuse_awaitable(result: object) -> None:
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError("the job returned a coroutine that nobody awaits; define it as async def")


def _enter(attempt: Attempt, *, owned: bool) -> None:
    set_current_job(attempt.context)
    if owned:
        _guarded(close_old_connections)
    if signals.job_started.has_listeners(attempt.job):
        signals.send(signals.job_started, attempt.job, context=attempt.context)


def _leave(*, owned: bool) -> None:
    if owned:
        _guarded(_end_transactions)
        _guarded(close_old_connections)
        if settings.DEBUG:
            reset_queries()


def _end_transactions() -> None:
    """Roll back what a job left open; the next job here would silently join it."""
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block:
            logger.error(
                "A job left a transaction open on %r; rolled back",
                connection.alias,
                extra=current_log_fields(),
            )
            connection.connection.rollback()
            connection.close()
            if connection.vendor == "sqlite":  # where Django keeps an in-memory database open
                connection.connection.close()
            del connections[connection.alias]


def _guarded(clean: Callable[[], None]) -> None:
    try:
        clean()
    except Exception:
        logger.exception(
            "Cleaning up database connections around a job failed", extra=current_log_fields()
        )
