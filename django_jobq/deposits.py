"""Jobs that are left with the database: stored at the call, removed once the transport has them.

What cannot be removed, or has not been published, stays: the relay of a worker looks after it.
"""

from __future__ import annotations

import dataclasses
import logging
import uuid
from collections import defaultdict
from collections.abc import Iterable, Sequence

from django.db import Error, InterfaceError, OperationalError

from django_jobq.envelope import log_fields
from django_jobq.exceptions import BackendUnavailable
from django_jobq.publication import Checked
from django_jobq.release import Row
from django_jobq.store import holds, outbox
from django_jobq.store.rows import NewJob
from django_jobq.store.tables import naming_missing_tables

logger = logging.getLogger("django_jobq.producer")

_PUT = {Row.OUTBOX: outbox.put, Row.HOLD: holds.new}


def store(items: Sequence[Checked]) -> None:
    """Store what is not published at the call: one statement for each backend and database."""
    for row in {item.release.row for item in items if item.release.row is not None}:
        chosen = [item for item in items if item.release.row is row]
        for (alias, using), group in _by_place(chosen).items():
            _store(row, alias, group, using)


def _store(row: Row, alias: str, items: list[Checked], using: str) -> None:
    """Store jobs; holds that a database refuses are left to the transport.

    Where a transaction is open it has failed with the statement, and nothing is left to do.
    """
    jobs = [_new(item, item.publication.delay) for item in items]
    try:
        with naming_missing_tables(using):
            token = _PUT[row](alias, jobs, using=using)
    except (OperationalError, InterfaceError) as error:
        if items[0].release.awaits_commit:
            raise
        _leave_to_the_transport(items, error)
    else:
        for item in items:
            item.token = token


def store_undelivered(items: Iterable[Checked]) -> None:
    """Store what the transport could not take, where that may be stored."""
    chosen = [item for item in items if item.release.stores_undelivered and _is_undelivered(item)]
    for (alias, using), group in _by_place(chosen).items():
        reason = str(group[0].error())
        try:
            with naming_missing_tables(using):
                outbox.put_undelivered(
                    alias, [_new(item, item.left) for item in group], reason, using=using
                )
        except Exception as failure:  # noqa: BLE001 - the caller hears what the transport said
            for item in group:
                _add_failure(item, using, failure)
        else:
            for item in group:
                tell_kept(item, reason)
                item.future = None


def present(items: Iterable[Checked], using: str) -> set[tuple[str, uuid.UUID]]:
    """Return alias and id of the stored jobs whose rows a commit has left; none if that fails."""
    found: set[tuple[str, uuid.UUID]] = set()
    for (alias, _), group in _by_place(_stored(items)).items():
        try:
            ids = outbox.present(alias, *_marks(group), using=using)
        except Exception as error:  # noqa: BLE001 - in a commit hook, which must not raise
            for item in group:
                tell_kept(item, error)
        else:
            found.update((alias, job_id) for job_id in ids)
    return found


def remove(items: Iterable[Checked], using: str) -> None:
    """Remove stored jobs that the transport has."""
    for (alias, _), group in _by_place(_stored(items)).items():
        try:
            outbox.remove(alias, *_marks(group), using=using)
        except Exception as error:  # noqa: BLE001 - in a commit hook, which must not raise
            logger.warning(
                "%d jobs were published and could not be removed from database %r; a worker"
                " publishes them again: %s",
                len(group),
                using,
                error,
            )


def tell_kept(item: Checked, error: object) -> None:
    """Log that a job is not known to be published, and not lost either."""
    _warn(item, "is not known to be published; it stays stored and a worker publishes it", error)


def _leave_to_the_transport(items: Iterable[Checked], error: Error) -> None:
    for item in items:
        item.release = dataclasses.replace(item.release, row=None)
        _warn(item, "cannot be held by the database, so the transport holds it", error)


def _warn(item: Checked, what: str, error: object) -> None:
    envelope = item.publication.envelope
    extra = log_fields(envelope, envelope.queue)
    logger.warning("Job %s (%s) %s: %s", envelope.job, envelope.job_id, what, error, extra=extra)


def _add_failure(item: Checked, using: str, failure: Exception) -> None:
    """Let the answer of the transport tell that the database had no place for the job either."""
    error = item.error()
    assert error is not None
    error.add_note(f"The job could not be stored in database {using!r} either: {failure}")
    error.__context__ = failure
    item.fail(error)


def _is_undelivered(item: Checked) -> bool:
    return isinstance(item.error(), BackendUnavailable)


def _new(item: Checked, delay: float) -> NewJob:
    publication = item.publication
    return NewJob(envelope=publication.envelope, delay=delay, front=publication.front)


def _stored(items: Iterable[Checked]) -> list[Checked]:
    return [item for item in items if item.token is not None]


def _marks(items: Iterable[Checked]) -> tuple[set[str], list[uuid.UUID]]:
    """Return tokens and job ids."""
    tokens = {item.token for item in items if item.token is not None}
    return tokens, [item.publication.envelope.job_id for item in items]


def _by_place(items: Iterable[Checked]) -> dict[tuple[str, str], list[Checked]]:
    """Return jobs by the alias of their backend and that of their database."""
    places: dict[tuple[str, str], list[Checked]] = defaultdict(list)
    for item in items:
        assert item.release.connection is not None
        places[item.backend.alias, item.release.connection.alias].append(item)
    return places
