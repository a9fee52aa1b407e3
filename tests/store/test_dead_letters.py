"""Dead letters on file: listing, requeueing, discarding and pruning them."""

import threading
from datetime import timedelta
from typing import Any

import pytest
from django.db import connections, transaction
from django.db.models import F
from django.test.utils import CaptureQueriesContext

from django_jobq.envelope import Envelope
from django_jobq.models import DeadLetter
from django_jobq.store import dead_letters, holds, starts
from django_jobq.store.rows import HOLD, NewJob
from tests.store.tools import (
    USING,
    claim,
    drop,
    elapse,
    enqueue,
    envelope,
    file,
    in_open_transaction,
    letter,
    put,
    remove,
    stored,
    together,
)

pytestmark = pytest.mark.django_db(transaction=True, databases=[USING])


def requeue(*letters: DeadLetter, **options: Any) -> dead_letters.Requeued:
    return dead_letters.requeue([row.pk for row in letters], using=USING, **options)


def discard(*letters: DeadLetter) -> int:
    return dead_letters.discard([row.pk for row in letters], using=USING)


def resolutions() -> list[str]:
    return [row.resolution for row in file()]


def resolved_ago(**ago: float) -> None:
    """Let the letters be resolved so much earlier."""
    letters = DeadLetter.objects.using(USING)
    letters.update(resolved_at=F("resolved_at") - timedelta(**ago))


def prune(**options: Any) -> int:
    return dead_letters.prune(timedelta(days=30), using=USING, **options)


@pytest.mark.contract(115)
def test_open_letters_are_listed_oldest_first() -> None:
    rows = file(letter(), letter(), letter(), letter(queue="email"))
    file(letter(), alias="slow")
    requeue(rows[1])
    found = list(dead_letters.open_letters("default", using=USING))
    assert found == [rows[0], rows[2], rows[3]]
    assert dead_letters.count("default", using=USING) == 3
    assert dead_letters.count("default", "email", using=USING) == 1
    assert dead_letters.count("slow", "email", using=USING) == 0


@pytest.mark.contract(117)
def test_a_requeued_job_is_due_at_its_first_attempt() -> None:
    headers = {"errors": [{}], "unknown_since": 1, "not_before": 2, "starts": 3, "timeout": 9.0}
    job = envelope(
        attempt=5,
        deferrals=2,
        priority=4,
        args=["\0\ud800", 1],
        correlation_id="7",
        headers=headers,
    )
    (row,) = file(letter(job))
    assert requeue(row) == dead_letters.Requeued(count=1)
    (hold,) = claim()
    found = Envelope.decode(bytes(hold.body))
    assert (found.job_id, found.attempt, found.deferrals) == (job.job_id, 1, 0)
    assert (found.args, found.correlation_id, found.priority) == (job.args, "7", 4)
    assert found.headers == {"timeout": 9.0}
    assert (hold.alias, hold.queue, hold.kind, hold.attempt) == ("default", "default", HOLD, 1)
    assert hold.due_at <= hold.read_at
    (row,) = file()
    assert (row.resolution, row.resolved_at is None) == ("requeued", False)
    assert bytes(row.body) == job.encode()


@pytest.mark.contract(117)
def test_a_job_goes_back_to_the_queue_it_came_from() -> None:
    requeue(*file(letter(envelope(queue="elsewhere"), queue="email")))
    (hold,) = stored()
    assert (hold.queue, Envelope.decode(bytes(hold.body)).queue) == ("email", "email")


def test_a_job_can_be_requeued_with_other_arguments() -> None:
    requeue(*file(letter(envelope(args=[1], kwargs={"a": 1}))), arguments=([2], {"b": 2}))
    found = Envelope.decode(bytes(stored()[0].body))
    assert (found.args, found.kwargs) == ([2], {"b": 2})


@pytest.mark.contract(117)
def test_only_open_letters_are_requeued_and_discarded() -> None:
    first, second, third = file(letter(), letter(), letter())
    assert (requeue(first, second).count, discard(second, third)) == (2, 1)
    assert (requeue(first, second, third).count, discard(first, second, third)) == (0, 0)
    assert resolutions() == ["requeued", "requeued", "discarded"]
    assert len(stored()) == 2


@pytest.mark.contract(117)
def test_many_letters_are_requeued_in_few_statements() -> None:
    rows = file(*(letter() for _ in range(250)))
    with CaptureQueriesContext(connections[USING]) as queries:
        assert requeue(*rows).count == 250
    assert len(stored()) == 250
    assert len(queries) < 30


def test_letters_of_several_backends_are_requeued_for_each() -> None:
    job = envelope()
    file(letter(job))
    requeue(*file(letter(job), alias="slow"))
    assert {row.alias for row in stored()} == {"default", "slow"}


