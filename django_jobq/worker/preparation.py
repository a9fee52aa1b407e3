"""From a delivery to the attempt it asks for: its job, its arguments, its limits, its policy.

The retry policy is that of the call, of the job, of the queue, or none. A job that is not known
here comes to something without running: it waits, uncounted, until ``unknown_job_grace`` is over.
"""

from __future__ import annotations

import dataclasses
import time
from typing import Any

from django_jobq.backends.base import Backend, Delivery
from django_jobq.context import JobContext
from django_jobq.durations import format_seconds
from django_jobq.envelope import Envelope
from django_jobq.exceptions import EnvelopeError, InvalidJob
from django_jobq.jobs import Job
from django_jobq.registry import registry
from django_jobq.retry import RetryPolicy
from django_jobq.serialization import load
from django_jobq.worker.attempt import Attempt
from django_jobq.worker.outcomes import DeadLettered, Held, Rules

NO_RETRIES = RetryPolicy.none()
_UNKNOWN_STEP = 30.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Hold what an attempt needs, and the rules by which its end is judged."""

    attempt: Attempt
    envelope: Envelope
    rules: Rules


def prepare(delivery: Delivery, backend: Backend) -> Prepared | None:
    """Return what a delivery needs to run, or None if its job is not known here.

    Raise EnvelopeError for a body that cannot be read.
    """
    envelope = delivery.envelope
    job = registry.find(envelope.job)
    if job is None:
        return None
    rules = Rules(
        policy=_policy_of(job, envelope, backend), retry_on=job.retry_on, fatal_on=job.fatal_on
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
    return Prepared(attempt=attempt, envelope=envelope, rules=rules)


def outcome_of_unknown(envelope: Envelope, grace: float) -> tuple[Envelope, DeadLettered | Held]:
    """Return what becomes of a job that is not known here, with its envelope."""
    now = time.time_ns() // 1_000_000
    since = envelope.headers.get("unknown_since")
    since = since if isinstance(since, int) else now
    left = grace - max(0, now - since) / 1000
    marked = envelope.with_headers(unknown_since=since)
    if left > 0:
        return marked, Held(min(left, _UNKNOWN_STEP))
    reason = f"no job {envelope.job!r} was registered within {format_seconds(grace)}"
    return marked, DeadLettered("no_handler", reason)


def _policy_of(job: Job[..., Any], envelope: Envelope, backend: Backend) -> RetryPolicy:
    called_with = envelope.headers.get("retry")
    if called_with is not None:
        try:
            return RetryPolicy.from_json(called_with)
        except (InvalidJob, AttributeError, TypeError) as error:
            raise EnvelopeError(f"malformed envelope: header 'retry': {error}") from error
    if job.retry is not None:
        return job.retry
    configured = (backend.settings.queues or {}).get(envelope.queue)
    return (configured.retry if configured else None) or NO_RETRIES


def _timeout_of(job: Job[..., Any], envelope: Envelope) -> float | None:
    called_with = envelope.headers.get("timeout")
    if called_with is None:
        return job.timeout
    if not isinstance(called_with, int | float) or called_with <= 0:
        raise EnvelopeError(f"malformed envelope: header 'timeout' is {called_with!r}")
    return float(called_with)
