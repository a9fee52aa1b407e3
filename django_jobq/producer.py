"""From an envelope to a backend: at once, or when the database transaction commits.

1. Every publication is checked (queue, priority, size, database) before anything is sent.
2. Outside a transaction, or with ``on_commit=False``, it is submitted and its confirm awaited, for
   as long as OPTIONS["publish_timeout"] says: once, however many jobs are enqueued together.
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
from collections.abc import Callable, Sequence
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

# A transport keeps to publish_timeout itself and knows better what happened: its error comes first.
_MARGIN = 0.5
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

    @property
    def is_late(self) -> bool:
        return self.future is not None and not self.future.done()

    def error(self) -> BaseException | None:
        """Return why a submitted job is not known to be accepted, or None if it is."""
        if self.future is None:
            return None
        try:
            return self.future.exception(0)
        except concurrent.futures.CancelledError as error:
            return error
        except TimeoutError:
            limit = self.backend.options.publish_timeout
            return BackendUnavailable(
                f"the transport did not confirm within {limit:g} s; whether it has the job is not"
                " known"
            )


@dataclasses.dataclass(slots=True)
class _Batch:
    """Hold what is waited for together, with the seconds that submitting it has taken so far."""

    items: list[_Checked] = dataclasses.field(default_factory=list)
    spent: float = 0.0
    unavailable: dict[str, BackendUnavailable] = dataclasses.field(default_factory=dict)

    def submit(self, item: _Checked) -> None:
        """Submit a job; what the backend raises becomes its answer, so that others go on.

        Once the time is up, a backend that was not available is not asked again.
        """
        began = time.monotonic()
        try:
            known = self.unavailable.get(item.backend.alias)
            if known is not None and self.spent >= item.backend.options.publish_timeout:
                raise known
            item.submit()
        except Exception as error:  # noqa: BLE001 - the caller asks for it when all are submitted
            if isinstance(error, BackendUnavailable):
                self.unavailable[item.backend.alias] = error
            item.future = Future()
            item.future.set_exception(error)
        self.spent += time.monotonic() - began

    def unanswered(self) -> list[Future[None]]:
        """Return the futures that are to resolve yet."""
        return [item.future for item in self.items if item.future and not item.future.done()]

    def left(self) -> float:
        """Return for how many seconds more the batch is waited for."""
        longest = max((item.backend.options.publish_timeout for item in self.items), default=0.0)
        return max(0.0, longest - self.spent) + _MARGIN

    def wait(self) -> None:
        """Wait until every future has resolved or the time is up."""
        unanswered = self.unanswered()
        if unanswered:
            concurrent.futures.wait(unanswered, self.left())


class _Ticket:
    """Live as long as the hook that holds it."""


@dataclasses.dataclass(slots=True)
class _Commits:
    """Follow the hooks of one connection: which are to come, and what is not confirmed yet.

    Django drops the hooks of a savepoint that is rolled back, and their tickets vanish with them.
    """

    tickets: WeakSet[_Ticket] = dataclasses.field(default_factory=WeakSet)
    batch: _Batch = dataclasses.field(default_factory=_Batch)


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
    batch = _begin(publications)
    batch.wait()
    return _finish(batch)


async def aenqueue(publications: Sequence[Publication]) -> list[EnqueuedJob]:
    """Publish jobs from an event loop. See enqueue().

    A cancelled caller does not cancel the publishing.
    """
    batch = await sync_to_async(_begin, thread_sensitive=True)(publications)
    confirms = [asyncio.wrap_future(future) for future in batch.unanswered()]
    if confirms:
        for confirm in confirms:
            # Looked at, or asyncio would complain of one that fails when nobody waits.
            confirm.add_done_callback(lambda done: done.cancelled() or done.exception())
        # Unlike wait_for() and gather(), it cancels nothing when the caller is cancelled.
        await asyncio.wait(confirms, timeout=batch.left())
    return await sync_to_async(_finish, thread_sensitive=True)(batch)


def _begin(publications: Sequence[Publication]) -> _Batch:
    """Check everything, then submit what waits for no commit and register hooks for the rest."""
    if not _observers:
        raise ImproperlyConfigured(
            "django_jobq is not in INSTALLED_APPS, so no worker would know this job: add"
            " 'django_jobq' to INSTALLED_APPS"
        )
    batch = _Batch([_check(publication) for publication in publications])
    for backend in {item.backend.alias: item.backend for item in batch.items}.values():
        for observer in _observers:
            observer(backend)
    for item in batch.items:
        if item.connection is None:
            batch.submit(item)
    for connection in {id(item.connection): item.connection for item in batch.items}.values():
        if connection is not None:
            _bind(connection, [item for item in batch.items if item.connection is connection])
    return batch


def _finish(batch: _Batch) -> list[EnqueuedJob]:
    """Raise what the transport said, or tell what was accepted."""
    handles = []
    errors = []
    for item in batch.items:
        if item.connection is None:
            error = item.error()
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
            _submit_committed(item, commits.batch)
        if not commits.tickets:
            batch, commits.batch = commits.batch, _Batch()
            _settle_committed(batch)

    connection.on_commit(publish_after_commit)


def _submit_committed(item: _Checked, batch: _Batch) -> None:
    batch.submit(item)
    error = None if item.is_late else item.error()
    if error is None:
        batch.items.append(item)
    else:
        _report(item, error)


def _settle_committed(batch: _Batch) -> None:
    batch.wait()
    for item in batch.items:
        what = "may not have been published" if item.is_late else "was NOT published"
        error = item.error()
        if error is None:
            _announce(item)
        else:
            _report(item, error, what)


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
