"""The outbox: rows that are there if and only if their transaction has committed."""

import uuid
from datetime import timedelta

import pytest
from django.db import connections, transaction

from django_jobq.envelope import Envelope
from django_jobq.store import outbox
from django_jobq.store.rows import CHUNK, OUTBOX, NewJob
from tests.store.tools import (
    USING,
    claim,
    claim_left,
    drop,
    elapse,
    enqueue,
    envelope,
    in_open_transaction,
    put,
    remove,
    stored,
    together,
)

pytestmark = pytest.mark.django_db(transaction=True, databases=[USING])


def present(tokens: set[str], *jobs: Envelope) -> set[uuid.UUID]:
    return outbox.present("default", tokens, [job.job_id for job in jobs], using=USING)


def sight() -> int:
    return outbox.sight("default", using=USING)


def test_the_hook_finds_its_rows_and_deletes_them() -> None:
    jobs = [envelope() for _ in range(3)]
    with transaction.atomic(using=USING):
        tokens = {enqueue(*jobs[:2]), enqueue(jobs[2])}
    assert present(tokens, *jobs) == {job.job_id for job in jobs}
    assert remove(tokens, *jobs[:2]) == 2
    assert present(tokens, *jobs) == {jobs[2].job_id}


def test_a_transaction_that_is_rolled_back_leaves_nothing() -> None:
    with transaction.atomic(using=USING):
        enqueue(envelope())
        transaction.set_rollback(True, using=USING)
    assert stored() == []


def test_what_a_savepoint_took_back_by_hand_is_not_present() -> None:
    kept, lost = envelope(), envelope()
    with transaction.atomic(using=USING), connections[USING].cursor() as cursor:
        tokens = {enqueue(kept)}
        cursor.execute("SAVEPOINT by_hand")
        tokens.add(enqueue(lost))
        cursor.execute("ROLLBACK TO SAVEPOINT by_hand")
    assert present(tokens, kept, lost) == {kept.job_id}


def test_more_jobs_than_one_statement_names() -> None:
    jobs = [envelope() for _ in range(CHUNK + 5)]
    with transaction.atomic(using=USING):
        tokens = {enqueue(job) for job in jobs[:5]} | {enqueue(*jobs[5:])}
    assert len(present(tokens, *jobs)) == CHUNK + 5
    assert sight() + sight() == CHUNK + 5
    assert remove(tokens, *jobs) == CHUNK + 5


def test_a_row_is_left_alone_for_a_grace_after_it_was_first_seen() -> None:
    enqueue(envelope())
    elapse(3600)
    assert claim(OUTBOX) == []
    assert [sight(), sight()] == [1, 0]
    assert claim(OUTBOX) == []
    elapse(outbox.GRACE.total_seconds() - 5)
    assert claim(OUTBOX) == []
    elapse(6)
    assert len(claim(OUTBOX)) == 1


def test_a_sighting_leaves_the_row_to_its_hook() -> None:
    job = envelope()
    token = enqueue(job)
    sight()
    assert present({token}, job) == {job.job_id}
    assert remove({token}, job) == 1


def test_a_row_is_seen_only_after_its_commit() -> None:
    with in_open_transaction(lambda: enqueue(envelope())):
        assert sight() == 0
        assert claim_left() == []
    assert sight() == 1


def test_an_open_transaction_does_not_hold_up_what_others_have_committed() -> None:
    token = enqueue(job := envelope())
    with in_open_transaction(lambda: enqueue(envelope())):
        assert present({token}, job) == {job.job_id}
        # SQLite has one writer at a time, so there everybody waits.
        if connections[USING].vendor != "sqlite":
            assert outbox.sight("default", using=USING, grace=timedelta(0)) == 1
            (row,) = claim(OUTBOX)
            assert drop(row) == 1
    assert len(claim_left()) == (2 if connections[USING].vendor == "sqlite" else 1)


def test_what_the_relay_has_taken_is_no_longer_the_hooks() -> None:
    job = envelope()
    token = enqueue(job)
    claimed = claim_left()
    assert present({token}, job) == set()
    assert remove({token}, job) == 0
    assert drop(*claimed) == 1


def test_the_hook_does_not_delete_what_its_job_came_to() -> None:
    job = envelope()
    token = enqueue(job)
    assert put(job.next_attempt(), 60)
    assert present({token}, job) == set()
    assert remove({token}, job) == 0
    assert [row.attempt for row in stored()] == [2]


def test_what_the_broker_could_not_take_is_stored_once() -> None:
    known, new = envelope(), envelope()
    put(known.next_attempt())
    jobs = [NewJob(envelope=job, delay=5, front=True) for job in (known, new)]
    outbox.put_undelivered("default", jobs, "no connection", using=USING)
    held, undelivered = stored()
    assert (held.attempt, held.last_error) == (2, "")
    assert (undelivered.job_id, undelivered.kind) == (new.job_id, OUTBOX)
    assert (undelivered.last_error, undelivered.front) == ("no connection", True)
    assert undelivered.due_at - undelivered.created_at == timedelta(seconds=5)
    # A second one is late: the row stays as it is.
    outbox.put_undelivered("default", jobs, "again", using=USING)
    assert [row.token for row in stored()] == [held.token, undelivered.token]
    assert claim(OUTBOX) == []
    elapse(outbox.GRACE.total_seconds() + 1)
    assert [row.pk for row in claim(OUTBOX)] == [undelivered.pk]


def test_two_relays_see_every_row_once() -> None:
    enqueue(*(envelope() for _ in range(300)))
    assert sum(together(2, lambda _: sight() + sight())) <= 300
    sight()
    assert {row.kind for row in stored()} == {OUTBOX}
