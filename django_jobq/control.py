"""What a job raises to steer its own outcome, and what is raised inside it when its time is up.

JobControl (Exception)       Retry, Defer, Fatal
JobTimeout (BaseException)   the job's timeout has passed

JobControl is no JobqError, so ``except JobqError`` in a job cannot swallow it; a bare
``except Exception`` can.
"""

from __future__ import annotations

from django_jobq import durations
from django_jobq.durations import Duration


class JobControl(Exception):
    """Be the base of what a job raises to steer its own outcome."""


class Retry(JobControl):
    """Fail this attempt and ask for the next one ``after`` a wait of the job's choosing.

    The attempt counts: on the last one the job becomes a dead letter.
    """

    def __init__(self, after: Duration | None = None, reason: str = "retry requested") -> None:
        self.after = None if after is None else durations.parse(after)
        self.reason = reason
        super().__init__(reason)


class Defer(JobControl):
    """Run again after ``delay``: uncounted, and ahead of the backlog.

    ``delay`` is duration text, a timedelta, or the value of a Retry-After header.
    """

    def __init__(self, delay: Duration, reason: str = "deferred") -> None:
        self.delay = durations.parse_retry_after(delay)
        self.reason = reason
        super().__init__(reason)


class Fatal(JobControl):
    """Give up at once: the job becomes a dead letter whatever its retry policy says."""

    def __init__(self, reason: str = "fatal error") -> None:
        self.reason = reason
        super().__init__(reason)


class JobTimeout(BaseException):
    """Interrupt a sync job whose timeout has passed.

    It is no Exception, so that a broad ``except Exception`` in the job does not swallow it.
    """
