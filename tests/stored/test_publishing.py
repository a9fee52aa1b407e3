"""What the producer stores: jobs of transactions, delayed ones, and those that met an outage."""

import contextlib
import dataclasses
import datetime as dt
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import (
    DatabaseError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    connections,
    transaction,
)
from django.db.transaction import TransactionManagementError
from django.test import TestCase, override_settings
from django.test.utils import CaptureQueriesContext

from django_jobq import aenqueue_many, commits, enqueue_many, job
from django_jobq.backends.handler import backends
from django_jobq.envelope import Envelope
from django_jobq.exceptions import BackendUnavailable, PublishFailed, ShutDown, UnknownDatabase
from django_jobq.models import StoredJob
from django_jobq.store import outbox
from django_jobq.store.rows import FRESH, HOLD, OUTBOX
from tests.app.jobs import note
from tests.remote import (
    StoringBackend,
    Told,
    answer_at,
    fail_with,
    never_answer,
    refuse_bad,
)
from tests.store.tools import USING, stored, together

pytestmark = pytest.mark.django_db(transaction=True, databases=[USING])
# Django makes no test database "other" without "default".
with_another = pytest.mark.django_db(transaction=True, databases=[USING, "default", "other"])

ENTRY = {"BACKEND": "tests.remote.StoringBackend", "DATABASE": USING}
KEPT = "is not known to be published; it stays stored and a worker publishes it"


@contextlib.contextmanager
def configured(**keys: Any) -> Iterator[StoringBackend]:
    """Give the backend of an alias with these keys."""
    with override_settings(JOBQ={"default": {**ENTRY, **keys}}):
        backend = backends["default"]
        assert isinstance(backend, StoringBackend)
        yield backend
    commits._commits.clear()


@pytest.fixture
def remote() -> Iterator[StoringBackend]:
    with configured() as backend:
        yield backend


@pytest.fixture
def impatient(remote: StoringBackend) -> StoringBackend:
    """Return a backend that never answers and is waited for only briefly."""
    remote.options = dataclasses.replace(remote.options, publish_timeout=0.05)
    remote.on_submit = never_answer
    return remote


@pytest.fixture
def hooks() -> list[str]:
    """Return what foreign hooks note."""
    return []


def atomic() -> Any:
    return transaction.atomic(using=USING)


def on_commit(hook: Callable[[], Any]) -> None:
    transaction.on_commit(hook, using=USING)


def explode() -> None:
    raise ZeroDivisionError("a foreign hook")


def commit_with(*steps: str) -> None:
    """Enqueue jobs in a transaction in which some steps are foreign hooks that raise."""
    with atomic():
        for step in steps:
            if step == "explode":
                on_commit(explode)
            else:
                note.enqueue(step)


@contextlib.contextmanager
def autocommit_off() -> Iterator[None]:
    transaction.set_autocommit(False, using=USING)
    try:
        yield
    finally:
        transaction.rollback(using=USING)
        transaction.set_autocommit(True, using=USING)


@contextlib.contextmanager
def refusing(verb: str, error: Exception) -> Iterator[None]:
    """Let statements that begin with a word fail."""

    def refuse(execute: Any, sql: str, *arguments: Any) -> Any:
        if sql.startswith(verb):
            raise error
        return execute(sql, *arguments)

    with connections[USING].execute_wrapper(refuse):
        yield


@contextlib.contextmanager
def statements() -> Iterator[Counter[str]]:
    """Count what is sent to the database by its first word; beginning and ending are left out."""
    found: Counter[str] = Counter()
    with CaptureQueriesContext(connections[USING]) as queries:
        yield found
    verbs = [query["sql"].split()[0] for query in queries]
    found.update(verb for verb in verbs if verb in ("INSERT", "SELECT", "UPDATE", "DELETE"))


@contextlib.contextmanager
def without_tables() -> Iterator[None]:
    """Be in a project that has not migrated."""
    table = StoredJob._meta.db_table

    def rename(old: str, new: str) -> None:
        with connections[USING].schema_editor() as editor:
            editor.alter_db_table(StoredJob, old, new)

    rename(table, "elsewhere")
    try:
        yield
    finally:
        rename("elsewhere", table)


