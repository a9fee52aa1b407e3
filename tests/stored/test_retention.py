"""Retention: what was resolved long ago goes, as the setting says; what is open stays."""

import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db.models import F

from django_jobq import conf
from django_jobq.models import DeadLetter, JobStart
from django_jobq.store import dead_letters, starts
from django_jobq.worker import retention
from django_jobq.worker.retention import Retention
from django_jobq.worker.stats import WorkerStats
from tests.store.tools import USING, file, letter
from tests.stored.conftest import StoringBackend, work

pytestmark = pytest.mark.django_db(transaction=True, databases=[USING])


def resolve(number: int, *, days: float) -> None:
    """Let so many letters be resolved so long ago."""
    rows = file(*(letter() for _ in range(number)))
    dead_letters.discard([row.pk for row in rows], using=USING)
    resolved = DeadLetter.objects.using(USING).filter(id__in=[row.pk for row in rows])
    resolved.update(resolved_at=F("resolved_at") - timedelta(days=days))


def test_a_worker_deletes_what_was_resolved_long_ago(
    burst: Callable[..., WorkerStats], storing: StoringBackend
) -> None:
    resolve(3, days=31)
    opened = letter()
    file(opened)
    burst()
    assert [row.filing_key for row in file()] == [opened.filing_key]


def test_a_start_that_no_outcome_ended_is_forgotten_after_a_day(storing: StoringBackend) -> None:
    old, new = uuid.uuid4(), uuid.uuid4()
    for job_id in (old, new):
        starts.count("default", job_id, using=USING)
    counted = JobStart.objects.using(USING).filter(job_id=old)
    counted.update(started_at=F("started_at") - timedelta(hours=25))
    work(Retention(storing))
    assert [starts.read("default", job_id, using=USING) for job_id in (old, new)] == [0, 1]


def test_full_batches_follow_each_other_at_once(
    storing: StoringBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "BATCH", 2)
    resolve(3, days=31)
    service = Retention(storing)
    assert (work(service), len(file())) == (0, 1)
    assert (work(service), len(file())) == (0, 0)
    assert work(service) > 60


@pytest.mark.parametrize(("value", "left"), [("2d", 0), ("4d", 1), (None, 1), (timedelta(1), 0)])
def test_the_setting_says_for_how_long(
    storing: StoringBackend, settings: Any, value: object, left: int
) -> None:
    settings.JOBQ_RETENTION = value
    resolve(1, days=3)
    work(Retention(storing))
    assert len(file()) == left


def test_the_setting_is_a_duration(settings: Any) -> None:
    assert conf.retention() == timedelta(days=30)
    settings.JOBQ_RETENTION = "a month"
    with pytest.raises(ImproperlyConfigured, match="JOBQ_RETENTION: 'a month' is no duration"):
        conf.retention()
