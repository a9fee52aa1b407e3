"""What a running job may know of itself, and the log filter that tells it to every record."""

from __future__ import annotations

import dataclasses
import logging
import time
import uuid
from contextvars import ContextVar
from datetime import timedelta
from typing import Any


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobContext:
    """Describe one attempt of one enqueued job.

    In a test build it from ``job``, ``attempt`` and ``max_attempts`` alone. ``enqueued_at`` is the
    epoch in milliseconds of the first enqueue.
    """

    job: str
    attempt: int = 1
    max_attempts: int = 1
    job_id: uuid.UUID = dataclasses.field(default_factory=uuid.uuid4)
    queue: str = "default"
    deferrals: int = 0
    priority: int = 0
    correlation_id: str | None = None
    enqueued_at: int | None = None

    @property
    def age(self) -> timedelta:
        """Return the time since the first enqueue; never negative."""
        if self.enqueued_at is None:
            return timedelta(0)
        return max(timedelta(0), timedelta(seconds=time.time() - self.enqueued_at / 1000))

    @property
    def is_last_attempt(self) -> bool:
        """Return whether a failure of this attempt makes the job a dead letter."""
        return self.attempt >= self.max_attempts


_LOG_FIELDS = ("job_id", "job", "queue", "attempt")
_current: ContextVar[JobContext | None] = ContextVar("django_jobq_current_job", default=None)


def current_job() -> JobContext | None:
    """Return the context of the job that is running here, or None outside of jobs."""
    return _current.get()


def current_log_fields() -> dict[str, Any]:
    """Return the ``extra`` of a log record about the running job; nothing outside of jobs."""
    context = _current.get()
    return {} if context is None else {name: getattr(context, name) for name in _LOG_FIELDS}


def set_current_job(context: JobContext) -> None:
    """Make a job the current one of this context, which must be the job's own copy."""
    _current.set(context)


class JobLogFilter(logging.Filter):
    """Add job_id, job, queue and attempt of the running job to every log record it passes.

    Outside of jobs the fields are empty text, so that a format may always name them.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Complete the record; keep it in any case."""
        fields = current_log_fields()
        for name in _LOG_FIELDS:
            if not hasattr(record, name):
                setattr(record, name, fields.get(name, ""))
        return True