def kinds() -> list[str]:
    return [row.kind for row in stored()]


def stored_texts() -> list[str]:
    return [str(Envelope.decode(bytes(row.body)).args[0]) for row in stored()]


# In a transaction


@pytest.mark.contract(40, 49, 51)
def test_a_job_of_a_transaction_is_a_row_of_it_until_the_transport_has_it(
    remote: StoringBackend, told: Told
) -> None:
    with atomic():
        handle = note.enqueue("hello")
        (row,) = stored()
        assert (row.kind, row.alias, row.job_id) == (FRESH, "default", handle.id)
        assert (row.job, row.queue, row.attempt) == (note.name, "default", 1)
        assert handle.enqueued_at is None
        assert (remote.sent, told.enqueued) == ([], [])
    assert [envelope.job_id for envelope, _, _ in remote.sent] == [handle.id]
    assert told.enqueued == ["hello"]
    assert stored() == []


@pytest.mark.contract(51)
def test_a_rollback_leaves_no_row_and_sends_nothing(remote: StoringBackend, told: Told) -> None:
    with contextlib.suppress(ZeroDivisionError), atomic():
        note.enqueue("gone")
        raise ZeroDivisionError
    with atomic():
        enqueue_many([note.prepare("gone"), note.using(delay="5m").prepare("gone")])
        transaction.set_rollback(True, using=USING)
    assert stored() == []
    with atomic():
        note.enqueue("kept")
    assert remote.texts == told.enqueued == ["kept"]


@pytest.mark.contract(51, 195)
def test_a_savepoint_that_is_rolled_back_last_takes_its_row(
    remote: StoringBackend, told: Told
) -> None:
    with atomic():
        note.enqueue("outer")
        with contextlib.suppress(ZeroDivisionError), atomic():
            note.enqueue("gone")
            raise ZeroDivisionError
        assert stored_texts() == ["outer"]
    assert remote.texts == told.enqueued == ["outer"]
    assert stored() == []


@pytest.mark.contract(51, 195)
def test_a_savepoint_that_is_rolled_back_by_hand_takes_its_jobs(
    remote: StoringBackend, told: Told
) -> None:
    with atomic(), connections[USING].cursor() as cursor:
        note.enqueue("before")
        cursor.execute("SAVEPOINT by_hand")
        note.enqueue("within")
        note.using(delay="5m").enqueue("held within")
        cursor.execute("ROLLBACK TO SAVEPOINT by_hand")
        note.enqueue("after")
    assert remote.texts == told.enqueued == ["before", "after"]
    assert stored() == []


def test_transactions_that_are_rolled_back_leave_nothing_in_memory(
    remote: StoringBackend,
) -> None:
    for _ in range(50):
        with atomic():
            note.enqueue("gone")
            transaction.set_rollback(True, using=USING)
    assert len(commits._commits[connections[USING]].tickets) <= 1


@pytest.mark.contract(49, 51)
def test_threads_commit_side_by_side(remote: StoringBackend, told: Told, caplog) -> None:
    def work(number: int) -> None:
        for step in range(20):
            with atomic():
                note.enqueue(f"{number}.{step}")
            with atomic():
                note.enqueue("gone")
                transaction.set_rollback(True, using=USING)

    together(6, work)
    expected = sorted(f"{number}.{step}" for number in range(6) for step in range(20))
    assert sorted(remote.texts) == sorted(told.enqueued) == expected
    assert stored() == []
    assert caplog.records == []


@pytest.mark.contract(49, 51)
def test_a_list_is_stored_together(remote: StoringBackend, told: Told) -> None:
    with atomic():
        with statements() as sent:
            handles = enqueue_many(note.prepare(str(number)) for number in range(20))
        assert sent == {"INSERT": 1}
        assert len({row.token for row in stored()}) == 1
        assert [row.job_id for row in stored()] == [handle.id for handle in handles]
    assert remote.texts == told.enqueued == [str(number) for number in range(20)]
    assert stored() == []


