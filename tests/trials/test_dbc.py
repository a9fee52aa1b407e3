"""Trials of database connections: the worker cleans up after itself, and after nobody else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, connections, transaction
from django.test import override_settings

from django_jobq import job
from tests.app.models import Row
from tests.trials.project import Project, within


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_b29_nothing_closes_a_connection_inside_a_transaction(
    drain: Callable[..., None], work: Callable[..., Any]
) -> None:
    """Enqueueing and running jobs inside a block leaves its transaction and connection alone."""

    @job(name="trial.writes")
    def writes() -> None:
        Row.objects.create(name="by the job")

    @job(name="trial.idle")
    def idle() -> None: ...

    with transaction.atomic(), transaction.atomic(using="other"):
        Row.objects.create(name="mine")
        Row.objects.using("other").create(name="mine")
        before = {alias: connections[alias].connection for alias in ("default", "other")}
        writes.using(on_commit=False).enqueue()
        idle.using(database="other").enqueue()
        drain()
        idle.using(on_commit=False).enqueue()
        within(10, work)
        assert {alias: connections[alias].connection for alias in before} == before
        assert connection.in_atomic_block
        assert Row.objects.count() == 2
        transaction.set_rollback(True)

    assert Row.objects.count() == 0
    assert Row.objects.using("other").count() == 1


@pytest.mark.django_db(transaction=True)
def test_b29_enqueueing_opens_and_closes_no_connection() -> None:
    """Enqueueing looks at the connection of its alias without opening or closing it."""

    @job(name="trial.idle")
    def idle() -> None: ...

    def enqueue_on_a_fresh_thread() -> Any:
        idle.enqueue()
        return connections["default"].connection

    assert within(10, enqueue_on_a_fresh_thread) is None


JOBS = """
import threading

from django.db import connection, connections, transaction

from django_jobq import job

seen = []


def query(count):
    for number in range(count):
        with connection.cursor() as cursor:
            cursor.execute("SELECT %s", [number])


def tell():
    seen.append((len(connection.queries_log), connection.in_atomic_block))
    if len(seen) == 40:
        print(f"seen {sorted(set(seen))}", flush=True)


@job
def sync_job():
    tell()
    query(5)


@job
async def async_job():
    from asgiref.sync import sync_to_async

    await sync_to_async(tell)()
    await sync_to_async(query)(5)


@job
def leaves_a_transaction_open():
    transaction.atomic().__enter__()
    query(1)


@job
def leaves_autocommit_off():
    transaction.set_autocommit(False)
    query(1)
"""


@pytest.mark.parametrize("kind", ["sync_job", "async_job"])
def test_b33_the_query_log_is_reset_between_jobs(kind: str, project: Project) -> None:
    """Under DEBUG a worker forgets the queries of each job before the next one runs there."""
    project.settings("DEBUG = True\n")
    project.write("shop/jobs.py", JOBS)
    project.write(
        "shop/first.py",
        f"from shop.jobs import {kind}\n\n\ndef first_jobs():\n"
        f"    return [{kind}.prepare() for _ in range(40)]\n",
    )

    status, output = project.run("runworker", "--burst", "--concurrency", "2")

    assert status == 0, output
    assert "seen [(0, False)]" in output, output
    assert "40 succeeded" in output


def test_b33_a_transaction_that_a_job_left_open_ends_with_it(project: Project) -> None:
    """A block or a switched-off autocommit that a job leaves behind does not reach the next."""
    project.settings(f'DATABASES["default"]["NAME"] = {str(project.path / "db.sqlite3")!r}\n')
    project.write("shop/jobs.py", JOBS)
    project.write(
        "shop/first.py",
        "from shop.jobs import *\n\n\ndef first_jobs():\n"
        "    return [leaves_a_transaction_open.prepare(), leaves_autocommit_off.prepare()]"
        " + [sync_job.prepare() for _ in range(40)]\n",
    )

    status, output = project.run("runworker", "--burst", "--concurrency", "1")

    assert status == 0, output
    assert "A job left a transaction open on 'default'; rolled back" in output
    assert "seen [(0, False)]" in output, output
    assert "42 succeeded" in output


@override_settings(DEBUG=True)
@pytest.mark.django_db
def test_b33_a_test_keeps_its_query_log(drain: Callable[..., None]) -> None:
    """Jobs that run on the thread of a test do not wipe the queries the test looks at."""

    @job(name="trial.counts")
    def counts() -> None:
        Row.objects.count()

    connection.queries_log.clear()
    Row.objects.count()
    counts.using(on_commit=False).enqueue()
    drain()

    assert len(connection.queries_log) == 2
    assert asyncio.iscoroutinefunction(counts.func) is False
