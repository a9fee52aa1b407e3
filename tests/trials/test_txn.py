"""Trials of transactions: a job exists if and only if the transaction that enqueued it commits."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.management import BaseCommand, call_command
from django.db import DatabaseError, connection, transaction
from django.db.transaction import TransactionManagementError
from django.test import override_settings

from django_jobq import Job, enqueue_many, job, signals
from django_jobq.backends.handler import backends
from django_jobq.backends.memory import MemoryBackend
from tests.app.models import Row

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])

BOTH = ["default", "other"]


@pytest.fixture
def note() -> Job[[str], None]:
    @job(name="trial.note")
    def note(text: str) -> None: ...

    return note


@pytest.fixture
def enqueued() -> Iterator[list[str]]:
    """Collect what the signal job_enqueued tells."""
    told: list[str] = []

    def receive(envelope: Any, **_: Any) -> None:
        told.append(envelope.args[0])

    signals.job_enqueued.connect(receive)
    yield told
    signals.job_enqueued.disconnect(receive)


def ready() -> list[Any]:
    """Return the first argument of each job that is ready, in order."""
    backend = backends["default"]
    assert isinstance(backend, MemoryBackend)
    return [envelope.args[0] for envelope in backend.pending("default")]


@pytest.mark.contract(51)
def test_b13_a_savepoint_takes_its_jobs_with_it(
    note: Job[[str], None], enqueued: list[str]
) -> None:
    """What an inner block enqueued is gone with it; the rest comes in order after the commit."""
    with transaction.atomic():
        handle = note.enqueue("outer")
        with suppress(ValueError), transaction.atomic():
            note.enqueue("inner")
            with transaction.atomic():
                note.enqueue("innermost")
            raise ValueError
        note.enqueue("after")
        assert ready() == []

    assert handle.enqueued_at is None
    assert ready() == ["outer", "after"]
    assert enqueued == ["outer", "after"]


@pytest.mark.contract(51)
@pytest.mark.parametrize("how", ["error", "set_rollback", "error after an inner commit"])
def test_b13_nothing_is_left_of_a_transaction_that_fails(
    how: str, note: Job[[str], None], enqueued: list[str]
) -> None:
    """A transaction that does not commit leaves no job, however it ends."""
    try:
        with transaction.atomic():
            note.enqueue("first")
            enqueue_many([note.prepare("second"), note.using(delay="1h").prepare("third")])
            if how == "error after an inner commit":
                with transaction.atomic():
                    note.enqueue("fourth")
            if how == "set_rollback":
                transaction.set_rollback(True)
            else:
                raise ValueError
    except ValueError:
        pass
    note.enqueue("later")

    assert ready() == ["later"]
    assert backends["default"].counts("default").held == 0
    assert enqueued == ["later"]


@pytest.mark.contract(195)
def test_b13_an_inner_rollback_does_not_silence_the_jobs_before_it(
    note: Job[[str], None], enqueued: list[str]
) -> None:
    """Every published job is announced at its commit, also if the last enqueue was rolled back."""
    with transaction.atomic():
        note.enqueue("outer")
        with suppress(ValueError), transaction.atomic():
            note.enqueue("inner")
            raise ValueError

    assert ready() == ["outer"]
    assert enqueued == ["outer"]


@pytest.mark.contract(51)
def test_b13_jobs_survive_an_inner_rollback_that_catches_a_database_error(
    note: Job[[str], None],
) -> None:
    """A failed statement inside a savepoint does not cost the jobs around it."""
    with transaction.atomic():
        note.enqueue("before")
        try:
            with transaction.atomic():
                note.enqueue("inner")
                with connection.cursor() as cursor:
                    cursor.execute("SELECT * FROM no_such_table")
        except DatabaseError:
            note.enqueue("rescue")

    assert ready() == ["before", "rescue"]


def test_b15_a_publish_that_fails_after_the_commit_is_told(
    note: Job[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    """A job that could not be published after its commit is told by log and signal; data stays."""
    failed: list[Any] = []
    ran: list[str] = []

    def receive(**kwargs: Any) -> None:
        failed.append(kwargs)
        raise RuntimeError("a receiver that fails too")

    signals.job_enqueue_failed.connect(receive)
    try:
        with transaction.atomic():
            Row.objects.create(name="order")
            transaction.on_commit(partial(ran.append, "first"))
            lost = note.enqueue("lost")
            transaction.on_commit(partial(ran.append, "second"))
            backends["default"].close()
    finally:
        signals.job_enqueue_failed.disconnect(receive)

    assert Row.objects.filter(name="order").count() == 1
    assert ran == ["first", "second"]
    [kwargs] = failed
    assert kwargs["envelope"].job_id == lost.id
    assert kwargs["sender"].name == "trial.note"
    assert type(kwargs["error"]).__name__ == "ShutDown"
    [record] = [r for r in caplog.records if r.name == "django_jobq.producer"]
    assert record.levelno == logging.ERROR
    assert "trial.note" in record.getMessage()
    assert str(lost.id) in record.getMessage()


@override_settings(
    JOBQ={
        "default": {
            "BACKEND": "django_jobq.backends.memory.MemoryBackend",
            "OPTIONS": {"max_pending": 2},
        }
    }
)
def test_b15_a_refused_job_does_not_take_those_behind_it(note: Job[[str], None]) -> None:
    """Of several jobs of a transaction, each one that cannot be published is told, no other."""
    failed: list[str] = []

    def receive(envelope: Any, **_: Any) -> None:
        failed.append(envelope.args[0])

    signals.job_enqueue_failed.connect(receive)
    try:
        with transaction.atomic():
            for text in ("a", "b", "c", "d"):
                note.enqueue(text)
    finally:
        signals.job_enqueue_failed.disconnect(receive)

    assert ready() == ["a", "b"]
    assert failed == ["c", "d"]


@pytest.mark.contract(51)
@pytest.mark.parametrize("commits", [True, False])
def test_b17_the_database_of_a_call_decides(commits: bool, note: Job[[str], None]) -> None:
    """A call that names another database waits for, and falls with, the transaction on that one."""
    try:
        with transaction.atomic(using="other"):
            Row.objects.using("other").create(name="row")
            note.using(database="other").enqueue("job")
            with transaction.atomic():
                Row.objects.create(name="unrelated")
            assert ready() == []
            if not commits:
                raise ValueError
    except ValueError:
        pass

    assert ready() == (["job"] if commits else [])


@override_settings(
    JOBQ={
        "default": {
            "BACKEND": "django_jobq.backends.memory.MemoryBackend",
            "DATABASE": "other",
        }
    }
)
def test_b17_the_database_of_the_settings_decides(note: Job[[str], None]) -> None:
    """The setting DATABASE names the alias whose commit counts; the others do not matter."""
    with transaction.atomic(using="other"):
        note.enqueue("bound")
        assert ready() == []
    assert ready() == ["bound"]
    with transaction.atomic():
        note.enqueue("free")
        assert ready() == ["bound", "free"]


def test_b17_without_a_choice_the_default_database_counts(note: Job[[str], None]) -> None:
    """A block on another alias alone does not hold back a job that is bound to the default one."""
    with transaction.atomic(using="other"):
        note.enqueue("free")
        assert ready() == ["free"]
    with transaction.atomic():
        note.using(database="other").enqueue("free too")
        assert ready() == ["free", "free too"]


def test_b17_two_databases_in_one_block(note: Job[[str], None]) -> None:
    """Jobs bound to different databases in nested blocks each follow their own commit."""
    with transaction.atomic():
        with transaction.atomic(using="other"):
            enqueue_many([note.prepare("default"), note.using(database="other").prepare("other")])
            assert ready() == []
        assert ready() == ["other"]
    assert ready() == ["other", "default"]


def test_b21_a_command_and_a_thread_publish_at_once(note: Job[[str], None]) -> None:
    """Without a transaction of its own, a command or a thread publishes at the call."""

    class Command(BaseCommand):
        def handle(self, *args: Any, **options: Any) -> None:
            assert note.enqueue("command").enqueued_at is not None

    call_command(Command())
    assert ready() == ["command"]
    with transaction.atomic():
        thread = threading.Thread(target=note.enqueue, args=("thread",))
        thread.start()
        thread.join(10)
        assert ready() == ["command", "thread"]


def test_b21_a_data_migration_publishes_when_it_has_committed(note: Job[[str], None]) -> None:
    """What a migration enqueues waits for the commit of that migration."""
    with connection.schema_editor(atomic=True):
        note.enqueue("migration")
        assert ready() == []
    assert ready() == ["migration"]


def test_b21_manual_transactions_are_refused_with_a_way_out(note: Job[[str], None]) -> None:
    """With autocommit off there is no commit to wait for: the call says so and names the option."""
    transaction.set_autocommit(False)
    try:
        with pytest.raises(TransactionManagementError, match=r"on_commit=False"):
            note.enqueue("refused")
        note.using(on_commit=False).enqueue("at once")
        assert ready() == ["at once"]
        transaction.commit()
    finally:
        transaction.set_autocommit(True)
    assert ready() == ["at once"]


def test_b21_a_block_inside_a_manual_transaction_loses_nothing(note: Job[[str], None]) -> None:
    """Inside a manual transaction a block is no commit: its job is refused, or the commit sends it.

    A script that turned autocommit off may end without ever turning it on again.
    """
    refused = False
    transaction.set_autocommit(False)
    try:
        with transaction.atomic():
            Row.objects.create(name="row")
            try:
                note.enqueue("kept")
            except TransactionManagementError:
                refused = True
        assert ready() == []
        transaction.commit()
        assert refused or ready() == ["kept"]
    finally:
        transaction.set_autocommit(True)


@pytest.mark.contract(51)
def test_b21_async_code_inside_a_transaction_waits_for_the_commit(
    note: Job[[str], None],
) -> None:
    """A coroutine that sync code called inside its block enqueues into the same transaction."""
    with transaction.atomic():
        handle = async_to_sync(note.aenqueue)("async")
        assert handle.enqueued_at is None
        assert ready() == []
    assert ready() == ["async"]


@pytest.mark.contract(51)
def test_b21_a_job_may_enqueue_jobs(work: Callable[..., Any]) -> None:
    """A job that enqueues inside a block it rolls back leaves nothing; what it commits runs."""
    ran = []

    @job(name="trial.child")
    def child(text: str) -> None:
        ran.append(text)

    @job(name="trial.parent")
    def parent() -> None:
        child.enqueue("plain")
        with transaction.atomic():
            child.enqueue("committed")
        with transaction.atomic():
            child.enqueue("rolled back")
            raise ValueError

    parent.enqueue()
    stats = work()

    assert sorted(ran) == ["committed", "plain"]
    assert (stats.succeeded, stats.dead_lettered) == (2, 1)