@pytest.mark.contract(49, 51)
@pytest.mark.parametrize("count", [1, 100])
def test_a_transaction_costs_one_wait_one_look_and_one_removal(
    count: int, remote: StoringBackend, told: Told
) -> None:
    remote.on_submit = answer_at(count)
    with statements() as sent, atomic():
        for number in range(count):
            note.enqueue(str(number))
        assert remote.sent == []
    assert sent == {"INSERT": count, "SELECT": 1, "DELETE": 1}
    assert remote.texts == told.enqueued == [str(number) for number in range(count)]
    assert told.threads == {threading.current_thread()}
    assert stored() == []


def test_a_transaction_that_only_enqueues_is_five_statements(
    remote: StoringBackend, django_assert_num_queries: Any
) -> None:
    # BEGIN, INSERT, COMMIT; SELECT, DELETE
    with django_assert_num_queries(5, using=USING), atomic():
        note.enqueue("hello")


@pytest.mark.contract(51)
def test_jobs_of_several_backends_share_a_transaction(told: Told) -> None:
    @job(name="tests.elsewhere", backend="second")
    def note_elsewhere(text: str) -> None: ...

    memory = {"BACKEND": "django_jobq.backends.memory.MemoryBackend", "DATABASE": USING}

    @job(name="tests.memory", backend="memory")
    def note_here(text: str) -> None: ...

    with override_settings(JOBQ={"default": ENTRY, "second": ENTRY, "memory": memory}):
        with atomic():
            enqueue_many([note.prepare("a"), note_elsewhere.prepare("b"), note_here.prepare("c")])
            assert {(row.alias, row.job) for row in stored()} == {
                ("default", note.name),
                ("second", "tests.elsewhere"),
            }
        assert [backends[alias].texts for alias in ("default", "second")] == [["a"], ["b"]]  # type: ignore[attr-defined]
        assert backends["memory"].counts("default").ready == 1
    assert sorted(told.enqueued) == ["a", "b", "c"]
    assert stored() == []


def test_a_delay_that_the_transport_holds_is_counted_from_the_call() -> None:
    with configured(HOLDS="broker") as remote, atomic():
        note.defer("60s", "hello")
        (row,) = stored()
        assert (row.kind, row.front, row.due_at - row.created_at) == (
            FRESH,
            True,
            dt.timedelta(seconds=60),
        )
    ((_, delay, front),) = remote.sent
    assert 0 < delay < 60
    assert front
    assert stored() == []


# When publishing fails after the commit


@pytest.mark.contract(49)
@pytest.mark.parametrize(
    "error", [PublishFailed("not routed"), BackendUnavailable("refused"), OSError("reset")]
)
def test_what_cannot_be_published_stays_stored(
    error: Exception, remote: StoringBackend, told: Told, hooks: list[str], caplog
) -> None:
    remote.on_submit = fail_with(error)
    with atomic():
        on_commit(lambda: hooks.append("before"))
        handle = note.enqueue("hello")
        on_commit(lambda: hooks.append("after"))
    assert hooks == ["before", "after"]
    assert [(row.job_id, row.kind) for row in stored()] == [(handle.id, FRESH)]
    assert (told.enqueued, told.failed) == (["hello"], [])
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("django_jobq.producer", "WARNING")
    assert record.getMessage() == f"Job {note.name} ({handle.id}) {KEPT}: {error}"
    assert (record.job_id, record.job, record.queue, record.attempt) == (
        handle.id,
        note.name,
        "default",
        1,
    )


def test_a_backend_that_raises_at_the_call_leaves_the_row(
    remote: StoringBackend, told: Told, caplog
) -> None:
    with atomic():
        note.enqueue("hello")
        remote.close()
    assert stored_texts() == ["hello"]
    assert told.failed == []
    assert "(remote) is closed" in caplog.text


def test_what_is_not_confirmed_in_time_stays_stored(
    impatient: StoringBackend, told: Told, caplog
) -> None:
    with atomic():
        note.enqueue("a")
        note.enqueue("b")
    assert impatient.texts == stored_texts() == told.enqueued == ["a", "b"]
    assert told.failed == []
    assert ["did not confirm" in message for message in caplog.messages] == [True, True]


