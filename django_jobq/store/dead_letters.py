"""Dead letters on file: listing and counting them, and what an operator does to them.

A requeue resolves letters and holds their jobs in one transaction, a part of a long list at a time:
no letter is resolved whose job does not run again, and no job is held twice for one letter.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from django.db import transaction
from django.db.models import QuerySet

from django_jobq.envelope import Envelope
from django_jobq.exceptions import EnvelopeError
from django_jobq.serialization import JSON
from django_jobq.store import holds, starts
from django_jobq.store.rows import (
    MAX_NAME,
    DatabaseTime,
    NewJob,
    ago,
    chunks,
    dead_letters,
    delete,
    new_token,
    text,
)

if TYPE_CHECKING:
    from django_jobq.models import DeadLetter

OPEN, REQUEUED, DISCARDED = "open", "requeued", "discarded"
# How many bodies are in memory at once.
_TOGETHER = 100
# What belongs to the run that has failed, and not to the job.
_SPENT_HEADERS = ("errors", "not_before", "starts", "unknown_since")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Requeued:
    """Tell how many jobs run again, and by the id of a letter why one does not."""

    count: int = 0
    refused: Mapping[int, str] = dataclasses.field(default_factory=dict)


def open_letters(alias: str, *, using: str) -> QuerySet[DeadLetter]:
    """Return the letters that nobody has resolved yet, the oldest first."""
    return dead_letters(using).filter(resolution=OPEN, alias=alias).order_by("id")


def count(alias: str, queue: str | None = None, *, using: str) -> int:
    """Count the open letters of a backend, or of one of its queues."""
    letters = open_letters(alias, using=using)
    return (letters if queue is None else letters.filter(queue=text(queue, MAX_NAME))).count()


def requeue(
    ids: Collection[int],
    *,
    using: str,
    arguments: tuple[list[JSON], dict[str, JSON]] | None = None,
) -> Requeued:
    """Let the jobs of open letters run again, from their first attempt and as soon as possible.

    ``arguments`` take the place of those in the envelope. The jobs are held in the database, from
    where the workers of a backend that leaves storing to it publish them.
    """
    done = 0
    refused: dict[int, str] = {}
    for part in chunks(ids, _TOGETHER):
        with transaction.atomic(using=using):
            found = _requeue(part, arguments, using)
        done += found.count
        refused.update(found.refused)
    return Requeued(count=done, refused=refused)


def discard(ids: Collection[int], *, using: str) -> int:
    """Resolve open letters whose jobs are not to run again, and return how many."""
    return sum(_resolve(part, DISCARDED, new_token(), using) for part in chunks(ids))


def prunable(older_than: timedelta, *, using: str) -> QuerySet[DeadLetter]:
    """Return the letters that were resolved longer ago than that; open ones are never among them.

    Until it is deleted, a letter keeps a late copy of itself from being filed as a new one.
    """
    return dead_letters(using).filter(resolved_at__lt=ago(older_than.total_seconds()))


def prune(older_than: timedelta, *, using: str, batch: int = 1_000) -> int:
    """Delete at most ``batch`` letters that are prunable, and return how many."""
    letters = prunable(older_than, using=using)
    ids = list(letters.order_by("resolved_at").values_list("id", flat=True)[:batch])
    return sum(delete(letters.filter(id__in=part), using=using) for part in chunks(ids))


def _requeue(
    ids: Sequence[int], arguments: tuple[list[JSON], dict[str, JSON]] | None, using: str
) -> Requeued:
    # Written before it is read: who resolves them at the same time waits, and then finds none.
    token = new_token()
    _resolve(ids, REQUEUED, token, using)
    letters = list(dead_letters(using).filter(id__in=ids, token=token).order_by("id"))
    jobs: dict[str, dict[int, NewJob]] = defaultdict(dict)
    refused: dict[int, str] = {}
    for letter in letters:
        try:
            jobs[letter.alias][letter.pk] = NewJob(envelope=_first_attempt(letter, arguments))
        except EnvelopeError as error:
            refused[letter.pk] = f"{letter} has no job that could run: {error}"
    for alias, by_letter in jobs.items():
        held = holds.replace(alias, by_letter.values(), using=using)
        starts.forget_all(alias, held, using=using)
        for pk, job in by_letter.items():
            if job.envelope.job_id not in held:
                refused[pk] = f"{job.envelope.job_id} is being published just now; try again"
    if refused:
        letters_left = dead_letters(using).filter(id__in=refused)
        letters_left.update(resolution=OPEN, resolved_at=None, token="")
    return Requeued(count=len(letters) - len(refused), refused=refused)


def _first_attempt(
    letter: DeadLetter, arguments: tuple[list[JSON], dict[str, JSON]] | None
) -> Envelope:
    """Return the envelope of a letter as if its job had never run, for the queue it came from."""
    envelope = Envelope.decode(bytes(letter.body))
    envelope = envelope.with_headers(**dict.fromkeys(_SPENT_HEADERS))
    changed: dict[str, Any] = {"attempt": 1, "deferrals": 0}
    if letter.queue != text(envelope.queue, MAX_NAME):
        changed["queue"] = letter.queue
    if arguments is not None:
        changed["args"], changed["kwargs"] = arguments
    return dataclasses.replace(envelope, **changed)


def _resolve(ids: Collection[int], resolution: str, token: str, using: str) -> int:
    return (
        dead_letters(using)
        .filter(id__in=ids, resolution=OPEN)
        .update(resolution=resolution, resolved_at=DatabaseTime(), token=token)
    )
