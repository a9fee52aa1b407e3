"""Hostile text and large bodies: a row is stored, whatever is in it."""

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from django_jobq.envelope import Envelope
from django_jobq.store import holds, outbox, rows
from django_jobq.store.rows import NewJob
from tests.store.tools import USING, claim, drop, elapse, envelope, put, stored

pytestmark = pytest.mark.django_db(transaction=True, databases=[USING])

HOSTILE = {
    "a\0b": r"a\x00b",
    "half \ud83d and \udc80": r"half \ud83d and \udc80",
    "emoji 🧨 ÿ Ω": "emoji 🧨 ÿ Ω",
    "'; DROP TABLE jobq_storedjob; --": "'; DROP TABLE jobq_storedjob; --",
    '\\ \\0 %s %(a)s {} "\r\n\t\x7f\x01': '\\ \\0 %s %(a)s {} "\r\n\t\x7f\x01',
    "trailing spaces  ": "trailing spaces  ",
    "\u202eright to left, \ufeff and \uffff": "\u202eright to left, \ufeff and \uffff",
}


@pytest.mark.contract(174)
@pytest.mark.parametrize(("hostile", "expected"), HOSTILE.items())
def test_hostile_text_is_stored_everywhere(hostile: str, expected: str) -> None:
    job = envelope(
        job=hostile, queue=hostile, args=[hostile], kwargs={hostile: 1}, correlation_id=hostile
    )
    assert put(job, reason=hostile)
    (row,) = stored()
    assert (row.job, row.queue, row.reason) == (expected, expected, expected)
    assert Envelope.decode(bytes(row.body)) == job
    (claimed,) = claim(owner=hostile)
    assert claimed.leased_by == expected
    assert rows.give_back([claimed], hostile, 1, using=USING)
    assert stored()[0].last_error == expected
    elapse(2)
    assert drop(*claim()) == 1


@pytest.mark.contract(174)
@pytest.mark.parametrize("character", ["x", "\0", "\ud800", "🧨"])
def test_text_of_any_length_is_cut(character: str) -> None:
    long = character * 100_000
    put(envelope(job=long, queue=long), reason=long)
    outbox.put_undelivered("default", [NewJob(envelope=envelope())], long, using=USING)
    held, undelivered = stored()
    assert [len(text) for text in (held.job, held.queue)] == [255, 255]
    assert [len(text) for text in (held.reason, undelivered.last_error)] == [2_000, 2_000]
    assert Envelope.decode(bytes(held.body)).job == long


def test_counts_beyond_a_column_are_the_largest_it_has() -> None:
    job = envelope(attempt=10**30, deferrals=10**30, priority=255)
    assert put(job)
    (row,) = stored()
    assert (row.attempt, row.deferrals, row.priority) == (2**63 - 1, 2**63 - 1, 255)
    assert not put(job)
    assert Envelope.decode(bytes(row.body)) == job


@pytest.mark.contract(174)
def test_a_body_of_nothing_but_odd_characters() -> None:
    job = envelope(args=["\0\ud800" * 100_000])
    put(job)
    (row,) = claim()
    assert Envelope.decode(bytes(row.body)) == job


def test_a_large_body() -> None:
    # PyMySQL writes bytes in hex, and the server takes statements of 16 MB unless it is told more.
    size = 7_000_000 if connections[USING].vendor == "mysql" else 10_000_000
    job = envelope(args=["x" * size])
    put(job)
    (row,) = claim()
    assert bytes(row.body) == job.encode()
    assert drop(row) == 1


def test_bodies_that_are_large_together_are_not_sent_together() -> None:
    jobs = [NewJob(envelope=envelope(args=["x" * 1_500_000])) for _ in range(20)]
    with CaptureQueriesContext(connections[USING]) as queries:
        holds.new("default", jobs, using=USING)
    assert sum(query["sql"].startswith("INSERT") for query in queries) == 10
    assert len(stored()) == 20
