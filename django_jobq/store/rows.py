"""Claims and leases: which rows may be taken, whose they are, and when they go."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from django.apps import apps
from django.db import connections, transaction
from django.db.models import F, Q, QuerySet
from django.db.models.functions import Now

from django_jobq.envelope import Envelope

if TYPE_CHECKING:
    from django_jobq.models import DeadLetter, StoredJob

FRESH, OUTBOX, HOLD, GONE = "fresh", "outbox", "hold", "gone"
# How many rows one statement names; databases differ in how many values they take.
CHUNK = 400
# MariaDB takes statements of 16 MB unless told otherwise, and PyMySQL doubles the bodies in them.
_CHUNK_BYTES = 4_000_000
MAX_NAME = 255
_MAX_TEXT = 2_000
MAX_COUNT = 2**63 - 1
# For how long a hold is remembered when it is gone. A connection that dies without a word delivers
# again after minutes, and what is delivered may wait for a slot.
KEPT = timedelta(minutes=15)
# Moments end with the year 9999.
_MAX_DELAY = 100 * 365 * 86_400.0

_T = TypeVar("_T")


class DatabaseTime(Now):
    """The clock of the database; in UTC also where the session has another time zone."""

    def as_mysql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        """Return the SQL for MySQL and MariaDB, whose CURRENT_TIMESTAMP jumps twice a year."""
        return self.as_sql(compiler, connection, template="UTC_TIMESTAMP(6)", **context)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NewJob:
    """Name a job to be stored, its delay in seconds, and whether it goes in front once due."""

    envelope: Envelope
    delay: float = 0.0
    front: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """Say who takes rows, for how long, and how many at once."""

    owner: str
    length: timedelta
    limit: int


def stored_jobs(using: str) -> QuerySet[StoredJob]:
    """Return all stored jobs of a database."""
    return apps.get_model("jobq", "StoredJob")._default_manager.using(using)


def dead_letters(using: str) -> QuerySet[DeadLetter]:
    """Return all dead letters of a database."""
    return apps.get_model("jobq", "DeadLetter")._default_manager.using(using)


def new_token() -> str:
    """Return what a row is marked with when it changes hands."""
    return uuid.uuid4().hex


def later(delay: float) -> Any:
    """Return the moment after so many seconds; what a clock cannot show is rounded up."""
    microseconds = math.ceil(min(max(delay, 0.0), _MAX_DELAY) * 1_000_000)
    return DatabaseTime() + timedelta(microseconds=microseconds)


def ago(seconds: float) -> Any:
    """Return the moment so many seconds before now; what lies ahead is now."""
    return DatabaseTime() - timedelta(seconds=min(max(seconds, 0.0), _MAX_DELAY))


def text(value: str, limit: int = _MAX_TEXT) -> str:
    """Return what every database takes: NUL and lone surrogates escaped, and not too long."""
    escaped = value[:limit].replace("\0", "\\x00").encode("utf-8", "backslashreplace")
    return escaped.decode("utf-8")[:limit]


def leased() -> Q:
    """Return the condition of rows that a relay is publishing."""
    return Q(leased_by__gt="", claimable_at__gt=DatabaseTime())


def counts(envelope: Envelope) -> tuple[int, int]:
    """Return attempt and deferrals as their columns can hold them."""
    return min(envelope.attempt, MAX_COUNT), min(envelope.deferrals, MAX_COUNT)


def fields(alias: str, job: NewJob, kind: str, token: str) -> dict[str, Any]:
    """Return the values of every column, for a new row and for one that is replaced."""
    envelope = job.envelope
    attempt, deferrals = counts(envelope)
    return {
        "alias": alias,
        "job_id": envelope.job_id,
        "kind": kind,
        "queue": text(envelope.queue, MAX_NAME),
        "job": text(envelope.job, MAX_NAME),
        "priority": envelope.priority,
        "front": job.front,
        "attempt": attempt,
        "deferrals": deferrals,
        "body": envelope.encode(),
        "reason": "",
        "due_at": later(job.delay),
        "created_at": DatabaseTime(),
        "token": token,
        "claimable_at": later(job.delay if kind == HOLD else 0.0),
        "leased_by": "",
        "failures": 0,
        "last_error": "",
    }


def insert(
    rows: Iterable[dict[str, Any]],
    *,
    using: str,
    ignore_conflicts: bool = False,
    into: Callable[[str], QuerySet[Any]] = stored_jobs,
) -> None:
    """Insert rows, all or none; with ``ignore_conflicts`` a job that is stored stays as it is."""
    table = into(using)
    with transaction.atomic(using=using, savepoint=False):
        for part in _by_size(rows):
            table.bulk_create(
                [table.model(**row) for row in part], ignore_conflicts=ignore_conflicts
            )


def claim(alias: str, kind: str, lease: Lease, *, using: str) -> list[StoredJob]:
    """Lease rows of a kind that may be taken, the longest due first; each has ``read_at``."""
    free = stored_jobs(using).filter(alias=alias, kind=kind, claimable_at__lte=DatabaseTime())
    token = new_token()
    with picked(free.order_by("claimable_at", "id"), lease.limit, using=using) as (ids, tokens):
        stored_jobs(using).filter(id__in=ids, token__in=tokens).update(
            token=token,
            leased_by=text(lease.owner, MAX_NAME),
            claimable_at=later(lease.length.total_seconds()),
        )
    mine = stored_jobs(using).filter(id__in=ids, token=token)
    return list(mine.annotate(**{"read_at": DatabaseTime()}).order_by("due_at", "id"))


@contextlib.contextmanager
def picked(
    rows: QuerySet[StoredJob], limit: int, *, using: str
) -> Iterator[tuple[list[int], set[str]]]:
    """Give ids and tokens of the first rows, which the block then changes by these.

    Rows that somebody else is changing are left out instead of waited for, where the database knows
    how. Where it does not, there is no transaction either: SQLite refuses a write after a read in
    one at once if another has written meanwhile. The tokens decide there.
    """
    wanted = rows.values_list("id", "token")
    with contextlib.ExitStack() as stack:
        if connections[using].features.has_select_for_update_skip_locked:
            stack.enter_context(transaction.atomic(using=using))
            wanted = wanted.select_for_update(skip_locked=True)
        found = list(wanted[: min(limit, CHUNK)])
        yield [pk for pk, _ in found], {token for _, token in found}


def drop(rows: Iterable[StoredJob], *, using: str) -> int:
    """Delete leased rows that the broker has confirmed, and return how many.

    What is missing in the number is no longer leased as it was, and is or will be published again.
    """
    return sum(
        delete(stored_jobs(using).filter(leased(), id__in=part, token=token), using=using)
        for token, part in _by_token(rows)
    )


def retire(rows: Iterable[StoredJob], *, using: str) -> int:
    """Let leased holds be gone that the broker has confirmed, and return how many. See drop()."""
    return sum(
        stored_jobs(using).filter(leased(), id__in=part, token=token).update(**gone())
        for token, part in _by_token(rows)
    )


def gone() -> dict[str, Any]:
    """Return the values that a hold ends with, until it is forgotten."""
    return {
        "kind": GONE,
        "body": b"",
        "token": new_token(),
        "leased_by": "",
        "claimable_at": later(KEPT.total_seconds()),
    }


def give_back(rows: Iterable[StoredJob], error: str, pause: float, *, using: str) -> int:
    """Note that leased rows could not be published, and return how many.

    They may be taken again after ``pause`` seconds. Rows that others have taken over stay theirs.
    """
    values = {
        "leased_by": "",
        "claimable_at": later(pause),
        "failures": F("failures") + 1,
        "last_error": text(error),
    }
    return sum(
        stored_jobs(using).filter(id__in=part, token=token).update(token=new_token(), **values)
        for token, part in _by_token(rows)
    )


def delete(rows: QuerySet[Any], *, using: str) -> int:
    """Delete in one statement and return how many.

    With a receiver of `post_delete` anywhere, QuerySet.delete() reads the rows first and then
    deletes by their ids alone, whatever they have become meanwhile.
    """
    return rows._raw_delete(using) or 0  # None for a condition that no row can meet


def chunks(values: Collection[_T], size: int = CHUNK) -> Iterator[Sequence[_T]]:
    """Yield the values in parts that one statement can name."""
    values = list(values)
    for start in range(0, len(values), size):
        yield values[start : start + size]


def _by_token(rows: Iterable[StoredJob]) -> Iterator[tuple[str, Sequence[int]]]:
    ids: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        ids[row.token].append(row.pk)
    for token, found in ids.items():
        for part in chunks(found):
            yield token, part


def _by_size(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    part: list[dict[str, Any]] = []
    size = 0
    for row in rows:
        if part and (len(part) == CHUNK or size + len(row["body"]) > _CHUNK_BYTES):
            yield part
            part, size = [], 0
        part.append(row)
        size += len(row["body"])
    if part:
        yield part
