"""Holds: which of two takes the place of the other, and what an operator may do."""

import dataclasses
from datetime import timedelta

import pytest
from django.db import OperationalError

from django_jobq.envelope import Envelope
from django_jobq.models import StoredJob
from django_jobq.store import holds, rows
from django_jobq.store.rows import HOLD, KEPT, NewJob
from tests.store.tools import (
    USING,
    claim,
    claim_left,
    drop,
    elapse,
    enqueue,
    envelope,
    gone,
    put,
    remove,
    retire,
    stored,
    together,
)

pytestmark = pytest.mark.django_db(transaction=True, databases=[USING])

JOB = envelope(attempt=3, deferrals=2)
NEWER = [envelope(job_id=JOB.job_id, attempt=a, deferrals=d) for a, d in [(3, 3), (4, 0), (5, 9)]]
OLDER = [envelope(job_id=JOB.job_id, attempt=a, deferrals=d) for a, d in [(3, 1), (2, 9), (1, 0)]]


def only() -> tuple[int, int, str]:
    """Return attempt, deferrals and kind of the one row there is, whose body is that, too."""
    (row,) = stored()
    body = Envelope.decode(bytes(row.body))
    assert (body.attempt, body.deferrals) == (row.attempt, row.deferrals)
    return row.attempt, row.deferrals, row.kind


def test_a_hold_is_stored_and_waits() -> None:
    assert put(JOB, 30, front=True, reason="rate limited")
    (row,) = stored()
    assert (row.kind, row.front, row.reason) == (HOLD, True, "rate limited")
    assert row.due_at - row.created_at == timedelta(seconds=30)
    assert claim() == []
    elapse(30)
    assert [found.pk for found in claim()] == [row.pk]


def test_delayed_jobs_are_held_together() -> None:
    jobs = [NewJob(envelope=envelope(), delay=delay) for delay in (5, 0)]
    holds.new("default", jobs, using=USING)
    assert [row.job_id for row in claim()] == [jobs[1].envelope.job_id]


@pytest.mark.parametrize("newer", NEWER)
def test_a_newer_hold_takes_the_place(newer: Envelope) -> None:
    put(JOB, reason="first")
    assert put(newer, 60, reason="second")
    assert only() == (newer.attempt, newer.deferrals, HOLD)
    assert (stored()[0].reason, claim()) == ("second", [])


@pytest.mark.parametrize("other", [JOB, *OLDER])
def test_a_hold_that_is_not_newer_changes_nothing(other: Envelope) -> None:
    put(JOB)
    (before,) = stored()
    assert not put(other, 60)
    (after,) = stored()
    assert (after.token, after.due_at, only()) == (before.token, before.due_at, (3, 2, HOLD))


def test_what_comes_from_a_leased_hold_takes_its_place() -> None:
    """The relay has published it and not deleted it yet; its delete must not hit the new hold."""
    put(JOB)
    claimed = claim()
    assert put(JOB, 60, again=True)
    assert retire(*claimed) == 0
    assert claim() == []
    elapse(61)
    assert [row.job_id for row in claim()] == [JOB.job_id]


@pytest.mark.parametrize("relayed", [False, True])
def test_what_comes_from_the_outbox_takes_its_place(relayed: bool) -> None:
    """Neither the commit hook nor the relay deletes the hold of a job that no worker knows yet."""
    token = enqueue(JOB)
    claimed = claim_left() if relayed else []
    assert put(JOB, 60, again=True)
    assert remove({token}, JOB) + drop(*claimed) == 0
    assert only() == (3, 2, HOLD)


def test_a_delivery_that_comes_after_its_successor_was_published_is_done() -> None:
    """So a worker that died before it acknowledged leaves one chain, however short the delay."""
    delivered = dataclasses.replace(JOB, deferrals=JOB.deferrals - 1)
    put(JOB)
    retire(*claim())
    assert holds.has_successor("default", delivered, using=USING)
    assert not put(JOB, 60)
    assert stored() == claim() == []
    assert put(JOB.deferred(), 60)
    assert (len(stored()), gone()) == (1, [])


def test_what_comes_from_a_hold_that_is_gone_is_held_again() -> None:
    put(JOB)
    retire(*claim())
    assert not holds.has_successor("default", JOB, using=USING)
    assert put(JOB, 60, again=True)
    assert (len(stored()), gone()) == (1, [])


def test_a_lease_that_is_over_ends_the_right_to_retire() -> None:
    put(JOB)
    claimed = claim(length=10)
    elapse(11)
    assert retire(*claimed) == 0
    assert len(stored()) == 1


def test_a_hold_that_is_gone_keeps_no_arguments_and_is_forgotten_in_the_end() -> None:
    put(JOB)
    retire(*claim())
    (row,) = gone()
    assert bytes(row.body) == b""
    elapse(KEPT.total_seconds() - 60)
    assert holds.forget("default", using=USING) == 0
    assert holds.next_due("default", using=USING) is None
    elapse(61)
    assert holds.forget("other", using=USING) == 0
    assert holds.forget("default", using=USING) == 1
    assert gone() == []


def test_what_was_given_back_stays_and_will_be_published() -> None:
    put(JOB)
    (row,) = claim()
    rows.give_back([row], "refused", 10, using=USING)
    assert not put(JOB, 60)
    elapse(11)
    assert [found.job_id for found in claim()] == [JOB.job_id]


