"""What comes before the first job: names without conflicts, queues that exist, and services."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from django_jobq.backends.base import Backend
from django_jobq.exceptions import BackendUnavailable, InvalidJob
from django_jobq.queues import QueueConfig
from django_jobq.registry import place_of, registry
from django_jobq.worker.ending import Ending
from django_jobq.worker.filing import Filing
from django_jobq.worker.relay import Relay
from django_jobq.worker.retention import Retention
from django_jobq.worker.services import Service

logger = logging.getLogger("django_jobq.worker")

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 15.0


def refuse_conflicts() -> None:
    """Raise InvalidJob if two functions are registered under one name."""
    for first, second in registry.conflicts:
        raise InvalidJob(
            f"two functions are registered as job {first.name!r}: {place_of(first.func)} and"
            f" {place_of(second.func)}"
        )


async def declare(backend: Backend, queues: Sequence[QueueConfig], ending: Ending) -> None:
    """Make sure of the queues; wait for a backend that is not there yet, until the end."""
    pause = _FIRST_PAUSE
    while not ending.requested:
        try:
            await asyncio.to_thread(backend.declare, queues)
        except BackendUnavailable as error:
            logger.warning("Cannot start yet, next try in %.0f s: %s", pause, error)
            await ending.wait(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
        else:
            return


def services_of(backend: Backend) -> list[Service]:
    """Return what a worker of this backend does beside running jobs."""
    if not backend.leaves_storing:
        return []
    services: list[Service] = [Relay(backend, database) for database in backend.databases]
    if backend.stores_jobs:
        services += [Filing(backend), Retention(backend)]
    return services
