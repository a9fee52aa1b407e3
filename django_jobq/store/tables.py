"""What a database says when `migrate` has not run, in words."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, Error

_UNDEFINED_TABLE = "42P01"
_NO_SUCH_TABLE = 1146


@contextlib.contextmanager
def naming_missing_tables(using: str) -> Iterator[None]:
    """Raise ImproperlyConfigured with the remedy if a statement finds no table."""
    try:
        yield
    except Error as error:
        if not _is_missing_table(error.__cause__):
            raise
        option = "" if using == DEFAULT_DB_ALIAS else f" --database {using}"
        raise ImproperlyConfigured(
            f"database {using!r} has no table of stored jobs: run manage.py migrate{option}"
        ) from error


def _is_missing_table(error: BaseException | None) -> bool:
    """Return whether that is what PostgreSQL, MariaDB or SQLite says."""
    return (
        getattr(error, "sqlstate", getattr(error, "pgcode", None)) == _UNDEFINED_TABLE
        or (error is not None and error.args[:1] == (_NO_SUCH_TABLE,))
        or "no such table" in str(error)
    )
