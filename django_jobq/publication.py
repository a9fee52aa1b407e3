"""One publication, from its checks to its answer, and the batch that is waited for together."""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import datetime as dt
import logging
import time
import uuid
from concurrent.futures import Future

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import TransactionManagementError

from django_jobq import signals
from django_jobq.backends.base import Backend
from django_jobq.backends.handler import backends
from django_jobq.envelope import Envelope, log_fields
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
class Checked:
    """Hold a publication that passed every check, with what its checks looked up."""

    publication: Publication
    backend: Backend
    connection: BaseDatabaseWrapper | None
    due: float
    future: Future[None] | None = None

    def submit(self) -> None:
        """Hand the job to its backend, with what is left of its delay."""
        envelope, left = self.publication.envelope, self.publication.delay
        if self.connection is not None and left:
            left = max(0.0, self.due - time.monotonic())
        store = self.backend.defer if self.publication.front else self.backend.publish
        self.future = store(envelope, left)

    @property
    def is_late(self) -> bool:
        """Return whether a submitted job has no answer yet."""
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
class Batch:
    """Hold what is waited for together, with the seconds that submitting it has taken so far."""

    items: list[Checked] = dataclasses.field(default_factory=list)
    spent: float = 0.0
    unavailable: dict[str, BackendUnavailable] = dataclasses.field(default_factory=dict)

    def submit(self, item: Checked) -> None:
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
        """Wait until every future has resolved or the time is up.

        The last mostly resolves last: who waits for it first wakes up once for all of them.
        """
        give_up = time.monotonic() + self.left()
        for future in reversed(self.unanswered()):
            with contextlib.suppress(TimeoutError, concurrent.futures.CancelledError):
                future.exception(max(0.0, give_up - time.monotonic()))


def check(publication: Publication) -> Checked:
    """Return a publication that nothing but its transport can refuse any more, or raise why not."""
    envelope = publication.envelope
    backend = backends[publication.backend]
    backend.queue(envelope.queue).check_priority(envelope.priority)
    size, limit = len(envelope.encode()), backend.options.max_payload
    if size > limit:
        raise PayloadTooLarge(envelope.job, size, limit)
    if not 0 <= time.time() + publication.delay < _LAST_MOMENT:
        raise InvalidDuration(f"a delay of {publication.delay:g} s ends beyond the calendar")
    return Checked(
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


def report(item: Checked, error: BaseException, what: str = "was NOT published") -> None:
    """Log a job that was lost after its commit, and tell the receivers of job_enqueue_failed."""
    envelope = item.publication.envelope
    logger.error(
        "Job %s (%s) %s after its transaction committed: %s",
        envelope.job,
        envelope.job_id,
        what,
        error,
        exc_info=error,
        extra=log_fields(envelope, envelope.queue),
    )
    signals.send(
        signals.job_enqueue_failed,
        registry.find(envelope.job),
        envelope=envelope,
        error=error,
        backend=item.backend.alias,
    )


def announce(item: Checked) -> None:
    """Tell the receivers of job_enqueued."""
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
