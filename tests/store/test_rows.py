"""Claims, leases and deletes: who has a row, and who is too late."""

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import DEFAULT_DB_ALIAS, IntegrityError, connections
from django.db.models.signals import post_delete, pre_delete
from django.test.utils import CaptureQueriesContext

from django_jobq.models import StoredJob
from django_jobq.store import holds, outbox, rows
from django_jobq.store.rows import CHUNK, HOLD, OUTBOX, Lease, NewJob
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


def test_a_due_row_is_leased_and_then_gone() -> None:
    job = envelope(priority=7, attempt=2)
    put(job, front=True)
    (row,) = claim(owner="relay on host")
    assert (row.job_id, bytes(row.body), row.priority, row.front) == (
        job.job_id,
        job.encode(),
        7,
        True,
    )
    assert row.leased_by == "relay on host"
    assert row.claimable_at is not None
    assert timedelta(seconds=59) < row.claimable_at - row.read_at <= timedelta(seconds=60)
    assert drop(row) == 1
    assert stored() == []


def test_a_claim_takes_the_longest_due_first_and_no_more_than_its_limit() -> None:
    jobs = [envelope() for _ in range(4)]
    for job, delay in zip(jobs, (3, 1, 0, 2), strict=True):
        put(job, delay)
    elapse(10)
    first, second = claim(limit=3), claim(limit=3)
    assert [row.job_id for row in first] == [jobs[n].job_id for n in (2, 1, 3)]
    assert [row.job_id for row in second] == [jobs[0].job_id]


def test_a_claim_takes_rows_of_its_alias_and_kind() -> None:
    put(envelope())
    enqueue(envelope())
    holds.new("other", [NewJob(envelope=envelope())], using=USING)
    assert [row.kind for row in claim_left()] == [OUTBOX]
    assert [row.kind for row in claim()] == [HOLD]
    assert [row.alias for row in stored() if not row.leased_by] == ["other"]


@pytest.mark.contract(168)
def test_a_claim_is_bounded_whatever_its_limit() -> None:
    holds.new("default", (NewJob(envelope=envelope()) for _ in range(CHUNK + 1)), using=USING)
    assert [len(claim(limit=10_000)) for _ in range(3)] == [CHUNK, 1, 0]


@pytest.mark.parametrize("kind", [HOLD, OUTBOX])
@pytest.mark.contract(165)
def test_a_leased_row_is_taken_over_once_its_lease_is_over_and_not_before(kind: str) -> None:
    put(envelope()) if kind == HOLD else enqueue(envelope())
    (first,) = claim() if kind == HOLD else claim_left()
    elapse(55)
    assert claim(kind) == []
    elapse(6)
    (second,) = claim(kind, owner="another")
    assert (second.pk, second.leased_by) == (first.pk, "another")
    assert second.token != first.token
    assert drop(first) == 0
    assert drop(second) == 1


@pytest.mark.contract(160)
def test_one_of_twelve_claims_of_one_row_wins() -> None:
    put(envelope())
    won = together(12, lambda number: claim(owner=str(number)))
    assert sorted(map(len, won)) == [0] * 11 + [1]
    ((owner, row),) = [(n, rows[0]) for n, rows in enumerate(won) if rows]
    assert stored()[0].leased_by == row.leased_by == str(owner)


@pytest.mark.contract(160, 168)
def test_four_claimers_take_each_of_500_rows_once() -> None:
    holds.new("default", (NewJob(envelope=envelope()) for _ in range(500)), using=USING)

    def take(_: int) -> list[uuid.UUID]:
        taken = []
        while stored_unleased():
            taken += [row.job_id for row in claim(limit=20)]
        return taken

    taken = [job_id for part in together(4, take) for job_id in part]
    assert (len(taken), len(set(taken))) == (500, 500)


def stored_unleased() -> bool:
    return StoredJob.objects.using(USING).filter(leased_by="").exists()


def test_what_changed_after_it_was_found_is_not_taken() -> None:
    put(envelope())
    with rows.picked(StoredJob.objects.using(USING), 10, using=USING) as (ids, tokens):
        assert holds.reschedule(ids, timedelta(hours=1), using=USING) == 1
        found = StoredJob.objects.using(USING).filter(id__in=ids, token__in=tokens)
        assert found.update(leased_by="relay") == 0
    assert claim() == []


def test_a_claim_leaves_out_what_somebody_else_is_changing() -> None:
    put(envelope())
    put(envelope())
    first, second = stored()
    with in_open_transaction(lambda: holds.reschedule([first.pk], timedelta(0), using=USING)):
        # SQLite has one writer at a time, so there everybody waits.
        if connections[USING].vendor != "sqlite":
            assert [row.pk for row in claim()] == [second.pk]
    assert first.pk in [row.pk for row in claim()]


@pytest.mark.contract(168)
def test_hooks_and_relays_that_meet_delete_each_row_once_and_wait_for_nobody() -> None:
    """Without the grace, which keeps them apart in life."""

    def hook(_: int) -> int:
        removed = 0
        for _ in range(15):
            jobs = [envelope() for _ in range(5)]
            removed += remove({enqueue(*jobs)}, *reversed(jobs))
        return removed

    def relay(_: int) -> int:
        return sum(drop(*claim_left(limit=20)) for _ in range(30))

    gone = sum(together(4, lambda number: relay(number) if number % 2 else hook(number)))
    assert gone + drop(*claim_left(limit=CHUNK)) == 2 * 15 * 5
    assert stored() == []


