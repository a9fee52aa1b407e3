"""How a job is released: what it waits for, and what the database keeps of it meanwhile.

=============  ======================  ======================================================
transaction    jobs are not stored     jobs are stored (see OUTBOX and HOLDS)
=============  ======================  ======================================================
none           published at once       at once; a delayed one is held, and one that the
                                       transport cannot take is stored
hooked         by the commit hook      stored in the transaction, published by the commit hook
silent         refused                 stored in the transaction, published by a worker
=============  ======================  ======================================================

What is delayed and held is published by a worker, in whichever transaction it was stored. With
``on_commit=False`` an open transaction does not count, and nothing may be stored in it.
"""

from __future__ import annotations

import dataclasses
import enum

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import TransactionManagementError

from django_jobq.backends.base import Backend
from django_jobq.exceptions import UnknownDatabase


class Commit(enum.Enum):
    """Tell whether a transaction is open, and whether Django runs hooks when it commits."""

    NONE = enum.auto()
    HOOKED = enum.auto()
    SILENT = enum.auto()


class Row(enum.Enum):
    """Tell as what a job is stored at the call."""

    OUTBOX = enum.auto()
    HOLD = enum.auto()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """Say which commit releases a job, and as what ``connection`` stores it.

    With ``stores_undelivered`` it also takes what the transport could not.
    """

    connection: BaseDatabaseWrapper | None = None
    commit: Commit = Commit.NONE
    row: Row | None = None
    stores_undelivered: bool = False

    @property
    def awaits_commit(self) -> bool:
        """Return whether the job does not exist before a transaction commits."""
        return self.commit is not Commit.NONE

    @property
    def is_immediate(self) -> bool:
        """Return whether the job is published at the call."""
        return self.commit is Commit.NONE and self.row is None


AT_ONCE = Release()


def decide(backend: Backend, *, database: str | None, on_commit: bool, delayed: bool) -> Release:
    """Return how a job is released, or raise why it cannot be.

    Nothing connects here: a connection that is not open has no transaction.
    """
    held = delayed and backend.uses_holds
    stored = held or backend.uses_outbox
    if not (stored or on_commit):
        return AT_ONCE
    alias = backend.settings.database if database is None else database
    _check_database(alias, backend, stored=stored)
    connection = connections[alias]
    commit = _commit_of(connection)
    if commit is Commit.NONE:
        row = Row.HOLD if held else None
        return Release(connection=connection, row=row, stores_undelivered=backend.uses_outbox)
    if not on_commit:
        return AT_ONCE
    if stored:
        return Release(connection=connection, commit=commit, row=Row.HOLD if held else Row.OUTBOX)
    if commit is Commit.SILENT:
        raise TransactionManagementError(
            f"Autocommit is off on database {alias!r}, so there is no commit that would release the"
            " job. Turn it on and use transaction.atomic(), or enqueue after your own commit with"
            " .using(on_commit=False)."
        )
    return Release(connection=connection, commit=commit)


def _check_database(alias: str, backend: Backend, *, stored: bool) -> None:
    if alias not in connections.settings:
        raise UnknownDatabase(alias, connections.settings)
    if stored and alias not in backend.databases:
        raise UnknownDatabase(alias, backend.databases, backend=backend.alias)


def _commit_of(connection: BaseDatabaseWrapper) -> Commit:
    # Inside atomic() with autocommit off, Django runs no hooks at the commit.
    if connection.in_atomic_block and connection.commit_on_exit:
        return Commit.HOOKED
    is_open = connection.connection is not None
    if connection.autocommit if is_open else connection.settings_dict.get("AUTOCOMMIT", True):
        return Commit.NONE
    return Commit.SILENT
