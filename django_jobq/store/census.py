"""How many jobs and dead letters the database remembers, queue by queue, and for whom."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from django.db.models import Count, Max, Min, Q

from django_jobq.store.dead_letters import open_letters
from django_jobq.store.rows import FRESH, HOLD, OUTBOX, DatabaseTime, stored_jobs


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Count what is stored of a queue; ``oldest`` is the age of an undelivered job in seconds.

    ``dead`` is how many letters are open.
    """

    held: int = 0
    undelivered: int = 0
    oldest: float | None = None
    dead: int = 0

    def __add__(self, other: Stored) -> Stored:
        ages = [age for age in (self.oldest, other.oldest) if age is not None]
        return Stored(
            held=self.held + other.held,
            undelivered=self.undelivered + other.undelivered,
            oldest=max(ages, default=None),
            dead=self.dead + other.dead,
        )


def by_queue(alias: str, *, using: str) -> dict[str, Stored]:
    """Return the counts of every queue of which something is stored, with two queries."""
    found = _jobs(alias, using)
    letters = open_letters(alias, using=using).order_by("queue").values_list("queue")
    for queue, number in letters.annotate(number=Count("id")):
        found[queue] = found.get(queue, Stored()) + Stored(dead=number)
    return found


def left_behind(known: Collection[str], *, using: str) -> dict[str, int]:
    """Count the jobs that wait for backends other than those that are known, by alias."""
    waiting = stored_jobs(using).filter(kind__in=(FRESH, OUTBOX, HOLD)).exclude(alias__in=known)
    counted = waiting.order_by("alias").values_list("alias").annotate(number=Count("id"))
    return dict(counted)


def _jobs(alias: str, using: str) -> dict[str, Stored]:
    undelivered = Q(kind__in=(FRESH, OUTBOX))
    rows = (
        stored_jobs(using)
        .filter(alias=alias, kind__in=(FRESH, OUTBOX, HOLD))
        .values("queue")
        .annotate(
            held=Count("id", filter=Q(kind=HOLD)),
            undelivered=Count("id", filter=undelivered),
            since=Min("created_at", filter=undelivered),
            now=Max(DatabaseTime()),
        )
    )
    return {
        row["queue"]: Stored(
            held=row["held"],
            undelivered=row["undelivered"],
            oldest=(row["now"] - row["since"]).total_seconds() if row["since"] else None,
        )
        for row in rows.order_by("queue")
    }
