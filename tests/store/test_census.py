"""How many jobs the database remembers, by queue."""

import pytest
from django.db import connections
from django.test.utils import CaptureQueriesContext

from django_jobq.store import census, dead_letters, outbox
from django_jobq.store.census import Stored
from django_jobq.store.rows import NewJob
from tests.store.tools import USING, claim, elapse, enqueue, envelope, file, letter, put

pytestmark = pytest.mark.django_db(transaction=True, databases=[USING])


def test_nothing_stored_is_nothing() -> None:
    assert census.by_queue("default", using=USING) == {}


@pytest.mark.contract(22)
def test_each_queue_has_its_holds_and_what_is_undelivered() -> None:
    for _ in range(3):
        put(envelope(queue="email"), 300)
    put(envelope(queue="email"))
    claim(limit=1)  # what is being published is still held
    enqueue(envelope(queue="email"), envelope())
    outbox.put_undelivered("default", [NewJob(envelope=envelope())], "down", using=USING)
    outbox.put("other", [NewJob(envelope=envelope(queue="elsewhere"))], using=USING)
    with CaptureQueriesContext(connections[USING]) as queries:
        found = census.by_queue("default", using=USING)
    assert len(queries) == 2
    assert {name: (stored.held, stored.undelivered) for name, stored in found.items()} == {
        "default": (0, 2),
        "email": (4, 1),
    }


def test_the_age_is_that_of_the_oldest_undelivered_job_on_the_clock_of_the_database() -> None:
    put(envelope(), 300)
    elapse(500)
    (held,) = census.by_queue("default", using=USING).values()
    assert held.oldest is None
    enqueue(envelope())
    elapse(120)
    enqueue(envelope())
    (stored,) = census.by_queue("default", using=USING).values()
    assert stored.oldest is not None
    assert 120 <= stored.oldest < 180


@pytest.mark.contract(22)
def test_open_letters_are_counted_and_resolved_ones_are_not() -> None:
    put(envelope(queue="email"), 300)
    rows = file(*(letter(queue="email") for _ in range(3)), letter(queue="retired"))
    file(letter(queue="email"), alias="other")
    dead_letters.discard([rows[0].pk], using=USING)
    assert census.by_queue("default", using=USING) == {
        "email": Stored(held=1, dead=2),
        "retired": Stored(dead=1),
    }


def test_two_databases_add_up() -> None:
    old = Stored(held=1, undelivered=2, oldest=60.0, dead=3)
    new = Stored(held=10, undelivered=20, oldest=5.0, dead=30)
    assert old + new == new + old == Stored(held=11, undelivered=22, oldest=60.0, dead=33)
    assert (old + Stored()).oldest == 60.0
    assert (Stored() + Stored()).oldest is None
