"""The options of one call, as `Job.using()` takes them."""

from __future__ import annotations

import dataclasses
import datetime as dt
import time
from collections.abc import Callable, Mapping
from typing import Any

from django_jobq import durations
from django_jobq.exceptions import InvalidArguments, InvalidDuration, InvalidJob
from django_jobq.retry import RetryPolicy


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """Hold what `Job.using()` set; None is the job's own value. Durations are seconds."""

    queue: str | None = None
    priority: int | None = None
    retry: RetryPolicy | None = None
    timeout: float | None = None
    delay: float | None = None
    run_after: dt.datetime | None = None
    front: bool | None = None
    correlation_id: str | None = None
    database: str | None = None
    on_commit: bool | None = None

    def seconds_to_wait(self) -> float:
        """Return the delay from now on; a moment that has passed is 0."""
        if self.run_after is None:
            return self.delay or 0.0
        return max(0.0, self.run_after.timestamp() - time.time())

    def changed(self, **given: Any) -> CallOptions:
        """Return a copy with what is given, checked; None keeps what is set."""
        values = {
            key: _READERS[key](value) if key in _READERS else value
            for key, value in given.items()
            if value is not None
        }
        return dataclasses.replace(self, **values)


def check_priority(priority: object) -> int:
    """Return the priority of a job; that of its queue's top level is nobody's own."""
    if not isinstance(priority, int) or isinstance(priority, bool) or not 0 <= priority < 255:
        raise InvalidJob(f"priority {priority!r} is no whole number from 0 to 254")
    return priority


def parse_named(
    name: str, value: object, parse: Callable[[object], float] = durations.parse
) -> float:
    """Return a duration in seconds; the error names the parameter."""
    try:
        return parse(value)
    except InvalidDuration as error:
        raise InvalidDuration(f"{name}: {error}") from error


def _check_moment(moment: dt.datetime) -> dt.datetime:
    if not isinstance(moment, dt.datetime) or moment.utcoffset() is None:
        raise InvalidDuration(
            f"run_after is an aware datetime, such as timezone.now() + timedelta(hours=1), not"
            f" {moment!r}"
        )
    return moment


def _check_correlation_id(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidArguments(f"correlation_id is text, not {type(value).__name__}")
    return value


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "priority": check_priority,
    "retry": RetryPolicy.parse,
    "timeout": lambda value: parse_named("timeout", value, durations.parse_positive),
    "delay": lambda value: parse_named("delay", value),
    "run_after": _check_moment,
    "correlation_id": _check_correlation_id,
}