def test_of_a_transaction_only_what_is_confirmed_is_removed(
    remote: StoringBackend, told: Told
) -> None:
    remote.on_submit = refuse_bad(PublishFailed("not routed"))
    with atomic():
        for text in ("first", "bad", "last"):
            note.enqueue(text)
    assert sorted(told.enqueued) == ["bad", "first", "last"]
    assert stored_texts() == ["bad"]


@pytest.mark.parametrize(
    "error", [OperationalError("gone"), InterfaceError("closed"), RuntimeError("unexpected")]
)
def test_a_database_that_cannot_be_read_after_the_commit_leaves_the_rows_to_a_worker(
    error: Exception, remote: StoringBackend, told: Told, hooks: list[str], caplog
) -> None:
    with refusing("SELECT", error), atomic():
        note.enqueue("hello")
        on_commit(lambda: hooks.append("after"))
    assert hooks == ["after"]
    assert stored_texts() == ["hello"]
    assert (remote.sent, told.enqueued, told.failed) == ([], [], [])
    assert KEPT in caplog.text


@pytest.mark.parametrize(
    "error", [OperationalError("gone"), InterfaceError("closed"), RuntimeError("unexpected")]
)
def test_a_row_that_cannot_be_removed_is_left_to_a_worker(
    error: Exception, remote: StoringBackend, told: Told, hooks: list[str], caplog
) -> None:
    with refusing("DELETE", error), atomic():
        note.enqueue("hello")
        on_commit(lambda: hooks.append("after"))
    assert hooks == ["after"]
    assert stored_texts() == ["hello"]
    assert remote.texts == told.enqueued == ["hello"]
    assert "could not be removed from database 'stored'" in caplog.text


def test_what_a_worker_has_taken_meanwhile_is_left_to_it(
    remote: StoringBackend, told: Told
) -> None:
    with atomic():
        note.enqueue("hello")
        on_commit(lambda: None)
        StoredJob.objects.using(USING).update(token="another")
    assert (remote.sent, told.enqueued) == ([], [])
    assert stored_texts() == ["hello"]


# Beside the hooks of others


def test_a_foreign_hook_that_raises_first_leaves_the_row_to_a_worker(
    remote: StoringBackend, told: Told
) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        commit_with("explode", "dropped")
    assert stored_texts() == ["dropped"]
    # The dropped hook lives on in the traceback, and nobody waits for it.
    assert caught.tb is not None
    with atomic():
        note.enqueue("next")
    assert remote.texts == told.enqueued == ["next"]
    assert stored_texts() == ["dropped"]


def test_a_foreign_hook_that_raises_between_loses_nothing(
    remote: StoringBackend, told: Told
) -> None:
    with pytest.raises(ZeroDivisionError):
        commit_with("first", "explode", "dropped")
    assert (remote.texts, stored_texts()) == (["first"], ["first", "dropped"])
    with atomic():
        note.enqueue("next")
    assert remote.texts == told.enqueued == ["first", "next"]
    assert stored_texts() == ["dropped"]


def test_a_foreign_hook_that_raises_behind_changes_nothing(
    remote: StoringBackend, told: Told
) -> None:
    with pytest.raises(ZeroDivisionError):
        commit_with("hello", "explode")
    assert remote.texts == told.enqueued == ["hello"]
    assert stored() == []


@pytest.mark.contract(51)
def test_a_hook_may_have_a_transaction_of_its_own(remote: StoringBackend, told: Told) -> None:
    def enqueue_more() -> None:
        with atomic():
            note.enqueue("from a hook")

    with statements() as sent, atomic():
        on_commit(enqueue_more)
        for text in "abc":
            note.enqueue(text)
    assert remote.texts == told.enqueued == ["from a hook", "a", "b", "c"]
    assert sent == {"INSERT": 4, "SELECT": 1, "DELETE": 2}
    assert stored() == []


