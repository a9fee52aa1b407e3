"""Holds: jobs that are not due yet, where an operator can see, move and cancel them.

A job has one hold at most. A newer one, of a higher attempt or more deferrals, takes the place of
an older; what is not newer changes nothing, so that a job which was delivered twice goes on once.
For the same reason a hold that is gone is remembered for a while.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable
from datetime import timedelta
from typing import TYPE_CHECKING

from django.db import OperationalError
from django.db.models import Q, QuerySet

from django_jobq.envelope import Envelope
from django_jobq.store.rows import (
    CHUNK,
    GONE,
    HOLD,
    DatabaseTime,
    NewJob,
    chunks,
    counts,
    delete,
    fields,
    gone,
    insert,
    later,
    leased,
    new_token,
    stored_jobs,
    text,
)

if TYPE_CHECKING:
    from django_jobq.models import StoredJob

_TRIES = 5


def new(alias: str, jobs: Iterable[NewJob], *, using: str) -> str:
    """Hold jobs that nobody has seen yet, in the caller's transaction, and return their token."""
    token = new_token()
    insert((fields(alias, job, HOLD, token) for job in jobs), using=using)
    return token


def put(alias: str, job: NewJob, *, reason: str = "", again: bool = False, using: str) -> bool:
    """Hold what a delivery came to; return False if what it came to is, or was, held already.

    With ``again`` it has come to nothing, and is itself held. The delivery may be acknowledged
    either way.
    """
    values = {**fields(alias, job, HOLD, new_token()), "reason": text(reason)}
    rows = stored_jobs(using).filter(alias=alias, job_id=job.envelope.job_id)
    for _ in range(_TRIES):
        insert([values], using=using, ignore_conflicts=True)
        if rows.filter(token=values["token"]).exists():
            return True
        if rows.filter(_replaced_by(job.envelope, again=again)).update(**values):
            return True
        if rows.filter(_is_newer_than(job.envelope) | _is_as_new_as(job.envelope)).exists():
            return False
    raise OperationalError(f"the stored job {job.envelope.job_id} changed with every try")


def replace(alias: str, jobs: Iterable[NewJob], *, using: str) -> set[uuid.UUID]:
    """Hold jobs anew, whatever is stored of them, and return the ids of those that now are.

    One that is being published at this moment stays as it is.
    """
    token = new_token()
    values = {job.envelope.job_id: fields(alias, job, HOLD, token) for job in jobs}
    insert(values.values(), using=using, ignore_conflicts=True)
    rows = stored_jobs(using).filter(alias=alias)
    mine = rows.filter(job_id__in=values, token=token)
    held = set(mine.values_list("job_id", flat=True))
    for job_id in set(values) - held:
        if rows.filter(~leased(), job_id=job_id).update(**values[job_id]):
            held.add(job_id)
    return held


def has_successor(alias: str, envelope: Envelope, *, using: str) -> bool:
    """Return whether what this delivery came to is held, or has been held and is gone."""
    rows = stored_jobs(using).filter(alias=alias, job_id=envelope.job_id)
    return rows.filter(_is_newer_than(envelope)).exists()


def next_due(alias: str, *, using: str) -> float | None:
    """Return the seconds until a hold may be claimed, or None if there is none."""
    held = stored_jobs(using).filter(alias=alias, kind=HOLD).order_by("claimable_at", "id")
    found = held.annotate(now=DatabaseTime()).values_list("claimable_at", "now").first()
    return max(0.0, (found[0] - found[1]).total_seconds()) if found else None


def cancel(ids: Collection[int], *, using: str) -> int:
    """Let held jobs be gone that are not being published at this moment, and return how many."""
    return sum(_free(part, using).update(**gone()) for part in chunks(ids))


def forget(alias: str, *, using: str) -> int:
    """Delete at most a few hundred holds that are gone for long enough, and return how many."""
    old = stored_jobs(using).filter(alias=alias, kind=GONE, claimable_at__lte=DatabaseTime())
    ids = list(old.order_by("claimable_at", "id").values_list("id", flat=True)[:CHUNK])
    return delete(old.filter(id__in=ids), using=using)


def run_now(ids: Collection[int], *, using: str) -> int:
    """Make held jobs due that are not being published at this moment, and return how many."""
    return reschedule(ids, timedelta(0), using=using)


def reschedule(ids: Collection[int], delay: timedelta, *, using: str) -> int:
    """Let held jobs be due after a delay from now on, and return how many.

    Those that are being published at this moment stay as they are.
    """
    due = later(delay.total_seconds())
    return sum(
        _free(part, using).update(due_at=due, claimable_at=due, leased_by="", token=new_token())
        for part in chunks(ids)
    )


def _free(ids: Collection[int], using: str) -> QuerySet[StoredJob]:
    return stored_jobs(using).filter(~leased(), id__in=ids, kind=HOLD)


def _replaced_by(envelope: Envelope, *, again: bool) -> Q:
    """Return the condition of rows whose place a delivery's hold takes.

    A delivery that is held again comes from a row as new as itself, which is gone, or is about to
    be, because it was published.
    """
    attempt, deferrals = counts(envelope)
    older = Q(attempt__lt=attempt) | Q(attempt=attempt, deferrals__lt=deferrals)
    if not again:
        return older
    return older | (_is_as_new_as(envelope) & (leased() | ~Q(kind=HOLD)))


def _is_newer_than(envelope: Envelope) -> Q:
    attempt, deferrals = counts(envelope)
    return Q(attempt__gt=attempt) | Q(attempt=attempt, deferrals__gt=deferrals)


def _is_as_new_as(envelope: Envelope) -> Q:
    attempt, deferrals = counts(envelope)
    return Q(attempt=attempt, deferrals=deferrals)