def test_a_drop_after_the_row_was_replaced_changes_nothing() -> None:
    job = envelope()
    put(job)
    claimed = claim()
    assert put(job.next_attempt())
    assert drop(*claimed) == 0
    assert stored()[0].attempt == 2


@pytest.mark.contract(167)
def test_a_drop_after_the_lease_is_over_changes_nothing() -> None:
    """What was published may be held again by then, in the belief that this row stays."""
    job = envelope()
    put(job)
    claimed = claim()
    elapse(61)
    assert not put(job, 30)
    assert drop(*claimed) == 0
    assert [row.job_id for row in claim()] == [job.job_id]


def test_a_drop_of_many_rows_is_one_statement_each_for_what_was_claimed_together() -> None:
    for _ in range(6):
        put(envelope())
    claimed = claim(limit=4) + claim()
    with CaptureQueriesContext(connections[USING]) as queries:
        assert drop(*claimed) == 6
    assert len(queries) == 2


def test_receivers_of_deletes_do_not_come_between_a_row_and_its_token() -> None:
    """Django would read the rows for them, and then delete by id whatever they have become."""
    put(envelope())
    claimed = claim()
    heard: list[Any] = []

    def receive(sender: Any, **_: Any) -> None:
        heard.append(sender)

    pre_delete.connect(receive)
    post_delete.connect(receive)
    try:
        with CaptureQueriesContext(connections[USING]) as queries:
            assert drop(*claimed) == 1
    finally:
        pre_delete.disconnect(receive)
        post_delete.disconnect(receive)
    assert (len(queries), heard) == (1, [])


@pytest.mark.contract(171)
@pytest.mark.parametrize("kind", [HOLD, OUTBOX])
def test_what_could_not_be_published_is_given_back_for_later(kind: str) -> None:
    put(envelope()) if kind == HOLD else enqueue(envelope())
    (row,) = claim() if kind == HOLD else claim_left()
    assert rows.give_back([row], "refused", 20, using=USING)
    (waiting,) = stored()
    assert (waiting.kind, waiting.leased_by, waiting.failures, waiting.last_error) == (
        kind,
        "",
        1,
        "refused",
    )
    assert drop(row) == 0
    assert claim(kind) == []
    elapse(21)
    (again,) = claim(kind)
    assert again.job_id == row.job_id


@pytest.mark.contract(167)
def test_a_row_that_was_taken_over_is_not_given_back() -> None:
    put(envelope())
    (late,) = claim()
    elapse(61)
    (row,) = claim()
    assert not rows.give_back([late], "refused", 20, using=USING)
    assert drop(row) == 1


def test_many_jobs_are_stored_all_or_none() -> None:
    job = envelope()
    with pytest.raises(IntegrityError):
        enqueue(*(envelope() for _ in range(CHUNK)), job, job)
    assert stored() == []


@pytest.mark.contract(172)
def test_due_times_and_leases_are_of_the_clock_of_the_database(monkeypatch) -> None:
    def fail() -> datetime:
        raise AssertionError("the clock of this process was asked")

    monkeypatch.setattr("django.utils.timezone.now", fail)
    put(envelope())
    enqueue(envelope())
    (row,) = claim()
    (left,) = claim_left()
    assert row.due_at <= row.read_at
    assert drop(row, left) == 2


@pytest.mark.contract(172)
def test_moments_are_right_in_a_session_of_any_time_zone() -> None:
    connection = connections[USING]
    with connection.cursor() as cursor:
        # The others are told the time zone of their sessions by Django.
        cursor.execute("SET time_zone = '+05:00'" if connection.vendor == "mysql" else "SELECT 1")
    try:
        put(envelope(), 3600)
        (row,) = stored()
    finally:
        connection.close()
    assert abs(row.due_at - datetime.now(UTC) - timedelta(hours=1)) < timedelta(minutes=5)
    assert claim() == []


@pytest.mark.contract(173)
@pytest.mark.parametrize("delay", [0.0, 0.0000004, 0.0005, 0.1234567, 1.1, 3_000_000.000001])
def test_no_part_of_a_delay_is_lost(delay: float) -> None:
    put(envelope(), delay)
    (row,) = stored()
    assert 0 <= (row.due_at - row.created_at) / timedelta(microseconds=1) - delay * 1e6 < 2


def test_a_delay_beyond_all_calendars_is_a_hundred_years() -> None:
    put(envelope(), 1e300)
    (row,) = stored()
    assert row.due_at - row.created_at == timedelta(days=36_500)


@pytest.mark.contract(171, 173)
@pytest.mark.parametrize("delay", [0.05, 0.2503])
def test_a_hold_is_never_claimed_early(delay: float) -> None:
    put(envelope(), delay)
    give_up = datetime.now(UTC) + timedelta(seconds=20)
    while not (claimed := claim()):
        assert datetime.now(UTC) < give_up
    (row,) = claimed
    assert row.read_at - row.created_at >= timedelta(seconds=delay)


def test_everything_is_done_on_the_database_that_is_named() -> None:
    """Any query of the default database fails here."""
    assert USING != DEFAULT_DB_ALIAS
    lease = Lease(owner="relay", length=timedelta(0), limit=1)
    assert rows.claim("default", HOLD, lease, using=USING) == []
    assert outbox.sight("default", using=USING) == 0
    assert holds.next_due("default", using=USING) is None


def test_a_row_tells_people_what_it_is() -> None:
    job = envelope()
    put(job)
    assert str(stored()[0]) == f"shop.jobs.ship ({job.job_id})"