@pytest.mark.django_db(databases=[USING])
def test_captured_hooks_publish_and_remove(remote: StoringBackend, told: Told) -> None:
    note.enqueue("never committed")
    with TestCase.captureOnCommitCallbacks(using=USING, execute=True) as callbacks:
        note.enqueue("a")
        with contextlib.suppress(ZeroDivisionError), atomic():
            note.enqueue("gone")
            raise ZeroDivisionError
        note.enqueue("b")
        assert remote.sent == []
    assert len(callbacks) == 2
    assert remote.texts == told.enqueued == ["a", "b"]
    assert stored_texts() == ["never committed"]


def test_a_hook_that_is_called_twice_publishes_once(remote: StoringBackend) -> None:
    with atomic():
        with TestCase.captureOnCommitCallbacks(using=USING) as callbacks:
            note.enqueue("hello")
        for _ in range(2):
            callbacks[0]()
    assert remote.texts == ["hello"]


# Without a hook


@pytest.mark.contract(51)
@pytest.mark.parametrize("in_a_block", [False, True])
def test_with_autocommit_off_the_row_is_left_to_a_worker(
    in_a_block: bool, remote: StoringBackend, told: Told
) -> None:
    with autocommit_off():
        with atomic() if in_a_block else contextlib.nullcontext():
            handle = note.enqueue("kept")
        assert handle.enqueued_at is None
        transaction.commit(using=USING)
        note.enqueue("gone")
    assert [row.kind for row in stored()] == [FRESH]
    assert stored_texts() == ["kept"]
    assert (remote.sent, told.enqueued) == ([], [])


def test_with_autocommit_off_a_delayed_job_is_held(remote: StoringBackend) -> None:
    with autocommit_off():
        note.enqueue_after("5m", "kept")
        transaction.commit(using=USING)
    assert (kinds(), remote.sent) == ([HOLD], [])


def test_with_the_outbox_off_there_is_no_commit_to_wait_for() -> None:
    with configured(OUTBOX="off") as remote, autocommit_off():
        with pytest.raises(TransactionManagementError, match="Autocommit is off"):
            note.enqueue("refused")
        note.enqueue_after("5m", "held")
        transaction.commit(using=USING)
        assert remote.sent == []
    assert stored_texts() == ["held"]


# Outside of a transaction


@pytest.mark.contract(49)
def test_without_a_transaction_nothing_is_stored(
    remote: StoringBackend, told: Told, django_assert_num_queries: Any
) -> None:
    with django_assert_num_queries(0, using=USING):
        handle = note.enqueue("hello")
    assert handle.enqueued_at is not None
    assert remote.texts == told.enqueued == ["hello"]


@pytest.mark.contract(49, 195)
def test_what_meets_an_outage_is_stored(remote: StoringBackend, told: Told, caplog) -> None:
    remote.on_submit = fail_with(BackendUnavailable("the broker is down"))
    handle = note.enqueue("hello")
    assert handle.enqueued_at is not None
    (row,) = stored()
    assert (row.job_id, row.kind, row.last_error) == (handle.id, OUTBOX, "the broker is down")
    assert row.claimable_at - row.created_at == outbox.GRACE
    assert told.enqueued == ["hello"]
    (record,) = caplog.records
    assert (record.levelname, record.job_id) == ("WARNING", handle.id)
    assert record.getMessage() == f"Job {note.name} ({handle.id}) {KEPT}: the broker is down"


@pytest.mark.contract(49)
def test_what_is_not_confirmed_in_time_is_stored(impatient: StoringBackend, told: Told) -> None:
    handles = enqueue_many([note.prepare("a"), note.prepare("b")])
    assert [row.job_id for row in stored()] == [handle.id for handle in handles]
    assert "did not confirm within 0.05 s" in stored()[0].last_error
    assert told.enqueued == ["a", "b"]
    impatient.settle_all(PublishFailed("much later"), wait=True)


def test_a_list_that_meets_an_outage_is_stored_together(remote: StoringBackend) -> None:
    remote.on_submit = refuse_bad(BackendUnavailable("lost"))
    with statements() as sent:
        enqueue_many(note.prepare(text) for text in ("first", "bad", "last", "bad"))
    assert sent == {"INSERT": 1}
    assert stored_texts() == ["bad", "bad"]


