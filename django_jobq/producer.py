"""From an envelope to a backend: at once, or when the database transaction commits.

1. Every publication is checked (queue, priority, size, database) before anything is sent.
2. What the database keeps is stored: jobs of a transaction, and delayed ones; see release.py.
3. Outside a transaction, or with ``on_commit=False``, it is submitted and its confirm awaited, for
   as long as OPTIONS["publish_timeout"] says: once, however many jobs are enqueued together. What a
   transport that is not available could not take is stored.
4. Inside one, it waits for the commit of the connection whose commit counts; see commits.py.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence

from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils.asyncio import async_unsafe

from django_jobq import deposits
from django_jobq.backends.base import Backend
from django_jobq.commits import publish_at_commit
from django_jobq.publication import (
    Batch,
    Checked,
    EnqueuedJob,
    Publication,
    announce,
    check,
    is_listened_to,
)
from django_jobq.release import Commit, Row

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


def _begin(publications: Sequence[Publication]) -> Batch:
    """Check everything, then submit what waits for no commit and register hooks for the rest."""
    if not _observers:
        raise ImproperlyConfigured(
            "django_jobq is not in INSTALLED_APPS or not ready yet, so no worker would know this"
            " job: add 'django_jobq' to INSTALLED_APPS, in front of an app that enqueues in its"
            " ready()"
        )
    batch = Batch([check(publication) for publication in publications])
    for backend in {item.backend.alias: item.backend for item in batch.items}.values():
        for observer in _observers:
            observer(backend)
    deposits.store(batch.items)
    for item in batch.items:
        if item.release.is_immediate:
            batch.submit(item)
    _register_hooks(batch.items)
    return batch


def _register_hooks(items: Sequence[Checked]) -> None:
    """Let each commit release what waits for it; of what is held it only tells."""
    waiting: dict[BaseDatabaseWrapper, list[Checked]] = defaultdict(list)
    for item in items:
        release = item.release
        if release.connection is None or release.commit is not Commit.HOOKED:
            continue
        if release.row is not Row.HOLD or is_listened_to(item):
            waiting[release.connection].append(item)
    for connection, mine in waiting.items():
        publish_at_commit(connection, mine)


def _finish(batch: Batch) -> list[EnqueuedJob]:
    """Raise what the transport said, or tell what was accepted."""
    deposits.store_undelivered(batch.items)
    errors = []
    for item in batch.items:
        if item.release.awaits_commit:
            continue
        error = item.error()
        if error is None:
            announce(item)
        else:
            errors.append(error)
    if errors:
        raise errors[0]
    return [item.accepted() for item in batch.items]
