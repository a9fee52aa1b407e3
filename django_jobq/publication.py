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

from django_jobq import release, signals
from django_jobq.backends.base import Backend
from django_jobq.backends.handler import backends
from django_jobq.envelope import Envelope, log_fields
from django_jobq.exceptions import (
    BackendUnavailable,
    InvalidDuration,
    PayloadTooLarge,
)
from django_jobq.registry import registry
from django_jobq.release import Release

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
    """Hold a publication that passed every check, with what its checks looked up.

    ``token`` marks its row, if it is stored.
    """

    publication: Publication
    backend: Backend
    release: Release
    due: float
    token: str | None = None
    future: Future[None] | None = None

    @property
    def key(self) -> tuple[str, uuid.UUID]:
        """Return what tells its row from others."""
        return self.backend.alias, self.publication.envelope.job_id

    @property
    def left(self) -> float:
        """Return what is left of the delay."""
        delay = self.publication.delay
        return max(0.0, self.due - time.monotonic()) if delay else delay

    def submit(self) -> None:
        """Hand the job to its backend, with what is left of its delay."""
        store = self.backend.defer if self.publication.front else self.backend.publish
        delay = self.left if self.release.awaits_commit else self.publication.delay
        self.future = store(self.publication.envelope, delay)

    def fail(self, error: BaseException) -> None:
        """Let the job have an answer that is none of its backend's."""
        self.future = Future()
        self.future.set_exception(error)

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

    def accepted(self) -> EnqueuedJob:
        """Return what the caller gets of an accepted job."""
        envelope = self.publication.envelope
        return EnqueuedJob(
            id=envelope.job_id,
            job=envelope.job,
            queue=envelope.queue,
            enqueued_at=None if self.release.awaits_commit else dt.datetime.now(dt.UTC),
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
            item.fail(error)
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
        release=release.decide(
            backend,
            database=publication.database,
            on_commit=publication.on_commit,
            delayed=publication.delay > 0,
        ),
        due=time.monotonic() + publication.delay,
    )


def report(item: Checked, error: BaseException) -> None:
    """Log a job that was lost after its commit, and tell the receivers of job_enqueue_failed."""
    envelope = item.publication.envelope
    logger.error(
        "Job %s (%s) %s after its transaction committed: %s",
        envelope.job,
        envelope.job_id,
        "may not have been published" if item.is_late else "was NOT published",
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


def is_listened_to(item: Checked) -> bool:
    """Return whether anybody wants to be told that a job is accepted."""
    return signals.job_enqueued.has_listeners(registry.find(item.publication.envelope.job))


def announce(item: Checked) -> None:
    """Tell the receivers of job_enqueued."""
    if is_listened_to(item):
        signals.send(
            signals.job_enqueued,
            registry.find(item.publication.envelope.job),
            envelope=item.publication.envelope,
            delay=item.publication.delay,
            backend=item.backend.alias,
            driver=item.backend.driver,
        )
