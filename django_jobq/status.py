"""What waits on a backend, queue by queue: as its transport and its databases tell it.

What cannot be read is left out of the numbers and named in ``reason``. A transport that does not
answer is asked once, so that the time is bounded by its own limit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Iterator
from typing import TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.db import Error
from django.utils.connection import ConnectionDoesNotExist

from django_jobq.backends.base import Backend, Counts
from django_jobq.backends.handler import backends
from django_jobq.exceptions import BackendError, JobqError, PublishFailed
from django_jobq.store import census
from django_jobq.store.census import Stored
from django_jobq.store.tables import naming_missing_tables

OK, UNAVAILABLE = "ok", "unavailable"

_NOT_NAMED = "not named by JOBQ, so that no worker serves it"
_NOT_THERE = "not on the broker yet"
_PRIVATE = (
    "The {} backend keeps jobs inside the process that enqueues them; these are the jobs of the"
    " process that asks."
)

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class QueueStatus:
    """Count what a queue has; None is not known. ``oldest_undelivered`` is an age in seconds."""

    name: str
    ready: int | None = None
    held: int | None = None
    undelivered: int | None = None
    oldest_undelivered: float | None = None
    dead: int | None = None
    consumers: int | None = None
    note: str | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BackendStatus:
    """Hold the queues of a backend; ``reason`` says what of it could not be read.

    ``unfiled`` counts the dead letters beside all queues that wait to be filed.
    """

    alias: str
    driver: str | None = None
    reason: str | None = None
    note: str | None = None
    unfiled: int | None = None
    queues: tuple[QueueStatus, ...] = ()

    @property
    def status(self) -> str:
        """Return whether everything could be read, in one word."""
        return OK if self.reason is None else UNAVAILABLE


def read_status(alias: str, only: Collection[str] = ()) -> BackendStatus:
    """Return the status of a backend, or of some of its queues; what goes wrong is in there too."""
    try:
        backend = backends[alias]
    except (ImproperlyConfigured, JobqError) as error:
        return BackendStatus(alias=alias, reason=str(error))
    reader = _Reader(backend)
    queues = tuple(reader.queues(only))
    return BackendStatus(
        alias=alias,
        driver=backend.driver,
        unfiled=reader.unfiled(),
        reason="; ".join(reader.problems) or None,
        note=None if backend.shared else _PRIVATE.format(backend.driver),
        queues=queues,
    )


class _Reader:
    """Read one backend, and note what cannot be read."""

    def __init__(self, backend: Backend) -> None:
        self.problems: list[str] = []
        self._backend = backend
        self._answers = True

    def queues(self, only: Collection[str]) -> Iterator[QueueStatus]:
        """Yield the queues that JOBQ names, then others of which the database has something."""
        stored = self._stored()
        for name in dict.fromkeys([*self._backend.queues, *sorted(stored or ())]):
            if not only or name in only:
                yield self._queue(name, stored)

    def unfiled(self) -> int | None:
        """Return how many dead letters wait to be filed."""
        return self._ask(self._backend.unfiled, missing=0)

    def _queue(self, name: str, stored: dict[str, Stored] | None) -> QueueStatus:
        counts, note = self._counts(name)
        here = Stored() if stored is None else stored.get(name, Stored())
        in_outbox = self._backend.uses_outbox and stored is not None
        holds_here = self._backend.uses_holds and stored is not None
        return QueueStatus(
            name=name,
            ready=counts.ready,
            held=here.held if holds_here or here.held else counts.held,
            undelivered=here.undelivered if in_outbox or here.undelivered else None,
            oldest_undelivered=here.oldest,
            dead=counts.dead if stored is None else here.dead,
            consumers=counts.consumers,
            note=note,
        )

    def _counts(self, name: str) -> tuple[Counts, str | None]:
        """Return what the transport says of a queue, and what is to be said of that."""
        if name not in self._backend.queues:
            return Counts(), _NOT_NAMED
        missing = Counts(ready=0, consumers=0)
        counts = self._ask(lambda: self._backend.counts(name), missing=missing)
        return counts or Counts(), _NOT_THERE if counts is missing else None

    def _ask(self, question: Callable[[], T | None], missing: T) -> T | None:
        """Return what the transport says; None once it does not answer."""
        if not self._answers:
            return None
        try:
            return question()
        except PublishFailed:  # as a broker calls what does not exist
            return missing
        except BackendError as error:
            self._answers = False
            self.problems.append(str(error))
            return None

    def _stored(self) -> dict[str, Stored] | None:
        """Return what is stored by queue; None where nothing is stored or can be read."""
        if not self._backend.stores_jobs:
            return None
        found: dict[str, Stored] | None = None
        for using in self._backend.databases:
            rows = self._rows(using)
            if rows is not None:
                found = found or {}
                for name, stored in rows.items():
                    found[name] = found.get(name, Stored()) + stored
        return found

    def _rows(self, using: str) -> dict[str, Stored] | None:
        try:
            with naming_missing_tables(using):
                return census.by_queue(self._backend.alias, using=using)
        except ImproperlyConfigured as error:
            self.problems.append(str(error))
        except (Error, ConnectionDoesNotExist) as error:
            self.problems.append(f"database {using!r}: {' '.join(str(error).split())}")
        return None
