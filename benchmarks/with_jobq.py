"""Enqueueing with django_jobq: every publish is mandatory, persistent and confirmed."""

from __future__ import annotations

from django.db import transaction

from benchmarks.jobs import record
from django_jobq import enqueue_many


def enqueue(number: int) -> None:
    """Enqueue one job and wait for its confirm."""
    record.enqueue(number)


def enqueue_in_transaction(numbers: range) -> None:
    """Enqueue in one transaction, whose commit publishes all and waits once."""
    with transaction.atomic():
        for number in numbers:
            record.enqueue(number)


def fill(numbers: range) -> None:
    """Enqueue as fast as it goes."""
    for start in range(numbers.start, numbers.stop, 500):
        stop = min(start + 500, numbers.stop)
        enqueue_many([record.prepare(number) for number in range(start, stop)])
