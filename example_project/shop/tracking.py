"""Note on an order what its jobs do, from the signals of django_jobq.

A receiver that raises does not change what becomes of a job, and a job that is no order's job
matches no row: each receiver is one UPDATE.
"""

from __future__ import annotations

from typing import Any

from django.utils import timezone

from django_jobq import JobContext, signals
from django_jobq.envelope import Envelope
from shop.models import JobState, OrderJob

NOTE_LENGTH = 300


def connect() -> None:
    """Listen to what happens to every job."""
    signals.job_started.connect(_started)
    signals.job_succeeded.connect(_succeeded)
    signals.job_retried.connect(_retried)
    signals.job_deferred.connect(_deferred)
    signals.job_dead_lettered.connect(_dead_lettered)


def _started(context: JobContext, **kwargs: Any) -> None:
    _note(context, JobState.RUNNING)


def _succeeded(context: JobContext, **kwargs: Any) -> None:
    _note(context, JobState.DONE)


def _retried(context: JobContext, error: BaseException, delay: float, **kwargs: Any) -> None:
    note = f"attempt {context.attempt} of {context.max_attempts}: {error}"
    _note(context, JobState.RETRYING, f"{note} (again in {delay:.2f} s)")


def _deferred(context: JobContext, delay: float, reason: str, **kwargs: Any) -> None:
    _note(context, JobState.DEFERRED, f"{reason} (again in {delay:.2f} s)")


def _dead_lettered(envelope: Envelope, reason: str, **kwargs: Any) -> None:
    _note(envelope, JobState.DEAD, reason)


def _note(about: JobContext | Envelope, state: JobState, note: str = "") -> None:
    OrderJob.objects.filter(job_id=about.job_id).update(
        state=state,
        attempt=about.attempt,
        deferrals=about.deferrals,
        note=note[:NOTE_LENGTH],
        changed_at=timezone.now(),
    )
