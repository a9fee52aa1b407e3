"""From an envelope to a backend: at once, or when the database transaction commits.

1. Every publication is checked (queue, priority, size, database) before anything is sent.
2. Outside a transaction, or with ``on_commit=False``, it is submitted and its confirm awaited.
3. Inside one, a plain hook is registered on the connection whose commit counts. After the commit
   each hook submits its jobs; the hook registered last waits for all of them, so a transaction
   costs one wait. A hook never raises: Django would drop the hooks behind it.

What fails after the commit is logged at ERROR and told by the signal job_enqueue_failed.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import dataclasses
import datetime as dt
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from weakref import WeakKeyDictionary, WeakSet

from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import TransactionManagementError
from django.utils.asyncio import async_unsafe

from django_jobq import signals
from django_jobq.backends.base import Backend
from django_jobq.backends.handler import backends
from django_jobq.envelope import Envelope
from django_jobq.exceptions import (
    BackendUnavailable,
    InvalidDuration,
    PayloadTooLarge,
    UnknownDatabase,
)
from django_jobq.registry import registry

logger = logging.getLogger("django_jobq.producer")

PUBLISH_TIMEOUT = 5.0
_LAST_MOMENT = dt.datetime.max.replace(tzinfo=dt.UTC).timestamp()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EnqueuedJob:
    """Tell what `enqueue()` accepted; ``enqueued_at`` is None while it waits for a commit."""

    id: uuid.UUID
    job: str
    queue: str
    enqueued_at: dt.datetime | None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """Ask for one envelope to be published; ``delay`` is seconds from the enqueue call."""

    envelope: Envelope
    backend: str
    database: str | None = None
    on_commit: bool = True
    delay: float = 0.0
    front: bool = False


@dataclasses.dataclass(slots=True, kw_only=True)
class _Checked:
    """Hold a publication that passed every check, with what its checks looked up."""

    publication: Publication
    backend: Backend
    connection: BaseDatabaseWrapper | None
    due: float
    future: Future[None] | None = None

    def submit(self) -> None:
        envelope, left = self.publication.envelope, self.publication.delay
        if self.connection is not None and left:
            left = max(0.0, self.due - time.monotonic())
        store = self.backend.defer if self.publication.front else self.backend.publish
        self.future = store(envelope, left)


class _Ticket:
    """Live as long as the hook that holds it."""


@dataclasses.dataclass(slots=True)
class _Commits:
    """Follow the hooks of one connection: which are to come, and what is not confirmed yet.

    Django drops the hooks of a savepoint that is rolled back, and their tickets vanish with them.
    """

    tickets: WeakSet[_Ticket] = dataclasses.field(default_factory=WeakSet)
    unconfirmed: list[_Checked] = dataclasses.field(default_factory=list)


_commits: WeakKeyDictionary[BaseDatabaseWrapper, _Commits] = WeakKeyDictionary()
_observers: list[Callable[[Backend], None]] = []


def before_publish(observer: Callable[[Backend], None]) -> None:
    """Call ``observer`` with the backend before each enqueue; it may raise to refuse it."""
    if observer not in _observers:
        _observers.append(observer)


@async_unsafe("You cannot enqueue from an event loop this way: use await job.aenqueue().")
def enqueue(publications: Sequence[Publication]) -> list[EnqueuedJob]:
    """Publish jobs now or at the commit; the whole list costs one wait.

    Every publication is checked first, and what a check refuses publishes none of them. What the
    transport refuses is raised once the others are accepted.
    """
    sent = _begin(publications)
    _await_confirms([item for item in sent if item.connection is None])
    return _finish(sent)


async def aenqueue(publications: Sequence[Publication]) -> list[EnqueuedJob]:
    """Publish jobs from an event loop. See enqueue().

    A cancelled caller does not cancel the publishing.
    """
    sent = await sync_to_async(_begin, thread_sensitive=True)(publications)
    waiting = [item.future for item in sent if item.future is not None]
    if not all(future.done() for future in waiting):
        confirms = [asyncio.wrap_future(future) for future in waiting]
        for confirm in confirms:
            # Looked at, or asyncio would complain of one that fails when nobody waits.
            confirm.add_done_callback(lambda done: done.cancelled() or done.exception())
        # Unlike wait_for() and gather(), it cancels nothing when the caller is cancelled.
        _, late = await asyncio.wait(confirms, timeout=PUBLISH_TIMEOUT)
        if late:
            raise _out_of_time()
    return await sync_to_async(_finish, thread_sensitive=True)(sent)


def _begin(publications: Sequence[Publication]) -> list[_Checked]:
    """Check everything, then submit what waits for no commit and register hooks for the rest."""
    if not _observers:
        raise ImproperlyConfigured(
            "django_jobq is not in INSTALLED_APPS, so no worker would know this job: add"
            " 'django_jobq' to INSTALLED_APPS"
        )
    checked = [_check(publication) for publication in publications]
    for backend in {item.backend.alias: item.backend for item in checked}.values():
        for observer in _observers:
            observer(backend)
    for item in checked:
        if item.connection is None:
            _submit_now(item)
    for connection in {id(item.connection): item.connection for item in checked}.values():
        if connection is not None:
            _bind(connection, [item for item in checked if item.connection is connection])
    return checked


def _submit_now(item: _Checked) -> None:
    """Submit a job; what the backend raises becomes its answer, so that others go on."""
    try:
        item.submit()
    except Exception as error:  # noqa: BLE001 - raised by _finish()
        item.future = Future()
        item.future.set_exception(error)


def _finish(sent: Iterable[_Checked]) -> list[EnqueuedJob]:
    """Raise what the transport said, or tell what was accepted."""
    handles = []
    errors = []
    for item in sent:
        if item.connection is None and item.future is not None:
            error = _error_of(item.future)
            if error is not None:
                errors.append(error)
                continue
            _announce(item)
        envelope = item.publication.envelope
        handles.append(
            EnqueuedJob(
                id=envelope.job_id,
                job=envelope.job,
                queue=envelope.queue,
                enqueued_at=dt.datetime.now(dt.UTC) if item.connection is None else None,
            )
        )
    if errors:
        raise errors[0]
    return handles


def _check(publication: Publication) -> _Checked:
    envelope = publication.envelope
    backend = backends[publication.backend]
    backend.queue(envelope.queue).check_priority(envelope.priority)
    size, limit = len(envelope.encode()), backend.options.max_payload
    if size > limit:
        raise PayloadTooLarge(envelope.job, size, limit)
    if not 0 <= time.time() + publication.delay < _LAST_MOMENT:
        raise InvalidDuration(f"a delay of {publication.delay:g} s ends beyond the calendar")
    return _Checked(
        publication=publication,
        backend=backend,
        connection=_connection_of(publication, backend) if publication.on_commit else None,
        due=time.monotonic() + publication.delay,
    )


def _connection_of(publication: Publication, backend: Backend) -> BaseDatabaseWrapper | None:
    """Return the connection whose commit releases the job, or None to publish at once.

    Nothing connects here: a connection that is not open has no transaction.
    """
    alias = backend.settings.database if publication.database is None else publication.database
    if alias not in connections.settings:
        raise UnknownDatabase(alias, connections.settings)
    connection = connections[alias]
    # Inside atomic() with autocommit off, Django runs no hooks at the commit.
    if connection.in_atomic_block and connection.commit_on_exit:
        return connection
    is_open = connection.connection is not None
    if connection.autocommit if is_open else connection.settings_dict.get("AUTOCOMMIT", True):
        return None
    raise TransactionManagementError(
        f"Autocommit is off on database {alias!r}, so there is no commit that would release the"
        " job. Turn it on and use transaction.atomic(), or enqueue after your own commit with"
        " .using(on_commit=False)."
    )


def _bind(connection: BaseDatabaseWrapper, items: list[_Checked]) -> None:
    commits = _commits.setdefault(connection, _Commits())
    ticket = _Ticket()
    commits.tickets.add(ticket)

    # A plain function: Django's own error handling reads the attributes of one.
    def publish_after_commit() -> None:
        commits.tickets.discard(ticket)
        for item in items:
            _submit_committed(item, commits)
        if not commits.tickets:
            unconfirmed, commits.unconfirmed = commits.unconfirmed, []
            _settle_committed(unconfirmed)

    connection.on_commit(publish_after_commit)


def _submit_committed(item: _Checked, commits: _Commits) -> None:
    try:
        item.submit()
    except Exception as error:  # noqa: BLE001 - a hook that raises would drop those behind it
        _report(item, error)
        return
    commits.unconfirmed.append(item)


def _settle_committed(items: list[_Checked]) -> None:
    late = _wait_for([item.future for item in items if item.future is not None])
    for item in items:
        if item.future is None:
            continue
        if item.future in late:
            _report(item, _out_of_time(), "may not have been published")
            continue
        error = _error_of(item.future)
        if error is None:
            _announce(item)
        else:
            _report(item, error)


def _wait_for(futures: list[Future[None]]) -> set[Future[None]]:
    """Return the futures that did not resolve in time."""
    if all(future.done() for future in futures):
        return set()
    return concurrent.futures.wait(futures, PUBLISH_TIMEOUT).not_done


def _error_of(future: Future[None]) -> BaseException | None:
    try:
        return future.exception(0)
    except concurrent.futures.CancelledError as error:
        return error


def _await_confirms(items: Iterable[_Checked]) -> None:
    if _wait_for([item.future for item in items if item.future is not None]):
        raise _out_of_time()


def _out_of_time() -> BackendUnavailable:
    return BackendUnavailable(
        f"the transport did not confirm within {PUBLISH_TIMEOUT:g} s; whether it has the job is"
        " not known"
    )


def _report(item: _Checked, error: BaseException, what: str = "was NOT published") -> None:
    envelope = item.publication.envelope
    logger.error(
        "Job %s (%s) %s after its transaction committed: %s",
        envelope.job,
        envelope.job_id,
        what,
        error,
        exc_info=error,
        extra={"job_id": envelope.job_id, "job": envelope.job, "queue": envelope.queue},
    )
    signals.send(
        signals.job_enqueue_failed,
        registry.find(envelope.job),
        envelope=envelope,
        error=error,
        backend=item.backend.alias,
    )


def _announce(item: _Checked) -> None:
    sender = registry.find(item.publication.envelope.job)
    if signals.job_enqueued.has_listeners(sender):
        signals.send(
            signals.job_enqueued,
            sender,
            envelope=item.publication.envelope,
            delay=item.publication.delay,
            backend=item.backend.alias,
            driver=item.backend.driver,
        )
