"""One delivery, from its body to its settled outcome.

1. Decode the envelope and find its job; what cannot be decoded is a dead letter, what is not known
   waits, uncounted, until ``unknown_job_grace`` is over.
2. Choose the retry policy: of the call, of the job, of the queue, or none.
3. Run the attempt, decide its outcome, call the dead-letter hook if it is one.
4. Settle. The successor carries the last errors; what fails here is logged, counted and comes back.
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
from django_jobq.context import JobContext
from django_jobq.durations import format_seconds
from django_jobq.envelope import Envelope
from django_jobq.exceptions import BackendError, EnvelopeError, InvalidJob
from django_jobq.jobs import Job
from django_jobq.registry import registry
from django_jobq.retry import RetryPolicy
from django_jobq.serialization import load
from django_jobq.worker import events
from django_jobq.worker.attempt import Attempt
from django_jobq.worker.events import Result
from django_jobq.worker.executor import Executor
from django_jobq.worker.holding import Holding
from django_jobq.worker.outcomes import (
    DeadLettered,
    Deferred,
    HandedBack,
    Held,
    Outcome,
    Retried,
    Rules,
    Succeeded,
    decide,
)
from django_jobq.worker.stats import WorkerStats

logger = logging.getLogger("django_jobq.worker")

NO_RETRIES = RetryPolicy.none()
_UNKNOWN_STEP = 30.0
# A settle that fails at once would otherwise bring the job back in a tight loop.
_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 10.0


class JobRunner:
    """Process the deliveries of one backend with one executor."""

    def __init__(
        self, backend: Backend, executor: Executor, holding: Holding | None = None
    ) -> None:
        self.stats = WorkerStats()
        self._backend, self._executor = backend, executor
        self._holding = holding or Holding(backend, executor)
        self.stopping = False

    async def process(self, delivery: Delivery) -> Result | None:
        """Run and settle a delivery; return the result of a stuck job, which is not settled yet."""
        try:
            prepared = self._prepare(delivery)
            if await self._holding.has_successor(delivery):
                await self._drop(delivery)
                return None
            if not isinstance(prepared, Result) and not await delivery.begin():
                return None
        except EnvelopeError as error:
            outcome = DeadLettered("decode", str(error))
            prepared = Result(delivery=delivery, outcome=outcome, envelope=delivery.known_envelope)
        except DeliveryLimitReached as error:
            outcome = DeadLettered("delivery_limit", str(error))
            prepared = Result(delivery=delivery, outcome=outcome, envelope=delivery.envelope)
        result = prepared if isinstance(prepared, Result) else await self._run(delivery, *prepared)
        if result.execution is not None and result.execution.stuck:
            return result
        await self.settle(result)
        return None

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
        self.stats.count(result.outcome)
        events.log(result)
        await self._tell(result)

    async def _try_to_settle(self, result: Result) -> bool:
        try:
            await self._settle(result)
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

    async def hold(self, delivery: Delivery, delay: float) -> None:
        """Let a job that cannot start now come back later, uncounted."""
        try:
            await self._holding.put_back(delivery, delivery.envelope, delay)
        except Exception as error:  # noqa: BLE001 - it stays with the backend
            text = "A job of queue %s was not put aside: %s"
            logger.warning(text, delivery.queue, error, extra=delivery.log_fields)
            await self.hand_back(delivery, counted=False)

    async def _drop(self, delivery: Delivery) -> None:
        """Remove a job that came again though its next attempt or deferral waits already."""
        await delivery.ack()
        text = "A job of queue %s came again after its outcome had been stored; dropped"
        logger.info(text, delivery.queue, extra=delivery.log_fields)

    async def hand_back(self, delivery: Delivery, *, counted: bool = True) -> None:
        """Release a delivery; if that fails too, the backend takes it back with the worker."""
        try:
            await delivery.release()
        except Exception as error:  # noqa: BLE001 - the backend's own redelivery is left
            text = "A job of queue %s was not handed back: %s"
            logger.warning(text, delivery.queue, error, extra=delivery.log_fields)
        if counted:
            self.stats.count(HandedBack())

    def _prepare(self, delivery: Delivery) -> Result | tuple[Attempt, Envelope, Rules]:
        envelope = delivery.envelope
        job = registry.find(envelope.job)
        if job is None:
            return self._unknown(delivery, envelope)
        rules = Rules(
            policy=self._policy_of(job, envelope), retry_on=job.retry_on, fatal_on=job.fatal_on
        )
        context = JobContext(
            job=envelope.job,
            attempt=envelope.attempt,
            max_attempts=rules.policy.max_attempts,
            job_id=envelope.job_id,
            queue=envelope.queue,
            deferrals=envelope.deferrals,
            priority=envelope.priority,
            correlation_id=envelope.correlation_id,
            enqueued_at=envelope.enqueued_at,
        )
        attempt = Attempt(
            job=job,
            context=context,
            args=[load(value) for value in envelope.args],
            kwargs={key: load(value) for key, value in envelope.kwargs.items()},
            timeout=_timeout_of(job, envelope),
        )
        return attempt, envelope, rules

    async def _run(
        self, delivery: Delivery, attempt: Attempt, envelope: Envelope, rules: Rules
    ) -> Result:
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

    def _policy_of(self, job: Job[..., Any], envelope: Envelope) -> RetryPolicy:
        called_with = envelope.headers.get("retry")
        if called_with is not None:
            try:
                return RetryPolicy.from_json(called_with)
            except (InvalidJob, AttributeError, TypeError) as error:
                raise EnvelopeError(f"malformed envelope: header 'retry': {error}") from error
        if job.retry is not None:
            return job.retry
        configured = (self._backend.settings.queues or {}).get(envelope.queue)
        return (configured.retry if configured else None) or NO_RETRIES

    def _unknown(self, delivery: Delivery, envelope: Envelope) -> Result:
        grace = self._backend.options.unknown_job_grace
        now = time.time_ns() // 1_000_000
        since = envelope.headers.get("unknown_since")
        since = since if isinstance(since, int) else now
        left = grace - max(0, now - since) / 1000
        if left > 0:
            outcome: Outcome = Held(min(left, _UNKNOWN_STEP))
        else:
            reason = f"no job {envelope.job!r} was registered within {format_seconds(grace)}"
            outcome = DeadLettered("no_handler", reason)
        return Result(
            delivery=delivery,
            outcome=outcome,
            envelope=envelope.with_headers(unknown_since=since),
        )

    async def _settle(self, result: Result) -> None:
        delivery, envelope, outcome = result.delivery, result.envelope, result.outcome
        if isinstance(outcome, DeadLettered):
            final = envelope and _with_error(envelope, result, with_traceback=True)
            await delivery.dead_letter(outcome.cause, outcome.reason, final)
            return
        assert envelope is not None
        put_back = self._holding.put_back
        match outcome:
            case Succeeded():
                await delivery.ack()
            case Retried(delay):
                successor = _with_error(_known(envelope), result, with_traceback=False)
                successor, reason = successor.next_attempt(), _reason_of(result)
                await put_back(delivery, successor, delay, reason=reason)
            case Deferred(delay, reason):
                successor = _known(envelope).deferred()
                await put_back(delivery, successor, delay, front=True, reason=reason)
            case Held(delay):
                await put_back(delivery, envelope, delay, reason="no such job in the worker")

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


def _timeout_of(job: Job[..., Any], envelope: Envelope) -> float | None:
    called_with = envelope.headers.get("timeout")
    if called_with is None:
        return job.timeout
    if not isinstance(called_with, int | float) or called_with <= 0:
        raise EnvelopeError(f"malformed envelope: header 'timeout' is {called_with!r}")
    return float(called_with)


def _known(envelope: Envelope) -> Envelope:
    """Return an envelope that forgets for how long its job was unknown."""
    return envelope.with_headers(unknown_since=None)


def _reason_of(result: Result) -> str:
    failure = result.execution.failure if result.execution else None
    return failure.text if failure else ""


def _with_error(envelope: Envelope, result: Result, *, with_traceback: bool) -> Envelope:
    failure = result.execution.failure if result.execution else None
    if failure is None:
        return envelope
    return envelope.with_error(failure.to_json(envelope.attempt, with_traceback=with_traceback))
