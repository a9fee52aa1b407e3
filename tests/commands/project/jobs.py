import asyncio
import contextlib
import logging
import os
import threading
import time
from pathlib import Path

from asgiref.sync import sync_to_async
from project.trace import note

from django_jobq import Defer, RetryPolicy, job
from django_jobq.worker import attempt, executor

if "PROJECT_GRACE" in os.environ:
    # Seconds that a test need not wait for a job that never ends.
    attempt.GRACE = executor.GRACE = float(os.environ["PROJECT_GRACE"])


def is_open(gate: str) -> bool:
    """Return whether the test lets the job end."""
    return Path(gate).exists()


@job
def quick(number: int) -> None:
    note("ran", number=number)
    logging.getLogger("project").debug("debug of the project")
    logging.getLogger("project").info("info of the project")


@job
async def quick_async(number: int) -> None:
    await asyncio.sleep(0)
    note("ran", number=number)


@job(retry=RetryPolicy.none(2))
def fails() -> None:
    raise ValueError("out of stock")


@job
def defers() -> None:
    raise Defer("1h")


@job
def waits(gate: str) -> None:
    note("started", job="waits")
    while not is_open(gate):
        time.sleep(0.005)
    note("finished", job="waits")


@job
async def waits_async(gate: str) -> None:
    note("started", job="waits_async")
    while not is_open(gate):  # noqa: ASYNC110 - a file tells nobody
        await asyncio.sleep(0.005)
    note("finished", job="waits_async")


@job(timeout="200ms", retry=RetryPolicy.fixed(3, delay="1h"))
def stuck() -> None:
    """Block in C, where no exception arrives."""
    note("started", job="stuck")
    threading.Event().wait(600)


@job(timeout="200ms", retry=RetryPolicy.fixed(3, delay="1h"))
async def stuck_async() -> None:
    note("started", job="stuck_async")
    end = time.monotonic() + 600
    while time.monotonic() < end:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.05)


@job(timeout="200ms", retry=RetryPolicy.fixed(3, delay="1h"))
async def stuck_thread() -> None:
    note("started", job="stuck_thread")
    await sync_to_async(threading.Event().wait)(600)


@job
async def endless_async() -> None:
    note("started", job="endless_async")
    end = time.monotonic() + 600
    while time.monotonic() < end:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.05)


@job
async def endless_thread() -> None:
    note("started", job="endless_thread")
    await sync_to_async(threading.Event().wait)(600)


@job
async def endless_to_thread() -> None:
    note("started", job="endless_to_thread")
    await asyncio.to_thread(threading.Event().wait, 600)
