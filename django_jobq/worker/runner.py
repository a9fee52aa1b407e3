"""One delivery, from its body to its settled outcome.

1. Decode the envelope and find its job; what cannot be decoded is a dead letter.
2. A job that was delivered before may be done already; otherwise its start is counted.
3. Run the attempt, decide its outcome, call the dead-letter hook if it is one.
4. Settle. What fails here is logged, counted and comes back.
5. Log the outcome and tell the receivers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import Any

from asgiref.sync import async_to_sync, iscoroutinefunction
from django.utils.module_loading import import_string

from django_jobq import conf, signals
from django_jobq.backends.base import Backend, Delivery, DeliveryLimitReached
from django_jobq.exceptions import BackendError, EnvelopeError
from django_jobq.worker import events
from django_jobq.worker.databases import OUTAGES
from django_jobq.worker.events import Result
from django_jobq.worker.executor import Executor
from django_jobq.worker.outcomes import DeadLettered, HandedBack, decide
from django_jobq.worker.preparation import Prepared, outcome_of_unknown, prepare
from django_jobq.worker.redelivery import Redeliveries
from django_jobq.worker.settling import Settling
from django_jobq.worker.stats import WorkerStats

logger = logging.getLogger("django_jobq.worker")

# A settle that fails at once would otherwise bring the job back in a tight loop.
_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 10.0


class JobRunner:
    """Process the deliveries of one backend with one executor."""

    def __init__(
        self, backend: Backend, executor: Executor, settling: Settling | None = None
    ) -> None:
        self.stats = WorkerStats()
        self.stopping = False
        self._backend, self._executor = backend, executor
        self._settling = settling or Settling(backend, executor)
        self._redeliveries = Redeliveries(backend, executor)

    async def process(self, delivery: Delivery) -> Result | None:
        """Run and settle a delivery; return the result of a stuck job, which is not settled yet."""
        try:
            prepared = prepare(delivery, self._backend)
            if prepared is None:
                result = self._unknown(delivery)
            elif await self._may_begin(delivery):
                result = await self._run(delivery, prepared)
            else:
                return None
        except EnvelopeError as error:
            outcome = DeadLettered("decode", str(error))
            result = Result(delivery=delivery, outcome=outcome, envelope=delivery.known_envelope)
        except DeliveryLimitReached as error:
            outcome = DeadLettered("delivery_limit", str(error))
            result = Result(delivery=delivery, outcome=outcome, envelope=delivery.envelope)
        if result.execution is not None and result.execution.stuck:
            return result
        await self.settle(result)
        return None

    async def starts_of(self, delivery: Delivery) -> int:
        """Return which start of a job it would be that came to nothing so far; 0 for the first."""
        if not self._redeliveries.concern(delivery):
            return delivery.starts
        try:
            return await self._redeliveries.starts(delivery)
        except (EnvelopeError, *OUTAGES):  # either shows again when it is to begin
            return delivery.starts

    async def settle(self, result: Result) -> None:
        """Settle a delivery and tell what became of it; failing is logged, never raised.

        While the backend may recover, settling is repeated, and the job does not run again.
        """
        if isinstance(result.outcome, DeadLettered):
            await self._call_hook(result, result.outcome)
        give_up = time.monotonic() + self._backend.settle_patience
        pause = _FIRST_PAUSE
        while not await self._try_to_settle(result):
            if result.delivery.is_lost:
                return
            await asyncio.sleep(pause)
            if self.stopping or time.monotonic() >= give_up:
                await self.hand_back(result.delivery, counted=False)
                return
            pause = min(2 * pause, _LONGEST_PAUSE)
        await self._forget_starts(result.delivery)
        self.stats.count(result.outcome)
        events.log(result)
        await self._tell(result)

    async def hold(self, delivery: Delivery, delay: float) -> None:
        """Let a job that cannot start now come back later, uncounted."""
        try:
            # A copy is not redelivered, so it says itself that it may kill its worker.
            marked = delivery.envelope.with_headers(starts=delivery.starts or 1)
            await self._settling.put_back(delivery, marked, delay)
        except Exception as error:  # noqa: BLE001 - it stays with the backend
            text = "A job of queue %s was not put aside: %s"
            logger.warning(text, delivery.queue, error, extra=delivery.log_fields)
            await self.hand_back(delivery, counted=False)

    async def hand_back(self, delivery: Delivery, *, counted: bool = True) -> None:
        """Release a delivery; if that fails too, the backend takes it back with the worker."""
        try:
            await delivery.release()
        except Exception as error:  # noqa: BLE001 - the backend's own redelivery is left
            text = "A job of queue %s was not handed back: %s"
            logger.warning(text, delivery.queue, error, extra=delivery.log_fields)
        await self._forget_starts(delivery)
        if counted:
            self.stats.count(HandedBack())

    async def _may_begin(self, delivery: Delivery) -> bool:
        """Return whether a delivery is to run here and now, or see to it otherwise."""
        if not self._redeliveries.concern(delivery):
            return await delivery.begin()
        try:
            if await self._redeliveries.has_successor(delivery):
                await self._drop(delivery)
                return False
            start = await self._redeliveries.count_start(delivery)
        except OUTAGES as error:
            text = "A job of queue %s came again and cannot be looked up, so it is handed back: %s"
            logger.warning(text, delivery.queue, error, extra=delivery.log_fields)
            await asyncio.sleep(_FIRST_PAUSE)
            await self.hand_back(delivery, counted=False)
            return False
        delivery.is_counted = True
        return await delivery.begin(start)

    async def _drop(self, delivery: Delivery) -> None:
        """Remove a job that came again though its next attempt or deferral waits already."""
        await delivery.ack()
        text = "A job of queue %s came again after its outcome had been stored; dropped"
        logger.info(text, delivery.queue, extra=delivery.log_fields)

    async def _forget_starts(self, delivery: Delivery) -> None:
        if not delivery.is_counted:
            return
        try:
            await self._redeliveries.forget(delivery)
        except OUTAGES as error:
            text = "The starts of a job of queue %s stay counted for a while: %s"
            logger.warning(text, delivery.queue, error, extra=delivery.log_fields)

    async def _run(self, delivery: Delivery, prepared: Prepared) -> Result:
        attempt, envelope, rules = prepared.attempt, prepared.envelope, prepared.rules
        execution = await self._executor.run(attempt)
        text = execution.failure.text if execution.failure else str(execution.error)
        try:
            outcome = decide(execution.error, envelope.attempt, rules, text)
        except Exception as broken:  # noqa: BLE001 - a subclass of Defer without its fields, say
            outcome = decide(broken, envelope.attempt, rules, f"{text} ({broken})")
        return Result(
            delivery=delivery,
            outcome=outcome,
            envelope=envelope,
            attempt=attempt,
            execution=execution,
            max_attempts=rules.policy.max_attempts,
        )

    def _unknown(self, delivery: Delivery) -> Result:
        grace = self._backend.options.unknown_job_grace
        envelope, outcome = outcome_of_unknown(delivery.envelope, grace)
        return Result(delivery=delivery, outcome=outcome, envelope=envelope)

    async def _try_to_settle(self, result: Result) -> bool:
        try:
            await self._settling.settle(result)
        except Exception as error:
            self.stats.settle_failures += 1
            logger.error(  # noqa: TRY400 - the traceback of an outage tells nothing
                "Settling a job of queue %s as %s failed: %s",
                result.delivery.queue,
                type(result.outcome).__name__,
                error,
                exc_info=None if isinstance(error, BackendError) else error,
                extra=result.log_fields,
            )
            return False
        return True

    async def _call_hook(self, result: Result, outcome: DeadLettered) -> None:
        """Call JOBQ_ON_DEAD_LETTER before the job is filed; what it raises changes nothing."""
        hook = conf.setting("JOBQ_ON_DEAD_LETTER")
        if hook is None:
            return
        told = {
            "envelope": result.envelope,
            "cause": outcome.cause,
            "reason": outcome.reason,
            "max_attempts": result.max_attempts,
        }
        await self._executor.call(partial(_call_hook, hook, told))

    async def _tell(self, result: Result) -> None:
        sender = result.attempt.job if result.attempt else None
        event = events.signal_of(result)
        if event is None:
            return
        signal, kwargs = event
        if signal.has_listeners(sender):
            await self._executor.tell(partial(signals.send, signal, sender, **kwargs))


def _call_hook(hook: Any, told: dict[str, Any]) -> None:
    try:
        function = import_string(hook) if isinstance(hook, str) else hook
        if iscoroutinefunction(function):
            async_to_sync(function)(**told)
        else:
            function(**told)
    except (Exception, SystemExit, asyncio.CancelledError):
        logger.exception("JOBQ_ON_DEAD_LETTER failed; the job is filed all the same")