@pytest.mark.contract(49)
def test_what_is_returned_or_nacked_is_raised_and_not_stored(remote: StoringBackend) -> None:
    remote.on_submit = fail_with(PublishFailed("not routed"))
    with pytest.raises(PublishFailed, match="not routed"):
        note.enqueue("hello")
    remote.close()
    with pytest.raises(ShutDown):
        note.enqueue("hello")
    assert stored() == []


@pytest.mark.contract(49, 195)
def test_of_a_list_what_is_refused_is_raised_and_the_rest_is_kept(
    remote: StoringBackend, told: Told
) -> None:
    errors: list[BaseException | None] = [BackendUnavailable("lost"), PublishFailed("nack"), None]
    remote.on_submit = lambda backend: backend.settle_all(errors[len(backend.sent) - 1], wait=True)
    with pytest.raises(PublishFailed, match="nack"):
        enqueue_many(note.prepare(text) for text in "abc")
    assert stored_texts() == ["a"]
    assert told.enqueued == ["a", "c"]


def test_an_outage_of_both_is_raised_with_what_either_said(
    remote: StoringBackend, told: Told
) -> None:
    refusal = BackendUnavailable("the broker is down")
    refusal.__cause__ = ConnectionResetError("reset")
    remote.on_submit = fail_with(refusal)
    disk_full = refusing("INSERT", OperationalError("disk full"))
    with disk_full, pytest.raises(BackendUnavailable) as caught:
        note.enqueue("hello")
    assert caught.value is refusal
    assert isinstance(refusal.__cause__, ConnectionResetError)
    assert isinstance(refusal.__context__, OperationalError)
    assert refusal.__notes__ == [
        "The job could not be stored in database 'stored' either: disk full"
    ]
    assert (stored(), told.enqueued) == ([], [])


def test_no_answer_and_no_database_is_raised(impatient: StoringBackend) -> None:
    disk_full = refusing("INSERT", OperationalError("disk full"))
    with disk_full, pytest.raises(BackendUnavailable, match="did not confirm") as caught:
        note.enqueue("hello")
    assert "disk full" in caught.value.__notes__[0]


def test_with_the_outbox_off_an_outage_is_raised() -> None:
    with configured(OUTBOX="off") as remote:
        remote.on_submit = fail_with(BackendUnavailable("the broker is down"))
        with pytest.raises(BackendUnavailable, match="the broker is down"):
            note.enqueue("hello")
        with atomic():
            note.enqueue("hello")
            assert stored() == []
    assert stored() == []


def test_a_delay_that_the_transport_could_not_hold_is_stored_with_the_rest_of_it() -> None:
    with configured(HOLDS="broker") as remote:
        remote.on_submit = fail_with(BackendUnavailable("down"))
        note.enqueue_after("60s", "hello")
    (row,) = stored()
    assert row.kind == OUTBOX
    assert dt.timedelta(seconds=50) < row.due_at - row.created_at <= dt.timedelta(seconds=60)


# Without waiting for the commit


def test_on_commit_false_stores_nothing_in_an_open_transaction(
    remote: StoringBackend, told: Told
) -> None:
    with atomic():
        handle = note.using(on_commit=False).enqueue("now")
        assert handle.enqueued_at is not None
        assert told.enqueued == ["now"]
        remote.on_submit = fail_with(BackendUnavailable("down"))
        with pytest.raises(BackendUnavailable, match="down"):
            note.using(on_commit=False).enqueue("refused")
        assert stored() == []


@pytest.mark.parametrize("block", [atomic, autocommit_off])
def test_on_commit_false_lets_the_transport_hold_in_an_open_transaction(
    block: Callable[[], Any], remote: StoringBackend
) -> None:
    with block():
        handle = note.using(on_commit=False, delay="60s", front=True).enqueue("later")
        assert handle.enqueued_at is not None
        assert [(delay, front) for _, delay, front in remote.sent] == [(60.0, True)]
        assert stored() == []


