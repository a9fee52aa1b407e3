"""Trials of stored jobs: what went wrong for users of comparable systems, tried on the database."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.management import call_command
from django.db import connections, models, transaction
from django.db.migrations import Migration, RunPython
from django.db.migrations.state import ProjectState
from django.db.models import F
from django.test import override_settings

from django_jobq import Defer, Job, RetryPolicy, job
from django_jobq.envelope import Envelope
from django_jobq.exceptions import BackendUnavailable
from django_jobq.models import DeadLetter, StoredJob
from django_jobq.store import dead_letters, holds, outbox
from django_jobq.store.rows import CHUNK, FRESH, OUTBOX, NewJob
from django_jobq.worker.relay import Relay
from django_jobq.worker.stats import WorkerStats
from tests.store.tools import USING, elapse, enqueue, envelope, file, gone, letter, stored
from tests.stored.conftest import StoringBackend

pytestmark = pytest.mark.django_db(transaction=True, databases=[USING])

AN_HOUR = 3600.0
Burst = Callable[..., WorkerStats]


@pytest.fixture
def note() -> Job[[str], None]:
    @job(name="trial.note")
    def note(text: str) -> None: ...

    return note


class Elsewhere:
    """Send every model to another database than the one that stores jobs."""

    def db_for_read(self, model: type[models.Model], **hints: Any) -> str:
        return "default"

    def db_for_write(self, model: type[models.Model], **hints: Any) -> str:
        return "default"


def published(backend: StoringBackend) -> list[Any]:
    return [envelope.args[0] for envelope in backend.pending("default")]


def texts() -> list[Any]:
    return [Envelope.decode(bytes(row.body)).args[0] for row in stored()]


@pytest.mark.contract(51)
@pytest.mark.parametrize("delay", [0, "1h"])
def test_b13_a_savepoint_takes_its_rows_with_it(
    storing: StoringBackend, note: Job[[str], None], delay: int | str
) -> None:
    call = note.using(delay=delay) if delay else note
    with transaction.atomic(using=USING):
        call.enqueue("outer")
        with suppress(ValueError), transaction.atomic(using=USING):
            call.enqueue("inner")
            raise ValueError
        call.enqueue("after")

    assert (texts() if delay else published(storing)) == ["outer", "after"]
    assert len(stored()) == (2 if delay else 0)


@pytest.mark.contract(52)
def test_b15_a_job_whose_broker_is_away_at_the_commit_runs_later(
    storing: StoringBackend, note: Job[[str], None], burst: Burst
) -> None:
    storing.refuse = lambda _: BackendUnavailable("stopped")
    called: list[bool] = []
    with transaction.atomic(using=USING):
        note.enqueue("order")
        transaction.on_commit(lambda: called.append(True), using=USING)
    assert (texts(), called) == (["order"], [True])
    storing.refuse = lambda _: None
    outbox.sight("default", using=USING, grace=timedelta(0))

    assert burst() == WorkerStats(succeeded=1)
    assert stored() == []


def test_b21_outside_of_requests_nothing_is_lost(
    storing: StoringBackend, note: Job[[str], None]
) -> None:
    thread = threading.Thread(target=lambda: (note.enqueue("thread"), connections.close_all()))
    thread.start()
    thread.join()
    note.enqueue("command")

    def migrate(*_: object) -> None:
        note.enqueue("migration")
        assert published(storing) == ["thread", "command"]

    migration = Migration("populate", "shop")
    migration.operations = [RunPython(migrate)]
    with connections[USING].schema_editor(atomic=True) as editor:
        migration.apply(ProjectState(), editor)

    assert published(storing) == ["thread", "command", "migration"]
    assert stored() == []


@pytest.mark.contract(51)
@pytest.mark.parametrize("is_async", [False, True])
def test_b23_what_a_failing_job_enqueued_in_its_transaction_is_gone(
    storing: StoringBackend, note: Job[[str], None], burst: Burst, is_async: bool
) -> None:
    def enqueue_and_fail() -> None:
        with transaction.atomic(using=USING):
            note.enqueue("now")
            note.using(delay="1h").enqueue("later")
            assert len(stored()) == 2
            raise ValueError

    if is_async:

        @job(name="trial.parent")
        async def parent() -> None:
            await sync_to_async(enqueue_and_fail)()
    else:

        @job(name="trial.parent")
        def parent() -> None:
            enqueue_and_fail()

    parent.enqueue()
    assert burst() == WorkerStats(dead_lettered=1)
    assert stored() == []


def test_b123_rows_that_cannot_be_read_are_kept_and_stop_no_other(storing: StoringBackend) -> None:
    bodies = [b"", b"\x80\x02", b"[]", b"null", b'{"job_id": "', b"{}", b'{"job_id": 7}']
    for body in bodies:
        job = envelope()
        enqueue(job)
        StoredJob.objects.using(USING).filter(job_id=job.job_id).update(body=body)
    good = envelope()
    enqueue(good)
    outbox.sight("default", using=USING, grace=timedelta(0))
    Relay(storing, USING).sweep()

    assert [job.job_id for job in storing.pending("default")] == [good.job_id]
    assert [bytes(row.body) for row in stored()] == bodies
    assert all("malformed envelope" in row.last_error for row in stored())


@pytest.mark.contract(66)
def test_b125_a_letter_of_an_unknown_job_runs_after_the_deploy(
    storing: StoringBackend, burst: Burst
) -> None:
    unknown = envelope(job="trial.new", args=[7]).with_headers(unknown_since=1)
    (row,) = file(letter(unknown, cause="no_handler"))
    seen: list[int] = []

    @job(name="trial.new")
    def new(number: int) -> None:
        seen.append(number)

    assert dead_letters.requeue([row.pk], using=USING).count == 1
    assert (burst(), seen) == (WorkerStats(succeeded=1), [7])


def test_b131_arguments_that_no_longer_fit_are_a_bounded_failure(
    storing: StoringBackend, burst: Burst
) -> None:
    @job(name="trial.changed", retry=RetryPolicy.none(3))
    def changed(a: int) -> None: ...

    storing.publish(envelope(job="trial.changed", args=[1, 2], kwargs={"x": 3}))

    assert burst() == WorkerStats(retried=2, dead_lettered=1)
    assert stored() == []


@pytest.mark.parametrize("left", ["published", "cancelled", "never sent"])
def test_b152_what_is_over_leaves_no_row_for_ever(storing: StoringBackend, left: str) -> None:
    jobs = [envelope() for _ in range(CHUNK + 50)]
    holds.new("default", [NewJob(envelope=job) for job in jobs], using=USING)
    if left == "cancelled":
        holds.cancel([row.pk for row in stored()], using=USING)
    elif left == "never sent":
        StoredJob.objects.using(USING).update(kind=FRESH)
    for _ in range(5):
        Relay(storing, USING).sweep()
    elapse(AN_HOUR)
    for _ in range(6):
        Relay(storing, USING).sweep()

    assert not StoredJob.objects.using(USING).exists()


@pytest.mark.parametrize("kind", ["fresh", "gone"])
def test_b152_many_rows_that_are_left_are_looked_after_without_a_pause(
    storing: StoringBackend, kind: str
) -> None:
    jobs = [NewJob(envelope=envelope()) for _ in range(CHUNK + 1)]
    (outbox.put if kind == "fresh" else holds.new)("default", jobs, using=USING)
    if kind == "gone":
        holds.cancel([row.pk for row in stored()], using=USING)
        elapse(AN_HOUR)
    relay = Relay(storing, USING)

    assert relay.sweep() == 0
    assert relay.sweep() == 1
    assert not StoredJob.objects.using(USING).exclude(kind=OUTBOX).exists()


def test_b154_long_names_errors_and_reasons_are_no_obstacle(
    storing: StoringBackend, burst: Burst
) -> None:
    name = "trial." + "n" * 300

    @job(name=name, retry=RetryPolicy.none(2))
    def long(number: int) -> None:
        if number:
            raise ValueError("x" * 1_000_000)
        raise Defer("1h", "y" * 1_000_000)

    for number in (0, 1):
        storing.publish(envelope(job=name, args=[number]))
    stats = burst()

    assert stats == WorkerStats(deferred=1, retried=1, dead_lettered=1)
    (row,) = stored()
    assert (len(row.job), len(row.reason)) == (255, 2_000)
    assert Envelope.decode(bytes(row.body)).job == name


def test_b156_a_clean_up_that_is_interrupted_goes_on_where_it_was() -> None:
    rows = file(*(letter() for _ in range(10)))
    dead_letters.discard([row.pk for row in rows], using=USING)
    DeadLetter.objects.using(USING).update(resolved_at=F("resolved_at") - timedelta(days=31))
    deletions = 0

    def interrupt(execute: Any, sql: str, *arguments: Any) -> Any:
        nonlocal deletions
        if sql.startswith("DELETE"):
            deletions += 1
            if deletions == 3:
                raise KeyboardInterrupt
        return execute(sql, *arguments)

    def prune() -> None:
        call_command("jobq_prune", batch=2, database=USING, stdout=io.StringIO())

    with connections[USING].execute_wrapper(interrupt), suppress(KeyboardInterrupt):
        prune()
    assert len(file()) == 6
    prune()
    assert file() == []


@override_settings(DATABASE_ROUTERS=["tests.stored.test_trials.Elsewhere"])
def test_b180_no_router_leads_away_from_the_database_that_stores_jobs(
    storing: StoringBackend, note: Job[[str], None], burst: Burst
) -> None:
    """Any query of the default database, where the router sends everything, fails here."""

    @job(name="trial.fails", retry=RetryPolicy.none(2))
    def fails() -> None:
        raise ValueError

    with transaction.atomic(using=USING):
        note.enqueue("now")
        note.using(delay="1h").enqueue("later")
        fails.enqueue()
    file(letter(envelope(job="trial.note", args=["again"])))
    (row,) = file()
    dead_letters.requeue([row.pk], using=USING)
    stats = burst()
    call_command("jobq_prune", older_than="0s", database=USING, stdout=io.StringIO())
    call_command("jobq_status", stdout=(status := io.StringIO()))

    assert stats == WorkerStats(succeeded=2, retried=1, dead_lettered=1)
    assert texts() == ["later"]
    assert len(gone()) == 2
    assert "default" in status.getvalue()


def test_b182_every_index_fits_into_what_servers_allow() -> None:
    """InnoDB takes keys of 3,072 bytes; a character of utf8mb4 has four."""

    def size(field: Any) -> int:
        return 4 * field.max_length if isinstance(field, models.CharField) else 32

    for model in (StoredJob, DeadLetter):
        keys = [index.fields for index in model._meta.indexes]
        keys += [rule.fields for rule in model._meta.constraints if hasattr(rule, "fields")]
        for names in keys:
            fields = [model._meta.get_field(name) for name in names]
            assert not any(isinstance(field, models.TextField) for field in fields)
            assert sum(map(size, fields)) <= 3_072, names


def test_b182_the_sql_of_the_migrations_can_be_read_both_ways() -> None:
    for backwards in (False, True):
        call_command(
            "sqlmigrate",
            "jobq",
            "0001",
            database=USING,
            backwards=backwards,
            stdout=(told := io.StringIO()),
        )
        assert re.search("jobq_storedjob", told.getvalue())
