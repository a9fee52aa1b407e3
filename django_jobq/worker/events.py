"""What is told of a settled delivery: a log line with fixed fields, and a signal."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

from django.dispatch import Signal

from django_jobq import signals
from django_jobq.backends.base import Delivery
from django_jobq.control import JobControl
from django_jobq.durations import format_seconds
from django_jobq.envelope import Envelope
from django_jobq.worker.attempt import Attempt, Execution
from django_jobq.worker.outcomes import DeadLettered, Deferred, Held, Outcome, Retried, Succeeded

# A logger of its own, so that one line of LOGGING switches the line per job off.
logger = logging.getLogger("django_jobq.jobs")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Hold the outcome of a delivery with all that is known of it.

    A body that is no envelope has neither ``envelope`` nor ``attempt``; a job that did not run has
    no ``execution``.
    """

    delivery: Delivery
    outcome: Outcome
    envelope: Envelope | None = None
    attempt: Attempt | None = None
    execution: Execution | None = None
    max_attempts: int | None = None

    @property
    def log_fields(self) -> dict[str, Any]:
        """Return the ``extra`` of every log record about this delivery."""
        envelope = self.envelope
        return {
            "job_id": envelope.job_id if envelope else None,
            "job": envelope.job if envelope else None,
            "queue": self.delivery.queue,
            "attempt": envelope.attempt if envelope else None,
        }


def log(result: Result) -> None:
    """Write the line of an outcome: success and deferral INFO, retry WARNING, giving up ERROR."""
    name = result.envelope.job if result.envelope else "(no envelope)"
    error = result.execution.failure if result.execution else None
    match result.outcome:
        case Succeeded() if logger.isEnabledFor(logging.INFO):
            took = format_seconds(result.execution.duration if result.execution else 0)
            logger.info("Job %s succeeded in %s", name, took, extra=result.log_fields)
        case Deferred(delay, reason):
            logger.info(
                "Job %s deferred for %s, for the %s time: %s",
                name,
                format_seconds(delay),
                _ordinal(result.envelope.deferrals + 1 if result.envelope else 1),
                reason,
                extra=result.log_fields,
            )
        case Retried(delay):
            logger.warning(
                "Job %s failed in attempt %s of %s, again in %s: %s",
                name,
                result.envelope.attempt if result.envelope else None,
                result.max_attempts,
                format_seconds(delay),
                error.text if error else None,
                extra=result.log_fields,
            )
        case Held(delay):
            logger.warning(
                "No job %s is registered in this worker; looked up again in %s",
                name,
                format_seconds(delay),
                extra=result.log_fields,
            )
        case DeadLettered(cause, reason):
            logger.error(
                "Job %s is now a dead letter (%s): %s%s",
                name,
                cause,
                reason,
                _traceback_of(result),
                extra=result.log_fields,
            )


def signal_of(result: Result) -> tuple[Signal, dict[str, Any]] | None:
    """Return the signal that tells an outcome, with its keyword arguments."""
    context = result.attempt.context if result.attempt else None
    execution = result.execution
    common = {"context": context, "duration": execution.duration if execution else None}
    match result.outcome:
        case Retried(delay):
            return signals.job_retried, {
                **common,
                "error": execution.error if execution else None,
                "delay": delay,
                "next_attempt": context.attempt + 1 if context else None,
            }
        case Deferred(delay, reason):
            return signals.job_deferred, {
                **common,
                "delay": delay,
                "reason": reason,
                "deferrals": context.deferrals + 1 if context else None,
            }
        case DeadLettered(cause, reason):
            return signals.job_dead_lettered, {
                **common,
                "envelope": result.envelope,
                "error": execution.error if execution else None,
                "cause": cause,
                "reason": reason,
                "max_attempts": result.max_attempts,
            }
        case Succeeded():
            return signals.job_succeeded, common
    return None


def _traceback_of(result: Result) -> str:
    """Return the traceback, unless the job gave up on purpose and it would tell nothing."""
    execution = result.execution
    if execution is None or execution.failure is None or isinstance(execution.error, JobControl):
        return ""
    return f"\n{execution.failure.traceback.rstrip()}"


def _ordinal(number: int) -> str:
    suffix = (
        "th" if 10 <= number % 100 <= 20 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    )
    return f"{number}{suffix}"
