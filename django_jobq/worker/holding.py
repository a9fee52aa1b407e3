"""Where what a delivery came to waits: in the database, or with the transport.

In the database the row is committed before the delivery is acknowledged. If the worker dies in
between, the delivery comes again, finds its successor stored, and is dropped.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from django.db import Error as DatabaseProblem

from django_jobq.backends.base import Backend, Delivery
from django_jobq.envelope import Envelope, log_fields
from django_jobq.store import holds
from django_jobq.store.rows import NewJob
from django_jobq.worker.executor import Executor

logger = logging.getLogger("django_jobq.worker")

# Relays look this often; what is due sooner is worth a call.
_LOOK = 1.0


class Holding:
    """Hold the jobs of one backend; ``on_stored`` is called when one is due within a moment."""

    def __init__(
        self, backend: Backend, executor: Executor, on_stored: Callable[[], None] = lambda: None
    ) -> None:
        self._backend, self._executor = backend, executor
        self._on_stored = on_stored

    async def put_back(
        self,
        delivery: Delivery,
        successor: Envelope,
        delay: float,
        *,
        front: bool = False,
        reason: str = "",
    ) -> None:
        """Hold what a delivery came to for ``delay`` seconds, then remove the delivery.

        If the database refuses the row, the job waits with the transport.
        """
        if self._backend.uses_holds and await self._store(
            NewJob(envelope=delivery.at_home(successor), delay=delay, front=front), reason
        ):
            await delivery.ack()
            if delay < _LOOK:
                self._on_stored()
        elif front:
            await delivery.defer(successor, delay)
        else:
            await delivery.retry(successor, delay)

    async def has_successor(self, delivery: Delivery) -> bool:
        """Return whether what a redelivered job came to is stored already, so that it is done."""
        if not self._backend.uses_holds or delivery.deliveries < 2:
            return False
        look = partial(
            holds.has_successor,
            self._backend.alias,
            delivery.envelope,
            using=self._backend.settings.database,
        )
        return await self._executor.call(look)

    async def _store(self, job: NewJob, reason: str) -> bool:
        put = partial(
            holds.put,
            self._backend.alias,
            job,
            reason=reason,
            using=self._backend.settings.database,
        )
        try:
            await self._executor.call(put)
        except DatabaseProblem as error:
            logger.warning(
                "Job %s waits with the transport, since the database did not store it: %s",
                job.envelope.job,
                error,
                extra=log_fields(job.envelope, job.envelope.queue),
            )
            return False
        return True
