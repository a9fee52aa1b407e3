"""Settling: tell the backend what a delivery came to.

What comes back later waits in the database, or with the transport. In the database the row is
committed before the delivery is acknowledged: if the worker dies in between, the delivery comes
again, finds its successor stored, and is dropped.
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
from django_jobq.worker.events import Result
from django_jobq.worker.executor import Executor
from django_jobq.worker.outcomes import DeadLettered, Deferred, Held, Retried, Succeeded

logger = logging.getLogger("django_jobq.worker")

# Relays look this often; what is due sooner is worth a call.
_LOOK = 1.0


class Settling:
    """Settle the deliveries of one backend.

    ``on_stored`` is called when the database holds a job that is due in a moment.
    """

    def __init__(
        self, backend: Backend, executor: Executor, on_stored: Callable[[], None] = lambda: None
    ) -> None:
        self._backend, self._executor = backend, executor
        self._on_stored = on_stored

    async def settle(self, result: Result) -> None:
        """Store what follows, if anything does, then remove the delivery; raise if that fails."""
        delivery, envelope, outcome = result.delivery, result.envelope, result.outcome
        if isinstance(outcome, DeadLettered):
            final = envelope and _with_error(envelope, result, with_traceback=True)
            await delivery.dead_letter(outcome.cause, outcome.reason, final)
            return
        assert envelope is not None
        match outcome:
            case Succeeded():
                await delivery.ack()
            case Retried(delay):
                successor = _with_error(_clean(envelope), result, with_traceback=False)
                reason = _error_of(result)
                await self.put_back(delivery, successor.next_attempt(), delay, reason=reason)
            case Deferred(delay, reason):
                successor = _clean(envelope).deferred()
                await self.put_back(delivery, successor, delay, front=True, reason=reason)
            case Held(delay):
                await self.put_back(delivery, envelope, delay, reason="no such job in the worker")

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
        new = NewJob(envelope=delivery.at_home(successor), delay=delay, front=front)
        again = _number_of(successor) == _number_of(delivery.envelope)
        if self._backend.uses_holds and await self._store(new, reason, again=again):
            await delivery.ack()
            if delay < _LOOK:
                self._on_stored()
        elif front:
            await delivery.defer(successor, delay)
        else:
            await delivery.retry(successor, delay)

    async def _store(self, job: NewJob, reason: str, *, again: bool) -> bool:
        alias, database = self._backend.alias, self._backend.settings.database
        put = partial(holds.put, alias, job, reason=reason, again=again, using=database)
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


def _number_of(envelope: Envelope) -> tuple[int, int]:
    return envelope.attempt, envelope.deferrals


def _clean(envelope: Envelope) -> Envelope:
    """Return an envelope without what concerned its last run alone."""
    return envelope.with_headers(unknown_since=None, starts=None)


def _error_of(result: Result) -> str:
    failure = result.execution.failure if result.execution else None
    return failure.text if failure else ""


def _with_error(envelope: Envelope, result: Result, *, with_traceback: bool) -> Envelope:
    failure = result.execution.failure if result.execution else None
    if failure is None:
        return envelope
    return envelope.with_error(failure.to_json(envelope.attempt, with_traceback=with_traceback))
