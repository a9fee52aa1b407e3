"""Tell what the jobs do, one line for each event, while it happens."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.core.management.color import Style
from django.utils import timezone

from django_jobq import JobContext, signals
from django_jobq.envelope import Envelope
from shop.demo.ledger import connected, subject, title

WIDTH = 24


class Narrator:
    """Write a line for each event through ``write``."""

    def __init__(self, write: Callable[[str], object], style: Style) -> None:
        self._write = write
        self._style = style

    @contextmanager
    def talking(self) -> Iterator[None]:
        """Tell what happens for the length of a ``with`` block, instead of the log."""
        receivers = {
            signals.job_enqueued: self._on_enqueued,
            signals.job_succeeded: self._on_succeeded,
            signals.job_retried: self._on_retried,
            signals.job_deferred: self._on_deferred,
            signals.job_dead_lettered: self._on_dead_lettered,
        }
        with connected(receivers), _quiet_log():
            yield

    def say(self, about: JobContext | Envelope, what: str) -> None:
        """Write one line."""
        now = timezone.localtime().strftime("%H:%M:%S")
        self._write(f"{now}  {f'{title(about)} for {subject(about)}':<{WIDTH}}  {what}")

    def _on_enqueued(self, envelope: Envelope, **kwargs: Any) -> None:
        self.say(envelope, "enqueued")

    def _on_succeeded(self, context: JobContext, duration: float, **kwargs: Any) -> None:
        self.say(context, self._style.SUCCESS(f"done in {duration:.2f} s"))

    def _on_retried(
        self, context: JobContext, error: BaseException, delay: float, **kwargs: Any
    ) -> None:
        attempt = f"attempt {context.attempt} of {context.max_attempts}"
        what = f"failed, again in {delay:.2f} s ({attempt}): {error}"
        self.say(context, self._style.WARNING(what))

    def _on_deferred(self, context: JobContext, delay: float, reason: str, **kwargs: Any) -> None:
        self.say(context, self._style.HTTP_NOT_MODIFIED(f"put off for {delay:.2f} s: {reason}"))

    def _on_dead_lettered(self, envelope: Envelope | None, reason: str, **kwargs: Any) -> None:
        if envelope is not None:
            self.say(envelope, self._style.ERROR(f"given up: {reason}"))


@contextmanager
def _quiet_log() -> Iterator[None]:
    """Keep from the console what the narrator tells: the log lines of outcomes."""
    handlers = logging.getLogger("django_jobq").handlers
    for handler in handlers:
        handler.addFilter(_is_no_outcome)
    try:
        yield
    finally:
        for handler in handlers:
            handler.removeFilter(_is_no_outcome)


def _is_no_outcome(record: logging.LogRecord) -> bool:
    return record.name != "django_jobq.jobs"