@pytest.mark.contract(119)
def test_a_body_that_is_no_envelope_is_not_requeued() -> None:
    broken, fine = file(letter(b"\0", cause="decode"), letter())
    found = requeue(broken, fine)
    assert found.count == 1
    assert list(found.refused) == [broken.pk]
    assert found.refused[broken.pk].startswith("default (decode) has no job that could run: mal")
    assert resolutions() == ["open", "requeued"]
    (row, _) = file()
    assert (row.resolved_at, row.token) == (None, "")
    assert (discard(broken), len(stored())) == (1, 1)


@pytest.mark.parametrize("older", [1, 3, 9])
def test_a_requeue_takes_the_place_of_what_is_held(older: int) -> None:
    job = envelope(attempt=3)
    put(envelope(job_id=job.job_id, attempt=older), 3600)
    assert requeue(*file(letter(job))).count == 1
    (hold,) = claim()
    assert (hold.attempt, drop(hold)) == (1, 1)


def test_a_requeue_takes_the_place_of_what_a_hook_publishes() -> None:
    job = envelope()
    token = enqueue(job)
    assert requeue(*file(letter(job))).count == 1
    assert remove({token}, job) == 0
    assert [row.kind for row in stored()] == [HOLD]


def test_a_job_that_is_being_published_is_not_requeued() -> None:
    job = envelope()
    put(job)
    claimed = claim()
    (row,) = file(letter(job))
    found = requeue(row)
    assert (found.count, list(found.refused)) == (0, [row.pk])
    assert "try again" in found.refused[row.pk]
    assert resolutions() == ["open"]
    assert drop(*claimed) == 1
    assert requeue(row).count == 1


def test_a_requeued_job_begins_to_count_its_starts_anew() -> None:
    job = envelope()
    for alias in ("default", "slow"):
        starts.count(alias, job.job_id, using=USING)
    requeue(*file(letter(job)))
    counted = [starts.read(alias, job.job_id, using=USING) for alias in ("default", "slow")]
    assert counted == [0, 1]


def test_two_letters_of_one_job_are_one_hold() -> None:
    job = envelope()
    assert requeue(*file(letter(job), letter(job))).count == 2
    assert len(stored()) == 1


@pytest.mark.contract(117)
def test_a_letter_that_is_requeued_by_two_at_once_is_held_once() -> None:
    rows = file(*(letter() for _ in range(20)))
    counts = together(4, lambda number: requeue(*rows[:: 1 if number % 2 else -1]).count)
    assert sum(counts) == 20
    assert len(stored()) == 20


@pytest.mark.contract(117)
def test_who_requeues_what_another_is_requeueing_finds_it_done() -> None:
    if connections[USING].vendor == "sqlite":
        pytest.skip("the whole database has one writer at a time")
    (row,) = file(letter())
    found: list[dead_letters.Requeued] = []
    second = threading.Thread(target=lambda: found.append(_requeue_and_close(row)))
    with in_open_transaction(lambda: requeue(row)):
        second.start()
        second.join(0.5)
        assert second.is_alive()
    second.join(30)
    assert (found, len(stored())) == ([dead_letters.Requeued()], 1)


def _requeue_and_close(row: DeadLetter) -> dead_letters.Requeued:
    try:
        return requeue(row)
    finally:
        connections.close_all()


@pytest.mark.contract(116)
def test_a_requeue_that_fails_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise RuntimeError("killed")

    rows = file(letter())
    monkeypatch.setattr(holds, "replace", fail)
    with pytest.raises(RuntimeError):
        requeue(*rows)
    assert (resolutions(), stored()) == (["open"], [])


def test_a_requeue_is_part_of_the_transaction_of_its_caller() -> None:
    rows = file(letter())
    with transaction.atomic(using=USING):
        assert requeue(*rows).count == 1
        transaction.set_rollback(True, using=USING)
    assert (resolutions(), stored()) == (["open"], [])


@pytest.mark.contract(116)
def test_a_late_copy_does_not_open_a_resolved_letter() -> None:
    dead = letter()
    requeue(*file(dead))
    assert [row.resolution for row in file(dead)] == ["requeued"]


def test_a_hold_that_was_requeued_gives_way_to_what_it_comes_to() -> None:
    job = envelope(attempt=3)
    requeue(*file(letter(job)))
    (row,) = claim()
    again = Envelope.decode(bytes(row.body))
    assert holds.put("default", NewJob(envelope=again.next_attempt(), delay=60), using=USING)
    assert drop(row) == 0
    elapse(61)
    assert [found.attempt for found in claim()] == [2]


@pytest.mark.contract(117)
def test_resolved_letters_are_pruned_once_they_are_old() -> None:
    kept, requeued, discarded = file(letter(), letter(), letter())
    requeue(requeued)
    discard(discarded)
    assert prune() == 0
    resolved_ago(days=29, hours=23)
    assert prune() == 0
    resolved_ago(hours=2)
    assert dead_letters.prunable(timedelta(days=30), using=USING).count() == 2
    assert prune() == 2
    assert file() == [kept]


def test_letters_are_pruned_in_batches() -> None:
    discard(*file(*(letter() for _ in range(25))))
    resolved_ago(days=31)
    assert [prune(batch=10) for _ in range(4)] == [10, 10, 5, 0]
