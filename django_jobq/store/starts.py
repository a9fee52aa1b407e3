"""Starts without outcome: how often a job that is delivered again was started and came to nothing.

Only what is delivered again is counted, just before it starts, and forgotten with any outcome, so
that a job which kills its worker is found out and one that merely waited in that worker is not.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from datetime import timedelta
from typing import TYPE_CHECKING

from django.apps import apps
from django.db.models import F, QuerySet

from django_jobq.store.rows import CHUNK, DatabaseTime, delete

if TYPE_CHECKING:
    from django_jobq.models import JobStart


def read(alias: str, job_id: uuid.UUID, *, using: str) -> int:
    """Return how often a job was started so far."""
    found = _rows(using).filter(alias=alias, job_id=job_id).values_list("starts", flat=True)
    return found.first() or 0


def count(alias: str, job_id: uuid.UUID, *, using: str) -> int:
    """Count one more start, durably, and return how many it makes."""
    rows = _rows(using).filter(alias=alias, job_id=job_id)
    new = _rows(using).model(alias=alias, job_id=job_id, starts=0, started_at=DatabaseTime())
    _rows(using).bulk_create([new], ignore_conflicts=True)
    rows.update(starts=F("starts") + 1, started_at=DatabaseTime())
    return read(alias, job_id, using=using)


def forget(alias: str, job_id: uuid.UUID, *, using: str) -> None:
    """Forget the starts of a job that came to something."""
    delete(_rows(using).filter(alias=alias, job_id=job_id), using=using)


def forget_all(alias: str, job_ids: Collection[uuid.UUID], *, using: str) -> None:
    """Forget the starts of jobs that begin anew."""
    delete(_rows(using).filter(alias=alias, job_id__in=job_ids), using=using)


def prune(age: timedelta, *, using: str) -> int:
    """Delete at most a few hundred of what was last counted so long ago, and return how many."""
    old = _rows(using).filter(started_at__lt=DatabaseTime() - age).order_by("started_at")
    ids = list(old.values_list("pk", flat=True)[:CHUNK])
    return delete(_rows(using).filter(pk__in=ids), using=using)


def _rows(using: str) -> QuerySet[JobStart]:
    return apps.get_model("jobq", "JobStart")._default_manager.using(using)
