"""How many jobs the database remembers, queue by queue."""

from __future__ import annotations

import dataclasses

from django.db.models import Count, Max, Min, Q

from django_jobq.store.rows import FRESH, HOLD, OUTBOX, DatabaseTime, stored_jobs


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """Count the stored jobs of a queue; ``oldest`` is the age of an undelivered one in seconds."""

    held: int = 0
    undelivered: int = 0
    oldest: float | None = None

    def __add__(self, other: Stored) -> Stored:
        ages = [age for age in (self.oldest, other.oldest) if age is not None]
        return Stored(
            held=self.held + other.held,
            undelivered=self.undelivered + other.undelivered,
            oldest=max(ages, default=None),
        )


def by_queue(alias: str, *, using: str) -> dict[str, Stored]:
    """Return the counts of every queue that has stored jobs, with one query."""
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