def test_on_commit_false_changes_nothing_without_a_transaction(remote: StoringBackend) -> None:
    remote.on_submit = fail_with(BackendUnavailable("down"))
    enqueue_many(
        note.using(on_commit=False, **options).prepare(text)
        for text, options in (("outage", {}), ("delayed", {"delay": "5m"}))
    )
    assert {row.kind for row in stored()} == {OUTBOX, HOLD}
    assert remote.texts == ["outage"]


# Holds


@pytest.mark.contract(51, 195)
def test_a_delayed_job_of_a_transaction_is_a_row_alone(remote: StoringBackend, told: Told) -> None:
    with statements() as sent, atomic():
        handle = note.defer("5m", "hello")
        assert handle.enqueued_at is None
        assert told.enqueued == []
    (row,) = stored()
    assert (row.job_id, row.kind, row.front) == (handle.id, HOLD, True)
    assert row.claimable_at == row.due_at == row.created_at + dt.timedelta(minutes=5)
    assert remote.sent == []
    assert told.enqueued == ["hello"]
    assert sent == {"INSERT": 1, "SELECT": 1}


@pytest.mark.contract(199)
def test_nothing_is_read_after_the_commit_when_nobody_listens(remote: StoringBackend) -> None:
    with statements() as sent, atomic():
        note.enqueue_after("5m", "hello")
        assert connections[USING].run_on_commit == []
    assert sent == {"INSERT": 1}
    assert kinds() == [HOLD]


def test_a_delayed_job_is_held_at_once_without_a_transaction(
    remote: StoringBackend, told: Told
) -> None:
    handle = note.enqueue_after("5m", "hello")
    assert handle.enqueued_at is not None
    assert kinds() == [HOLD]
    assert (remote.sent, told.enqueued) == ([], ["hello"])


def test_a_list_may_be_held_and_sent(remote: StoringBackend, told: Told) -> None:
    with statements() as sent:
        enqueue_many(
            [
                note.prepare("now"),
                *(note.using(delay="5m").prepare(text) for text in ("held", "held too")),
                note.using(front=True).prepare("front"),
            ]
        )
    assert sent == {"INSERT": 1}
    assert stored_texts() == ["held", "held too"]
    assert remote.texts == ["now", "front"]
    assert told.enqueued == ["now", "held", "held too", "front"]


@pytest.mark.parametrize("error", [OperationalError("locked"), InterfaceError("closed")])
def test_a_hold_that_the_database_refuses_is_left_to_the_transport(
    error: Exception, remote: StoringBackend, told: Told, caplog
) -> None:
    with refusing("INSERT", error):
        handle = note.using(delay="60s", front=True).enqueue("hello")
    assert handle.enqueued_at is not None
    assert [(delay, front) for _, delay, front in remote.sent] == [(60.0, True)]
    assert (stored(), told.enqueued) == ([], ["hello"])
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert record.getMessage() == (
        f"Job {note.name} ({handle.id}) cannot be held by the database, so the transport holds it:"
        f" {error}"
    )


def test_what_the_database_refuses_in_a_transaction_is_raised(remote: StoringBackend) -> None:
    for call in (lambda: note.enqueue("hello"), lambda: note.enqueue_after("5m", "hello")):
        gone = refusing("INSERT", OperationalError("gone"))
        with gone, pytest.raises(OperationalError), atomic():
            call()
    with refusing("INSERT", IntegrityError("twice")), pytest.raises(IntegrityError):
        note.enqueue_after("5m", "hello")
    assert remote.sent == []


def test_with_the_outbox_off_delayed_jobs_are_still_held(told: Told) -> None:
    with configured(OUTBOX="off") as remote:
        with atomic():
            note.enqueue("plain")
            note.enqueue_after("5m", "held")
            assert stored_texts() == ["held"]
        assert remote.texts == ["plain"]
    assert sorted(told.enqueued) == ["held", "plain"]


# Which database


