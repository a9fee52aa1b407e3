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
from django_jobq.envelope import Envelope, log_fields
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
        return log_fields(self.envelope, self.delivery.queue)


_LEVELS: dict[type[Outcome], int] = {
    Succeeded: logging.INFO,
    Deferred: logging.INFO,
    Retried: logging.WARNING,
    Held: logging.WARNING,
    DeadLettered: logging.ERROR,
}


def log(result: Result) -> None:
    """Write the line of an outcome: success and deferral INFO, retry WARNING, giving up ERROR."""
    level = _LEVELS.get(type(result.outcome))
    if level is not None and logger.isEnabledFor(level):
        text, *values = _line_of(result)
        logger.log(level, text, *values, extra=result.log_fields)


def _line_of(result: Result) -> tuple[Any, ...]:
    """Return a format and its values."""
    envelope, execution = result.envelope, result.execution
    name = envelope.job if envelope else "(no envelope)"
    match result.outcome:
        case Deferred(delay, reason):
            nth = _ordinal(envelope.deferrals + 1 if envelope else 1)
            wait = format_seconds(delay)
            return "Job %s deferred for %s, for the %s time: %s", name, wait, nth, reason
        case Retried(delay):
            return (
                "Job %s failed in attempt %s of %s, again in %s: %s",
                name,
                envelope.attempt if envelope else None,
                result.max_attempts,
                format_seconds(delay),
                execution.failure.text if execution and execution.failure else None,
            )
        case Held(delay):
            text = "No job %s is registered in this worker; looked up again in %s"
            return text, name, format_seconds(delay)
        case DeadLettered(cause, reason):
            text = "Job %s is now a dead letter (%s): %s%s"
            return text, name, cause, reason, _traceback_of(result)
    took = format_seconds(execution.duration if execution else 0)
    return "Job %s succeeded in %s", name, took


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
