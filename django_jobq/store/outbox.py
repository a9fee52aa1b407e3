"""The outbox: jobs that wait for their commit, or for a broker that can be reached.

The row is written in the caller's transaction, so it is there if and only if the transaction has
committed. The commit hook publishes it and deletes it; what it leaves the relay publishes. The two
keep out of each other's way by a grace: the relay's first sighting of a row only starts a clock, so
a transaction however long meets its own hook first.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable
from datetime import timedelta

from django_jobq.store.rows import (
    CHUNK,
    FRESH,
    OUTBOX,
    NewJob,
    chunks,
    delete,
    fields,
    insert,
    later,
    new_token,
    picked,
    stored_jobs,
    text,
)

GRACE = timedelta(seconds=30)


def put(alias: str, jobs: Iterable[NewJob], *, using: str) -> str:
    """Store jobs in the caller's transaction and return their token."""
    token = new_token()
    insert((fields(alias, job, FRESH, token) for job in jobs), using=using)
    return token


def put_undelivered(alias: str, jobs: Iterable[NewJob], error: str, *, using: str) -> None:
    """Store jobs that the broker could not take; one that is stored already stays as it is.

    The relay leaves them alone for the grace, in which the broker may turn out to have them.
    """
    token = new_token()
    more = {"last_error": text(error), "claimable_at": later(GRACE.total_seconds())}
    rows = ({**fields(alias, job, OUTBOX, token), **more} for job in jobs)
    insert(rows, using=using, ignore_conflicts=True)


def present(
    alias: str, tokens: Collection[str], job_ids: Collection[uuid.UUID], *, using: str
) -> set[uuid.UUID]:
    """Return which of these jobs are still stored: a savepoint may have taken some back."""
    found: set[uuid.UUID] = set()
    for part in chunks(job_ids):
        rows = stored_jobs(using).filter(alias=alias, job_id__in=part)
        # Compared here: a list of tokens may be as long as that of the jobs.
        pairs = rows.values_list("job_id", "token")
        found.update(job_id for job_id, token in pairs if token in tokens)
    return found


def remove(
    alias: str, tokens: Collection[str], job_ids: Collection[uuid.UUID], *, using: str
) -> int:
    """Delete jobs that the broker has confirmed and return how many.

    What the relay has taken meanwhile, or a delivery has replaced, stays.
    """
    # Naming the kind would tempt a planner to read all rows of that kind.
    rows = stored_jobs(using).filter(alias=alias)
    return sum(
        delete(rows.filter(job_id__in=part, token__in=some), using=using)
        for part in chunks(job_ids)
        for some in chunks(tokens)
    )


def sight(alias: str, *, using: str, grace: timedelta = GRACE) -> int:
    """Start the grace of rows that are seen for the first time, and return how many.

    A row whose transaction has not committed is neither seen nor waited for. The token stays, so
    that the commit hook still finds its rows.
    """
    fresh = stored_jobs(using).filter(alias=alias, kind=FRESH).order_by("claimable_at", "id")
    with picked(fresh, CHUNK, using=using) as (ids, tokens):
        seen = stored_jobs(using).filter(id__in=ids, token__in=tokens, kind=FRESH)
        return seen.update(kind=OUTBOX, claimable_at=later(grace.total_seconds()))