@pytest.mark.parametrize("other", OLDER)
def test_what_is_older_does_not_replace_a_leased_row(other: Envelope) -> None:
    put(JOB)
    claimed = claim()
    assert not put(other)
    assert drop(*claimed) == 1


def test_the_newest_of_holds_that_come_at_once_is_kept() -> None:
    jobs = [envelope(job_id=JOB.job_id, attempt=attempt) for attempt in range(1, 9)]
    results = together(8, lambda number: put(jobs[number]))
    assert results[-1]
    assert only() == (8, 0, HOLD)


def test_one_of_equal_holds_that_come_at_once_is_stored() -> None:
    results = together(8, lambda _: put(JOB))
    assert sorted(results) == [False] * 7 + [True]
    assert only() == (3, 2, HOLD)


def test_a_row_that_changes_with_every_try_is_an_error(monkeypatch) -> None:
    """No answer but an error: either one would let the worker acknowledge."""
    monkeypatch.setattr(holds, "insert", lambda *args, **kwargs: None)
    with pytest.raises(OperationalError, match=f"{JOB.job_id} changed with every try"):
        put(JOB)


def test_the_same_job_of_another_alias_is_another_job() -> None:
    put(JOB)
    assert holds.put("other", NewJob(envelope=OLDER[0]), using=USING)
    assert [row.alias for row in stored()] == ["default", "other"]


@pytest.mark.parametrize(("held", "expected"), [(NEWER[0], True), (JOB, False), (OLDER[0], False)])
def test_a_successor_is_known(held: Envelope, expected: bool) -> None:
    assert not holds.has_successor("default", JOB, using=USING)
    put(held)
    assert holds.has_successor("default", JOB, using=USING) is expected
    assert not holds.has_successor("other", JOB, using=USING)


def test_the_next_hold_is_the_one_that_is_due_first() -> None:
    assert holds.next_due("default", using=USING) is None
    enqueue(envelope())
    assert holds.next_due("default", using=USING) is None
    for delay in (500, 100, 300):
        put(envelope(), delay)
    assert 50 < (holds.next_due("default", using=USING) or 0) <= 100
    elapse(200)
    assert holds.next_due("default", using=USING) == 0.0
    claim(length=20)
    assert 5 < (holds.next_due("default", using=USING) or 0) <= 20


# What an operator may do


def test_a_hold_is_cancelled() -> None:
    put(JOB, 60)
    put(envelope(), 60)
    first, second = stored()
    assert holds.cancel([first.pk], using=USING) == 1
    assert [row.pk for row in stored()] == [second.pk]
    assert [row.pk for row in gone()] == [first.pk]
    assert not put(JOB)  # a delivery that comes late does not bring it back


def test_a_hold_runs_now() -> None:
    put(JOB, 60)
    (row,) = stored()
    assert holds.run_now([row.pk], using=USING) == 1
    (claimed,) = claim()
    assert claimed.due_at <= claimed.read_at


def test_a_hold_is_rescheduled() -> None:
    put(JOB)
    (row,) = stored()
    assert holds.reschedule([row.pk], timedelta(hours=1), using=USING) == 1
    assert claim() == []
    (moved,) = stored()
    assert moved.due_at == moved.claimable_at
    assert moved.due_at - row.due_at > timedelta(minutes=59)
    elapse(3601)
    assert [found.pk for found in claim()] == [row.pk]


@pytest.fixture(params=["cancel", "run now", "reschedule"])
def act(request: pytest.FixtureRequest):
    return {
        "cancel": lambda ids: holds.cancel(ids, using=USING),
        "run now": lambda ids: holds.run_now(ids, using=USING),
        "reschedule": lambda ids: holds.reschedule(ids, timedelta(hours=1), using=USING),
    }[request.param]


def test_a_leased_row_is_refused(act) -> None:
    put(JOB)
    (row,) = claim()
    assert act([row.pk]) == 0
    assert drop(row) == 1


def test_a_row_of_the_outbox_is_refused(act) -> None:
    token = enqueue(JOB)
    (row,) = stored()
    assert act([row.pk]) == 0
    assert remove({token}, JOB) == 1


def test_a_row_that_was_given_back_is_not(act) -> None:
    put(JOB)
    (row,) = claim()
    rows.give_back([row], "refused", 600, using=USING)
    assert act([row.pk]) == 1
    assert [found.claimable_at == found.due_at for found in stored()] in ([], [True])


def test_a_row_whose_lease_is_over_is_not_and_the_late_relay_changes_nothing(act) -> None:
    put(JOB)
    claimed = claim()
    elapse(61)
    assert act([claimed[0].pk]) == 1
    assert drop(*claimed) == 0
    assert [row for row in stored() if row.leased_by] == []


def test_of_a_cancel_and_a_claim_at_once_one_wins() -> None:
    def race(number: int) -> list[StoredJob] | int:
        return claim() if number else holds.cancel([row.pk for row in stored()], using=USING)

    for _ in range(10):
        put(envelope())
        cancelled, claimed = together(2, race)
        assert bool(cancelled) is not bool(claimed)
        drop(*claimed or [])
