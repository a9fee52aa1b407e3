"""What the database knows of a job that is delivered again: what it came to, and its starts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

from django_jobq.backends.base import Backend, Delivery
from django_jobq.store import holds, starts
from django_jobq.worker.executor import Executor

R = TypeVar("R")


class Redeliveries:
    """Look up redelivered jobs of one backend; a first delivery asks the database nothing."""

    def __init__(self, backend: Backend, executor: Executor) -> None:
        self._backend, self._executor = backend, executor

    def concern(self, delivery: Delivery) -> bool:
        """Return whether a delivery may have been started before and the database would know."""
        return self._backend.stores_jobs and (delivery.deliveries > 1 or delivery.starts > 0)

    async def has_successor(self, delivery: Delivery) -> bool:
        """Return whether what the job came to is stored already, so that it is done."""
        return await self._call(
            partial(holds.has_successor, self._backend.alias, delivery.envelope)
        )

    async def starts(self, delivery: Delivery) -> int:
        """Return which start it would be, counting none that came to something."""
        job_id = delivery.envelope.job_id
        return 1 + await self._call(partial(starts.read, self._backend.alias, job_id))

    async def count_start(self, delivery: Delivery) -> int:
        """Count a start that is about to happen, and return which it is."""
        job_id = delivery.envelope.job_id
        return await self._call(partial(starts.count, self._backend.alias, job_id))

    async def forget(self, delivery: Delivery) -> None:
        """Forget the starts of a job that came to something."""
        job_id = delivery.envelope.job_id
        await self._call(partial(starts.forget, self._backend.alias, job_id))

    async def _call(self, func: Callable[..., R]) -> R:
        return await self._executor.call(partial(func, using=self._backend.settings.database))
