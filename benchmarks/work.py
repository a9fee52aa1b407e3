"""What every product's job does: count itself, by its number, in a file that processes share."""

from __future__ import annotations

import mmap
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks import common


def journal_path() -> Path:
    """Return where the journal of this run is: one byte for each job."""
    return common.directory() / "journal"


def new_journal(jobs: int) -> None:
    """Start an empty journal, before the worker that opens it."""
    journal_path().write_bytes(bytes(jobs))


@cache
def open_journal() -> mmap.mmap:
    """Return the journal as memory that is shared with the other processes."""
    with journal_path().open("r+b") as file:
        return mmap.mmap(file.fileno(), 0)


def record(number: int) -> None:
    """Count one run of job ``number``, and ask the database something if that is wanted."""
    journal = open_journal()
    journal[number] = min(journal[number] + 1, 255)
    if common.is_on(common.QUERY_VARIABLE):
        _query()


def hear(*_: Any, **__: Any) -> None:
    """Receive the news that a job succeeded."""


def _query() -> None:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
