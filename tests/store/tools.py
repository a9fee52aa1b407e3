"""What the tests of the store say in one word: jobs, rows, claims, threads, and passing time."""

import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

from django.db import connections, transaction
from django.db.models import F

from django_jobq.envelope import Envelope
from django_jobq.models import DeadLetter, StoredJob
from django_jobq.store import filing, holds, outbox, rows
from django_jobq.store.filing import NewLetter
from django_jobq.store.rows import GONE, HOLD, OUTBOX, Lease, NewJob

USING = "stored"
T = TypeVar("T")


def envelope(**fields: Any) -> Envelope:
    values = {"job_id": uuid.uuid4(), "job": "shop.jobs.ship", "queue": "default", **fields}
    return Envelope(**{"enqueued_at": 0, **values})


def put(
    job: Envelope,
    delay: float = 0.0,
    *,
    front: bool = False,
    reason: str = "",
    again: bool = False,
) -> bool:
    new = NewJob(envelope=job, delay=delay, front=front)
    return holds.put("default", new, reason=reason, again=again, using=USING)


def enqueue(*jobs: Envelope) -> str:
    return outbox.put("default", [NewJob(envelope=job) for job in jobs], using=USING)


def claim(
    kind: str = HOLD, *, owner: str = "relay", length: float = 60, limit: int = 100
) -> list[StoredJob]:
    lease = Lease(owner=owner, length=timedelta(seconds=length), limit=limit)
    return rows.claim("default", kind, lease, using=USING)


def claim_left(**options: Any) -> list[StoredJob]:
    """Claim what no hook has published, as if the grace were over."""
    outbox.sight("default", using=USING, grace=timedelta(0))
    return claim(OUTBOX, **options)


def drop(*claimed: StoredJob) -> int:
    return rows.drop(claimed, using=USING)


def remove(tokens: set[str], *jobs: Envelope) -> int:
    return outbox.remove("default", tokens, [job.job_id for job in jobs], using=USING)


def retire(*claimed: StoredJob) -> int:
    return rows.retire(claimed, using=USING)


def stored() -> list[StoredJob]:
    """Return what is not gone."""
    return list(StoredJob.objects.using(USING).exclude(kind=GONE).order_by("id"))


def gone() -> list[StoredJob]:
    return list(StoredJob.objects.using(USING).filter(kind=GONE).order_by("id"))


def letter(job: Envelope | bytes | None = None, **fields: Any) -> NewLetter:
    """Return a dead letter with a filing key of its own."""
    body = job if isinstance(job, bytes) else (job or envelope()).encode()
    values = {"queue": "default", "cause": "exhausted", "filing_key": uuid.uuid4().hex * 2}
    return NewLetter(body=body, **{**values, **fields})


def file(*letters: NewLetter, alias: str = "default") -> list[DeadLetter]:
    """File letters and return all that are on file."""
    filing.file(alias, letters, using=USING)
    return list(DeadLetter.objects.using(USING).order_by("id"))


def elapse(seconds: float) -> None:
    """Let the rows become so much older, as if the clock of the database went on."""
    passed = timedelta(seconds=seconds)
    moments = {name: F(name) - passed for name in ("due_at", "created_at", "claimable_at")}
    StoredJob.objects.using(USING).update(**moments)


@contextmanager
def in_open_transaction(act: Callable[[], object]) -> Iterator[None]:
    """Act in the transaction of another connection, which commits at the end of the block."""
    acted, commit = threading.Event(), threading.Event()

    def run() -> None:
        try:
            with transaction.atomic(using=USING):
                act()
                acted.set()
                assert commit.wait(60)
        finally:
            connections.close_all()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert acted.wait(60)
        yield
    finally:
        commit.set()
        thread.join()


def together(count: int, act: Callable[[int], T]) -> list[T]:
    """Return what threads, each with a connection of its own, come to when they start at once."""
    start = threading.Barrier(count)

    def run(number: int) -> T:
        try:
            connections[USING].ensure_connection()
            start.wait(30)
            return act(number)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))
