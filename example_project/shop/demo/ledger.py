"""The account of every job of this process, kept from the signals of django_jobq."""

from __future__ import annotations

import dataclasses
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.dispatch import Signal

from django_jobq import JobContext, signals
from django_jobq.envelope import Envelope

DONE = "done"
DEAD = "given up"
_TITLES = {
    "send_receipt": "receipt",
    "sync_stock": "stock",
    "pack_order": "packing",
    "import_catalogue": "catalogue",
}


@dataclasses.dataclass(slots=True, kw_only=True)
class Entry:
    """What became of one job so far; times are in seconds."""

    title: str
    about: str
    outcome: str = ""
    cause: str = ""
    reason: str = ""
    attempts: int = 0
    deferrals: int = 0
    waited: float | None = None
    took: float = 0.0

    def __str__(self) -> str:
        return f"{self.title} for {self.about}"


class Ledger:
    """Collect what the signals say; safe to read while jobs run in other threads."""

    def __init__(self) -> None:
        self._entries: dict[uuid.UUID, Entry] = {}
        self._changed = threading.Condition()

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listen for the length of a ``with`` block."""
        receivers = {
            signals.job_enqueued: self._on_enqueued,
            signals.job_started: self._on_started,
            signals.job_succeeded: self._on_succeeded,
            signals.job_retried: self._on_failed_or_deferred,
            signals.job_deferred: self._on_failed_or_deferred,
            signals.job_dead_lettered: self._on_dead_lettered,
        }
        with connected(receivers):
            yield

    def entries(self) -> list[Entry]:
        """Return copies of the entries, in the order in which the jobs came."""
        with self._changed:
            return [dataclasses.replace(entry) for entry in self._entries.values()]

    def wait_until_ended(self, jobs: int, timeout: float) -> bool:
        """Wait until so many jobs have ended, and tell whether they did in time."""
        with self._changed:
            return self._changed.wait_for(lambda: self._ended() >= jobs, timeout)

    def _ended(self) -> int:
        return sum(1 for entry in self._entries.values() if entry.outcome)

    @contextmanager
    def _entry(self, about: JobContext | Envelope) -> Iterator[Entry]:
        with self._changed:
            # A fast job can start before its job_enqueued is sent, so any signal may be the first.
            if about.job_id not in self._entries:
                self._entries[about.job_id] = Entry(title=title(about), about=subject(about))
            entry = self._entries[about.job_id]
            entry.deferrals = about.deferrals
            yield entry
            self._changed.notify_all()

    def _on_enqueued(self, envelope: Envelope, **kwargs: Any) -> None:
        with self._entry(envelope):
            pass

    def _on_started(self, context: JobContext, **kwargs: Any) -> None:
        with self._entry(context) as entry:
            entry.attempts = context.attempt
            if entry.waited is None:
                entry.waited = context.age.total_seconds()

    def _on_succeeded(self, context: JobContext, duration: float, **kwargs: Any) -> None:
        with self._entry(context) as entry:
            entry.took += duration
            entry.outcome = DONE

    def _on_failed_or_deferred(self, context: JobContext, duration: float, **kwargs: Any) -> None:
        with self._entry(context) as entry:
            entry.took += duration
            if "deferrals" in kwargs:
                entry.deferrals = kwargs["deferrals"]

    def _on_dead_lettered(
        self,
        envelope: Envelope | None,
        cause: str,
        reason: str,
        duration: float | None = None,
        **kwargs: Any,
    ) -> None:
        if envelope is None:
            return
        with self._entry(envelope) as entry:
            entry.took += duration or 0.0
            entry.cause = str(cause)
            entry.reason = reason
            entry.outcome = DEAD


def title(about: JobContext | Envelope) -> str:
    """Return the everyday name of a job."""
    name = about.job.rpartition(".")[2]
    return _TITLES.get(name, name)


def subject(about: JobContext | Envelope) -> str:
    """Return what a job is for; the shop puts it into the correlation id."""
    return about.correlation_id or "nothing in particular"


@contextmanager
def connected(receivers: dict[Signal, Any]) -> Iterator[None]:
    """Connect each receiver to its signal for the length of a ``with`` block."""
    for signal, receiver in receivers.items():
        signal.connect(receiver)
    try:
        yield
    finally:
        for signal, receiver in receivers.items():
            signal.disconnect(receiver)
