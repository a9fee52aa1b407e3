"""A look at the event loop: async jobs share it with the connection to the broker.

A job that blocks it starves heartbeats, and the broker then takes all jobs of the worker back.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

logger = logging.getLogger("django_jobq.worker")

INTERVAL = 1.0
LONGEST_BLOCK = 1.0


async def watch_loop(running: Callable[[], Iterable[str]]) -> None:
    """Warn whenever the loop stood still, with the names of the async jobs that were running."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + INTERVAL
        await asyncio.sleep(INTERVAL)
        blocked = loop.time() - due
        names = sorted(set(running())) if blocked > LONGEST_BLOCK else []
        if names:
            logger.warning(
                "The event loop stood still for %.1f s: an async job blocks it (running: %s). Await"
                " what it waits for, or make it a sync job",
                blocked,
                ", ".join(names),
            )
