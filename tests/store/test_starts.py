"""Starts without outcome: counted one by one, forgotten with the outcome, pruned when old."""

import uuid
from datetime import timedelta

import pytest
from django.db.models import F

from django_jobq.models import JobStart
from django_jobq.store import starts
from tests.store.tools import USING, together

pytestmark = pytest.mark.django_db(transaction=True, databases=[USING])

JOB = uuid.uuid4()


@pytest.mark.contract(76)
def test_every_start_is_counted_until_it_is_forgotten() -> None:
    assert starts.read("default", JOB, using=USING) == 0
    assert [starts.count("default", JOB, using=USING) for _ in range(3)] == [1, 2, 3]
    assert starts.read("default", JOB, using=USING) == 3
    starts.forget("default", JOB, using=USING)
    assert starts.read("default", JOB, using=USING) == 0


def test_another_job_and_another_alias_have_counts_of_their_own() -> None:
    starts.count("default", JOB, using=USING)
    assert starts.count("other", JOB, using=USING) == 1
    assert starts.count("default", uuid.uuid4(), using=USING) == 1
    starts.forget("other", JOB, using=USING)
    assert starts.read("default", JOB, using=USING) == 1


def test_starts_at_the_same_time_are_all_counted() -> None:
    together(4, lambda _: starts.count("default", JOB, using=USING))
    assert starts.read("default", JOB, using=USING) == 4


def test_what_was_counted_long_ago_is_pruned() -> None:
    starts.count("default", JOB, using=USING)
    starts.count("default", uuid.uuid4(), using=USING)
    old = JobStart.objects.using(USING).filter(job_id=JOB)
    old.update(started_at=F("started_at") - timedelta(days=2))

    assert starts.prune(timedelta(days=1), using=USING) == 1
    assert starts.prune(timedelta(days=1), using=USING) == 0
    assert starts.read("default", JOB, using=USING) == 0
