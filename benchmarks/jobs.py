"""The job of django_jobq, where its worker looks for it, and the receiver of its signal."""

from __future__ import annotations

from benchmarks import work
from django_jobq import job
from django_jobq.signals import job_succeeded


@job
def record(number: int) -> None:
    work.record(number)


@job(backend="stored")
def record_stored(number: int) -> None:
    work.record(number)


job_succeeded.connect(work.hear)