@pytest.mark.contract(47)
@with_another
@pytest.mark.parametrize("delay", [None, "5m"])
@pytest.mark.parametrize("in_a_transaction", [False, True])
def test_a_database_that_no_worker_looks_after_is_refused(
    delay: str | None, in_a_transaction: bool, remote: StoringBackend
) -> None:
    lost = note.using(database="other", delay=delay)
    block = transaction.atomic(using="other") if in_a_transaction else contextlib.nullcontext()
    with block, pytest.raises(UnknownDatabase) as caught:
        enqueue_many([note.using(delay="5m").prepare("first"), lost.prepare("lost")])
    assert str(caught.value) == (
        "no worker of backend 'default' looks after jobs that are stored in database 'other'"
        " (known: stored); add it to JOBQ['default']['OUTBOX_DATABASES']"
    )
    assert (caught.value.database, caught.value.known) == ("other", ["stored"])
    assert (stored(), remote.sent) == ([], [])


@pytest.mark.contract(51)
@with_another
def test_further_databases_store_what_their_transactions_release(told: Told) -> None:
    others = StoredJob.objects.using("other")
    with configured(OUTBOX_DATABASES=["other"]) as remote:
        with transaction.atomic(using="other"):
            with atomic():
                enqueue_many([note.using(database="other").prepare("other"), note.prepare("own")])
                assert (len(stored()), others.count()) == (1, 1)
            assert remote.texts == ["own"]
        assert remote.texts == told.enqueued == ["own", "other"]
        assert (stored(), list(others)) == ([], [])
        note.using(database="other", delay="5m").enqueue("held there")
    assert (stored(), others.get().kind) == ([], HOLD)


@with_another
def test_where_nothing_is_stored_every_database_will_do() -> None:
    with configured(OUTBOX="off") as remote, transaction.atomic(using="other"):
        note.using(database="other").enqueue("hello")
        assert remote.sent == []
    assert remote.texts == ["hello"]


@pytest.mark.parametrize("call", [note.enqueue, lambda text: note.enqueue_after("5m", text)])
def test_a_database_without_tables_is_named(
    call: Callable[[str], Any], remote: StoringBackend
) -> None:
    with without_tables():
        for block in (atomic, contextlib.nullcontext):
            if block is contextlib.nullcontext and call == note.enqueue:
                continue  # stores nothing
            with pytest.raises(ImproperlyConfigured) as caught, block():
                call("hello")
            assert str(caught.value) == (
                "database 'stored' has no table of stored jobs: run manage.py migrate --database"
                " stored"
            )
            assert isinstance(caught.value.__cause__, DatabaseError)
    assert remote.sent == []


def test_an_outage_without_tables_is_an_outage(remote: StoringBackend) -> None:
    remote.on_submit = fail_with(BackendUnavailable("down"))
    with without_tables(), pytest.raises(BackendUnavailable, match="down") as caught:
        note.enqueue("hello")
    assert "run manage.py migrate" in caught.value.__notes__[0]


# On an event loop


@pytest.mark.contract(51)
async def test_an_async_view_stores_in_the_transaction_of_its_sync_code(
    remote: StoringBackend, told: Told
) -> None:
    @sync_to_async
    def place_order(fail: bool) -> None:
        with atomic():
            handle = async_to_sync(note.aenqueue)("gone" if fail else "committed")
            assert handle.enqueued_at is None
            assert len(stored()) == 1
            transaction.set_rollback(fail, using=USING)
        assert stored() == []

    await place_order(fail=False)
    await place_order(fail=True)
    assert remote.texts == told.enqueued == ["committed"]


async def test_what_meets_an_outage_on_a_loop_is_stored(remote: StoringBackend) -> None:
    remote.on_submit = fail_with(BackendUnavailable("down"))
    await aenqueue_many([note.prepare("outage"), note.using(delay="5m").prepare("held")])
    assert await sync_to_async(kinds)() == [HOLD, OUTBOX]
    remote.on_submit = fail_with(PublishFailed("nack"))
    with pytest.raises(PublishFailed):
        await note.aenqueue("refused")
    assert await sync_to_async(stored_texts)() == ["held", "outage"]
