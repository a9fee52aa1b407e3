"""What waits for the commit of a database transaction.

A plain hook is registered on the connection whose commit counts. After the commit

1. the first hook reads back, in one statement, which stored jobs of its transaction are there: a
   savepoint that is rolled back by hand takes rows and leaves hooks;
2. each hook submits its jobs;
3. the last hook waits for all of them, once, and removes what is confirmed, in one statement.

A hook never raises: Django would drop the hooks behind it. A stored job that is not confirmed stays
stored, and a worker publishes it. One that is not stored is lost, which is logged at ERROR and told
by the signal job_enqueue_failed.
"""

from __future__ import annotations

import dataclasses
from weakref import WeakKeyDictionary, ref

from django.db.backends.base.base import BaseDatabaseWrapper

from django_jobq import deposits
from django_jobq.publication import Batch, Checked, announce, report
from django_jobq.release import Row


class _Ticket:
    """Hold the jobs of one hook, and live as long as it."""

    def __init__(self, items: list[Checked]) -> None:
        self.items = items
        self.is_read = self.is_over = False


@dataclasses.dataclass(slots=True)
class _Commits:
    """Follow the hooks of one connection: which are to come, and what is not confirmed yet.

    Django drops the hooks of a savepoint that is rolled back, and their tickets vanish with them.
    Older ones may outlive a transaction that ended early, so none waits for them.
    """

    tickets: list[ref[_Ticket]] = dataclasses.field(default_factory=list)
    batch: Batch = dataclasses.field(default_factory=Batch)

    def add(self, ticket: _Ticket) -> None:
        """Follow one more hook."""
        self._drop_ended(ticket)
        self.tickets.append(ref(ticket))

    def read_back(self, using: str) -> None:
        """Take from all tickets the stored jobs whose rows are gone."""
        alive = (ticket() for ticket in self.tickets)
        unread = [ticket for ticket in alive if ticket is not None and not ticket.is_read]
        there = deposits.present([item for ticket in unread for item in ticket.items], using)
        for ticket in unread:
            ticket.is_read = True
            ticket.items = [
                item for item in ticket.items if item.token is None or item.key in there
            ]

    def end(self, ticket: _Ticket) -> bool:
        """Note that a hook has run, and return whether no later one is to come."""
        ticket.items, ticket.is_over = [], True
        return self._drop_ended(ticket)

    def _drop_ended(self, ticket: _Ticket) -> bool:
        """Drop the latest tickets as far as they are over, and return whether this was one."""
        was_dropped = False
        while self.tickets and ((latest := self.tickets[-1]()) is None or latest.is_over):
            was_dropped = was_dropped or latest is ticket
            self.tickets.pop()
        return was_dropped


_commits: WeakKeyDictionary[BaseDatabaseWrapper, _Commits] = WeakKeyDictionary()


def publish_at_commit(connection: BaseDatabaseWrapper, items: list[Checked]) -> None:
    """Submit jobs when the transaction of a connection commits; they vanish if it rolls back."""
    commits = _commits.setdefault(connection, _Commits())
    ticket = _Ticket(items)
    commits.add(ticket)
    using = connection.alias

    # A plain function: Django's own error handling reads the attributes of one.
    def publish_after_commit() -> None:
        if not ticket.is_read:
            commits.read_back(using)
        for item in ticket.items:
            _submit_committed(item, commits.batch)
        if commits.end(ticket):
            batch, commits.batch = commits.batch, Batch()
            _settle_committed(batch, using)

    connection.on_commit(publish_after_commit)


def _submit_committed(item: Checked, batch: Batch) -> None:
    if item.release.row is Row.HOLD:
        announce(item)
        return
    batch.submit(item)
    error = None if item.is_late else item.error()
    if error is None:
        batch.items.append(item)
    else:
        _tell_failure(item, error)


def _settle_committed(batch: Batch, using: str) -> None:
    batch.wait()
    answers = [(item, item.error()) for item in batch.items]
    deposits.remove([item for item, error in answers if error is None], using)
    for item, error in answers:
        if error is None:
            announce(item)
        else:
            _tell_failure(item, error)


def _tell_failure(item: Checked, error: BaseException) -> None:
    if item.token is None:
        report(item, error)
        return
    deposits.tell_kept(item, error)
    # Accepted all the same: its row is committed.
    announce(item)
