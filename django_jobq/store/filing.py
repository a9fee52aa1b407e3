"""Filing: dead letters become rows, whatever is in them.

1. A batch is one transaction. A letter that is filed already, by its key, changes nothing.
2. If the database refuses a batch, its letters are filed one by one, so that one of them cannot
   stop the others.
3. A letter that the database refuses is filed with all text in ASCII; if that is refused too, with
   the beginning of a large body. What is refused then is no fault of the letter, and raised.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
import time
from collections.abc import Iterable, Iterator
from typing import Any

from django.db import DatabaseError, connections

from django_jobq.envelope import MAX_ERRORS, Envelope, decode_or_none
from django_jobq.store.rows import (
    MAX_COUNT,
    MAX_NAME,
    DatabaseTime,
    ago,
    counts,
    dead_letters,
    insert,
    text,
)

logger = logging.getLogger("django_jobq.store")

# What is left of a body that the database does not take: any server takes so much.
KEPT_OF_A_BODY = 256 * 1024
_MAX_REASON = 4_000
_MAX_TRACEBACK = 10_000
# Deaths that an exception of the last attempt caused.
_RAISED = ("exhausted", "fatal")
_ASCII_FIELDS = ("queue", "job", "reason", "exception", "traceback", "correlation_id")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NewLetter:
    """Hold a dead body and what its transport knows of it; ``died_at`` is seconds of the epoch.

    Two of one ``filing_key``, 64 hexadecimal digits, are one letter.
    """

    body: bytes
    queue: str
    cause: str
    reason: str = ""
    attempts: int = 0
    died_at: float | None = None
    filing_key: str


def file(alias: str, letters: Iterable[NewLetter], *, using: str) -> None:
    """File dead letters; those that are filed already stay as they are.

    An error means that the database cannot be used: some may be filed, and may be filed again.
    """
    rows = [_row(alias, letter) for letter in letters]
    try:
        _insert(rows, using)
    except DatabaseError:
        _make_sure_of(using)
        for row in rows:
            _file_alone(row, using)


def _insert(rows: list[dict[str, Any]], using: str) -> None:
    insert(rows, using=using, ignore_conflicts=True, into=dead_letters)


def _make_sure_of(using: str) -> None:
    """Raise if the database does not answer: then it has refused nothing."""
    connection = connections[using]
    connection.close_if_unusable_or_obsolete()
    connection.ensure_connection()


def _file_alone(row: dict[str, Any], using: str) -> None:
    refusal: DatabaseError | None = None
    for version in _versions(row):
        try:
            _insert([version], using)
        except DatabaseError as error:
            _make_sure_of(using)
            refusal = error
        else:
            if refusal is not None:
                told = "Dead letter %s is filed without what the database refuses of it: %s"
                logger.warning(told, row["filing_key"], refusal)
            return
    assert refusal is not None
    raise refusal


def _versions(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a row, what little harm is done by if it was but a lock that took long, and the least.

    Servers say of a statement that is too long for them no more than that they have gone away.
    """
    yield row
    plain = {**row, **{name: _ascii(row[name]) for name in _ASCII_FIELDS}}
    yield plain
    size = len(row["body"])
    if size > KEPT_OF_A_BODY:
        mark = f"[the database refused the body of {size:,} bytes; this is its beginning] "
        reason = _cut(mark + plain["reason"], _MAX_REASON)
        yield {**plain, "body": row["body"][:KEPT_OF_A_BODY], "reason": reason}


def _ascii(value: str) -> str:
    escaped = value.encode("ascii", "backslashreplace").decode()
    return escaped[: max(len(value), MAX_NAME)]


def _row(alias: str, letter: NewLetter) -> dict[str, Any]:
    envelope = decode_or_none(letter.body)
    errors = _errors_of(envelope)
    last = errors[-1] if errors and letter.cause in _RAISED else {}
    job = envelope.job if envelope else ""
    now = time.time()
    return {
        "alias": alias,
        "job_id": envelope.job_id if envelope else None,
        "queue": text(letter.queue, MAX_NAME),
        "job": text(job, MAX_NAME),
        "cause": letter.cause,
        "reason": _cut(letter.reason, _MAX_REASON),
        "exception": text(_text(last, "type"), MAX_NAME),
        "traceback": text(_text(last, "traceback"), _MAX_TRACEBACK),
        "fingerprint": _fingerprint(_text(last, "type") or letter.cause, _text(last, "place"), job),
        "attempts": min(letter.attempts, MAX_COUNT),
        "deferrals": counts(envelope)[1] if envelope else 0,
        "errors": _history(errors),
        "correlation_id": text(envelope.correlation_id or "", MAX_NAME) if envelope else "",
        "body": letter.body,
        "enqueued_at": ago(now - envelope.enqueued_at / 1000) if envelope else None,
        "died_at": ago(now - letter.died_at) if letter.died_at is not None else DatabaseTime(),
        "filed_at": DatabaseTime(),
        "filing_key": letter.filing_key,
    }


def _errors_of(envelope: Envelope | None) -> list[dict[str, Any]]:
    errors = envelope.headers.get("errors") if envelope else None
    found = errors if isinstance(errors, list) else []
    return [error for error in found[-MAX_ERRORS:] if isinstance(error, dict)]


def _history(errors: list[dict[str, Any]]) -> str:
    """Return the last errors as JSON in ASCII; a traceback has a column of its own."""
    entries = [
        {
            "attempt": error.get("attempt") if isinstance(error.get("attempt"), int) else None,
            "at": error.get("at") if isinstance(error.get("at"), int) else None,
            "type": _text(error, "type")[:MAX_NAME],
            "message": _text(error, "message")[:_MAX_REASON],
        }
        for error in errors
    ]
    return json.dumps(entries) if entries else ""


def _text(error: dict[str, Any], name: str) -> str:
    value = error.get(name)
    return value if isinstance(value, str) else ""


def _cut(value: str, limit: int) -> str:
    whole = text(value, limit + 1)
    return whole if len(whole) <= limit else f"{whole[: limit - 1]}…"


def _fingerprint(kind: str, place: str, job: str) -> str:
    """Return what is the same for failures of one kind: what was raised, and where, in which job.

    Lines are not told apart, so that an edit elsewhere in a file makes nothing new.
    """
    parts = "\n".join([kind, place, job])
    return hashlib.sha256(parts.encode("utf-8", "surrogatepass")).hexdigest()
