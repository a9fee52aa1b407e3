"""What waits for the commit of a database transaction.

A plain hook is registered on the connection whose commit counts. After the commit each hook submits
its jobs; the hook registered last waits for all of them, so a transaction costs one wait. A hook
never raises: Django would drop the hooks behind it. What fails is logged at ERROR and told by the
signal job_enqueue_failed.
"""

from __future__ import annotations

import dataclasses
from weakref import WeakKeyDictionary, WeakSet

from django.db.backends.base.base import BaseDatabaseWrapper

from django_jobq.publication import Batch, Checked, announce, report


class _Ticket:
    """Live as long as the hook that holds it."""


@dataclasses.dataclass(slots=True)
class _Commits:
    """Follow the hooks of one connection: which are to come, and what is not confirmed yet.

    Django drops the hooks of a savepoint that is rolled back, and their tickets vanish with them.
    """

    tickets: WeakSet[_Ticket] = dataclasses.field(default_factory=WeakSet)
    batch: Batch = dataclasses.field(default_factory=Batch)


_commits: WeakKeyDictionary[BaseDatabaseWrapper, _Commits] = WeakKeyDictionary()


def publish_at_commit(connection: BaseDatabaseWrapper, items: list[Checked]) -> None:
    """Submit jobs when the transaction of a connection commits; they vanish if it rolls back."""
    commits = _commits.setdefault(connection, _Commits())
    ticket = _Ticket()
    commits.tickets.add(ticket)

    # A plain function: Django's own error handling reads the attributes of one.
    def publish_after_commit() -> None:
        commits.tickets.discard(ticket)
        for item in items:
            _submit_committed(item, commits.batch)
        if not commits.tickets:
            batch, commits.batch = commits.batch, Batch()
            _settle_committed(batch)

    connection.on_commit(publish_after_commit)


def _submit_committed(item: Checked, batch: Batch) -> None:
    batch.submit(item)
    error = None if item.is_late else item.error()
    if error is None:
        batch.items.append(item)
    else:
        report(item, error)


def _settle_committed(batch: Batch) -> None:
    batch.wait()
    for item in batch.items:
        what = "may not have been published" if item.is_late else "was NOT published"
        error = item.error()
        if error is None:
            announce(item)
        else:
            report(item, error, what)
