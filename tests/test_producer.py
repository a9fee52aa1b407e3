"""From the enqueue call to the backend: at once, or when the transaction commits."""

import asyncio
import contextlib
import dataclasses
import datetime as dt
import gc
import threading
import time
import types
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured, SynchronousOnlyOperation
from django.db import connections, transaction
from django.db.transaction import TransactionManagementError
from django.http import HttpRequest, HttpResponse
from django.test import AsyncClient, Client, TestCase, override_settings
from django.urls import path

from django_jobq import aenqueue_many, commits, enqueue_many, job, producer, publication, signals
from django_jobq.backends.base import Backend
from django_jobq.backends.handler import backends
from django_jobq.conf import MEMORY_BACKEND
from django_jobq.envelope import Envelope
from django_jobq.exceptions import (
    BackendUnavailable,
    InvalidArguments,
    InvalidDuration,
    PayloadTooLarge,
    PublishFailed,
    QueueFull,
    ShutDown,
    UnknownDatabase,
    UnknownQueue,
)
from django_jobq.publication import Publication
from tests.app.jobs import note
from tests.app.models import Row
from tests.remote import (
    DEADLINE,
    RemoteBackend,
    Told,
    answer_at,
    fail_with,
    hang,
    never_answer,
    refuse_bad,
)

MEMORY = {"BACKEND": MEMORY_BACKEND}
committing = pytest.mark.django_db(transaction=True, databases=["default", "other"])

REMOTE = {"BACKEND": "tests.remote.RemoteBackend"}


@pytest.fixture
def remote() -> Iterator[RemoteBackend]:
    with override_settings(JOBQ={"default": REMOTE}):
        backend = backends["default"]
        assert isinstance(backend, RemoteBackend)
        yield backend
    # What one test leaves without an answer is not waited for in the next one.
    commits._commits.clear()


@pytest.fixture
def short_wait(remote: RemoteBackend) -> None:
    """Let an answer that never comes be waited for only briefly."""
    remote.options = dataclasses.replace(remote.options, publish_timeout=0.05)


@pytest.fixture
def hooks() -> list[str]:
    """Return the names of the foreign hooks that were called, see `foreign_hook()`."""
    return []


def texts(memory: Any, queue: str = "default") -> list[str]:
    return [str(envelope.args[0]) for envelope in memory.pending(queue)]


# Outside of a transaction


@pytest.mark.contract(40, 49)
def test_without_a_transaction_a_job_is_sent_at_once(memory, told: Told) -> None:
    handle = note.enqueue("hello")
    assert texts(memory) == ["hello"]
    assert told.enqueued == ["hello"]
    assert handle.enqueued_at is not None


@pytest.mark.contract(45)
def test_nothing_touches_a_backend_before_the_first_publish(remote: RemoteBackend) -> None:
    backends.reset()
    note.using(delay="5m").prepare("hello")
    enqueue_many([])
    assert backends.opened() == []
    note.enqueue("hello")
    assert [backend.alias for backend in backends.opened()] == ["default"]


@pytest.mark.contract(46)
@pytest.mark.parametrize(
    "call",
    [
        lambda: note.enqueue("hello"),
        lambda: note.enqueue_after("5s", "hello"),
        lambda: note.defer("5s", "hello"),
    ],
)
def test_each_call_goes_out_undeclared_and_says_what_the_transport_says_of_a_missing_object(
    call: Callable[[], Any], remote: RemoteBackend
) -> None:
    call()
    assert remote.texts == ["hello"]
    missing = PublishFailed("queue 'default' does not exist")
    remote.on_submit = fail_with(missing)
    with pytest.raises(PublishFailed, match="queue 'default' does not exist") as caught:
        call()
    assert caught.value is missing


@pytest.mark.contract(49)
def test_the_handle_is_returned_when_the_transport_has_confirmed(
    remote: RemoteBackend, told: Told
) -> None:
    handle = note.enqueue("hello")
    assert [future.done() for future in remote.futures] == [True]
    assert handle.id == remote.sent[0][0].job_id
    assert told.enqueued == ["hello"]
    assert told.threads == {threading.current_thread()}


@pytest.mark.contract(18, 49)
@pytest.mark.parametrize("kind", [PublishFailed, BackendUnavailable])
def test_what_the_transport_refuses_is_raised_with_its_cause(
    kind: type[Exception], remote: RemoteBackend, told: Told
) -> None:
    refusal = kind("not routed")
    refusal.__cause__ = ConnectionResetError("reset")
    remote.on_submit = fail_with(refusal)
    with pytest.raises(kind) as caught:
        note.enqueue("hello")
    assert caught.value is refusal
    assert isinstance(caught.value.__cause__, ConnectionResetError)
    assert (told.enqueued, told.failed) == ([], [])


@pytest.mark.contract(49)
@pytest.mark.usefixtures("short_wait")
def test_a_transport_that_does_not_answer_in_time_is_unavailable(
    remote: RemoteBackend, told: Told
) -> None:
    remote.on_submit = never_answer
    with pytest.raises(BackendUnavailable) as caught:
        note.enqueue("hello")
    assert str(caught.value) == (
        "the transport did not confirm within 0.05 s; whether it has the job is not known"
    )
    assert told.enqueued == []


def test_an_answer_is_waited_for_as_long_as_the_alias_says() -> None:
    entry = {**REMOTE, "OPTIONS": {"publish_timeout": "200ms"}}
    with override_settings(JOBQ={"default": entry}):
        backends["default"].on_submit = never_answer  # type: ignore[attr-defined]
        began = time.monotonic()
        with pytest.raises(BackendUnavailable, match=r"did not confirm within 0\.2 s"):
            note.enqueue("hello")
        assert 0.2 <= time.monotonic() - began < DEADLINE


def test_several_aliases_are_waited_for_as_long_as_the_most_patient_one_says() -> None:
    @job(name="tests.elsewhere", backend="slow")
    def note_elsewhere(text: str) -> None: ...

    with override_settings(
        JOBQ={
            "default": {**REMOTE, "OPTIONS": {"publish_timeout": "200ms"}},
            "slow": {**REMOTE, "OPTIONS": {"publish_timeout": "30s"}},
        }
    ):
        slow = backends["slow"]
        late = threading.Timer(1.0, lambda: slow.settle_all())  # type: ignore[attr-defined]
        slow.on_submit = lambda _: late.start()  # type: ignore[attr-defined]
        enqueue_many([note.prepare("a"), note_elsewhere.prepare("b")])
        late.join()


def test_the_error_of_a_transport_that_keeps_to_its_time_comes_first(
    remote: RemoteBackend, short_wait: None
) -> None:
    precise = BackendUnavailable("node 7 did not confirm")
    late = threading.Timer(0.15, lambda: remote.settle_all(precise))
    remote.on_submit = lambda _: late.start()
    with pytest.raises(BackendUnavailable) as caught:
        note.enqueue("hello")
    late.join()
    assert caught.value is precise


@pytest.mark.usefixtures("short_wait")
def test_what_was_accepted_is_told_when_another_job_has_no_answer(
    remote: RemoteBackend, told: Told
) -> None:
    remote.on_submit = lambda backend: backend.settle_all() if backend.texts == ["a"] else None
    with pytest.raises(BackendUnavailable, match="did not confirm"):
        enqueue_many([note.prepare("a"), note.prepare("b")])
    assert told.enqueued == ["a"]


@pytest.mark.usefixtures("short_wait")
def test_a_transport_that_hangs_is_not_asked_for_each_job_of_a_list(remote: RemoteBackend) -> None:
    remote.on_submit = hang
    with pytest.raises(BackendUnavailable, match="no answer"):
        enqueue_many(note.prepare(str(number)) for number in range(50))
    assert len(remote.sent) <= 2


@pytest.mark.usefixtures("short_wait")
def test_a_transport_that_was_only_slow_gets_all_jobs_of_a_list(remote: RemoteBackend) -> None:
    def connect_slowly(backend: RemoteBackend) -> None:
        if len(backend.sent) == 1:
            time.sleep(0.1)
        backend.settle_all()

    remote.on_submit = connect_slowly
    enqueue_many(note.prepare(text) for text in "abc")
    assert remote.texts == ["a", "b", "c"]


def test_a_closed_backend_refuses_at_once(remote: RemoteBackend) -> None:
    remote.close()
    with pytest.raises(ShutDown, match=r"backend 'default' \(remote\) is closed"):
        note.enqueue("hello")


@pytest.mark.contract(49)
def test_many_jobs_are_one_wait(remote: RemoteBackend, told: Told) -> None:
    remote.on_submit = answer_at(100)
    handles = enqueue_many(note.prepare(str(number)) for number in range(100))
    assert [handle.id for handle in handles] == [envelope.job_id for envelope, _, _ in remote.sent]
    assert told.enqueued == [str(number) for number in range(100)]


@pytest.mark.contract(47, 48)
@pytest.mark.parametrize(
    ("refused", "error"),
    [
        (lambda: note.using(queue="missing").prepare("x"), UnknownQueue),
        (lambda: note.using(database="missing").prepare("x"), UnknownDatabase),
        (lambda: note.using(delay=dt.timedelta.max).prepare("x"), InvalidDuration),
        (lambda: note.prepare("x" * 200_000), PayloadTooLarge),
        (lambda: note.prepare({"x"}), InvalidArguments),  # type: ignore[arg-type]
    ],
)
def test_a_refusal_of_one_job_keeps_all_from_being_sent(
    refused: Callable[[], Any], error: type[Exception], remote: RemoteBackend
) -> None:
    def items() -> Iterator[Any]:
        yield note.prepare("first")
        yield refused()

    with pytest.raises(error):
        enqueue_many(items())
    assert remote.sent == []


@pytest.mark.contract(49, 195)
def test_of_many_that_were_sent_the_accepted_ones_are_told(
    remote: RemoteBackend, told: Told
) -> None:
    remote.on_submit = refuse_bad(PublishFailed("not routed"))
    with pytest.raises(PublishFailed, match="not routed"):
        enqueue_many(note.prepare(text) for text in ("first", "bad", "last"))
    assert remote.texts == ["first", "bad", "last"]
    assert told.enqueued == ["first", "last"]


@pytest.mark.contract(132, 195)
def test_what_went_out_before_a_full_queue_is_told(told: Told) -> None:
    with override_settings(JOBQ={"default": {**MEMORY, "OPTIONS": {"max_pending": 1}}}):
        with pytest.raises(QueueFull) as caught:
            enqueue_many([note.prepare("fits"), note.prepare("does not")])
        assert texts(backends["default"]) == ["fits"]
    assert str(caught.value) == "queue 'default' is full: it holds 1 jobs, its max_pending"
    assert told.enqueued == ["fits"]


@pytest.mark.contract(47)
def test_an_unknown_database_is_refused_naming_the_known_ones(memory) -> None:
    with pytest.raises(UnknownDatabase) as caught:
        note.using(database="othr").enqueue("hello")
    assert str(caught.value) == "DATABASES has no alias 'othr' (known: default, other, stored)"
    assert memory.queue_names() == []


@pytest.mark.contract(105)
@pytest.mark.parametrize(
    "options",
    [
        {"delay": "999999999d"},
        {"delay": dt.timedelta.max},
        {"delay": dt.timedelta(days=365 * 8000)},
        {"run_after": dt.datetime.max.replace(tzinfo=dt.UTC)},
        {"delay": "999999999d", "on_commit": False},
    ],
)
def test_a_delay_beyond_the_calendar_is_refused_at_the_call(
    options: dict[str, Any], remote: RemoteBackend
) -> None:
    with pytest.raises(InvalidDuration, match=r"a delay of .* s ends beyond the calendar"):
        note.using(**options).enqueue("hello")
    assert remote.sent == []


@pytest.mark.contract(105)
@pytest.mark.parametrize("delay", [float("nan"), float("inf"), float("-inf"), -1e12])
def test_a_delay_that_is_not_finite_is_refused(delay: float, remote: RemoteBackend) -> None:
    envelope = Envelope(
        job_id=uuid.uuid4(), job=note.name, queue="default", enqueued_at=0, args=["hello"]
    )
    with pytest.raises(InvalidDuration, match="beyond the calendar"):
        producer.enqueue([Publication(envelope=envelope, backend="default", delay=delay)])
    assert remote.sent == []


def test_the_longest_delay_within_the_calendar_is_accepted(remote: RemoteBackend) -> None:
    note.using(run_after=dt.datetime(9999, 12, 31, tzinfo=dt.UTC)).enqueue("hello")
    assert remote.texts == ["hello"]


def test_a_delay_and_a_place_in_front_reach_the_transport(remote: RemoteBackend) -> None:
    note.enqueue("a")
    note.enqueue_after("90s", "b")
    note.defer("5m", "c")
    note.using(front=True).enqueue("d")
    assert [(delay, front) for _, delay, front in remote.sent] == [
        (0.0, False),
        (90.0, False),
        (300.0, True),
        (0.0, True),
    ]


def test_an_observer_is_called_before_anything_is_sent_and_may_refuse(
    remote: RemoteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def refuse(backend: Backend) -> None:
        seen.append((backend, list(remote.sent)))
        raise ImproperlyConfigured("nothing would run this job")

    monkeypatch.setattr(producer, "_observers", [])
    producer.before_publish(refuse)
    producer.before_publish(refuse)
    with pytest.raises(ImproperlyConfigured, match="nothing would run this job"):
        enqueue_many([note.prepare("a"), note.prepare("b")])
    assert seen == [(remote, [])]
    assert remote.sent == []


# In a transaction


@committing
@pytest.mark.contract(51)
def test_a_job_is_sent_when_its_transaction_commits(memory, told: Told) -> None:
    with transaction.atomic():
        handle = note.enqueue("hello")
        assert memory.queue_names() == []
        assert told.enqueued == []
        assert handle.enqueued_at is None
    assert [envelope.job_id for envelope in memory.pending("default")] == [handle.id]
    assert told.enqueued == ["hello"]


@committing
@pytest.mark.contract(51)
def test_a_job_finds_the_row_it_was_enqueued_with(memory, drain) -> None:
    found = []

    @job(name="look")
    def look(pk: int) -> None:
        found.append(Row.objects.get(pk=pk).name)

    with transaction.atomic():
        row = Row.objects.create(name="first")
        look.enqueue(row.pk)
        drain()
        assert found == []
    drain()
    assert found == ["first"]


@committing
@pytest.mark.contract(51)
def test_a_rollback_leaves_no_job(memory, told: Told) -> None:
    with contextlib.suppress(ZeroDivisionError), transaction.atomic():
        note.enqueue("gone")
        raise ZeroDivisionError
    with transaction.atomic():
        note.enqueue("gone too")
        transaction.set_rollback(True)
    assert memory.queue_names() == []
    note.enqueue("kept")
    assert texts(memory) == told.enqueued == ["kept"]


@committing
@pytest.mark.contract(51)
def test_a_nested_block_waits_for_the_outermost_commit(memory, told: Told) -> None:
    with transaction.atomic():
        note.enqueue("outer")
        with transaction.atomic():
            note.enqueue("inner")
        assert memory.queue_names() == []
        note.enqueue("last")
    assert texts(memory) == told.enqueued == ["outer", "inner", "last"]


@committing
@pytest.mark.contract(51)
def test_a_nested_block_that_is_rolled_back_leaves_no_job(memory, told: Told) -> None:
    with transaction.atomic():
        note.enqueue("outer")
        with contextlib.suppress(ZeroDivisionError), transaction.atomic():
            note.enqueue("gone")
            raise ZeroDivisionError
        note.enqueue("last")
    assert texts(memory) == told.enqueued == ["outer", "last"]


@committing
@pytest.mark.contract(51, 195)
def test_a_nested_block_that_is_rolled_back_last_keeps_nobody_from_being_told(
    memory, told: Told
) -> None:
    with transaction.atomic():
        note.enqueue("outer")
        with contextlib.suppress(ZeroDivisionError), transaction.atomic():
            note.enqueue("gone")
            raise ZeroDivisionError
    assert texts(memory) == ["outer"]
    assert told.enqueued == ["outer"]


@committing
@pytest.mark.contract(49)
@pytest.mark.usefixtures("short_wait")
def test_a_nested_block_that_is_rolled_back_last_keeps_no_failure_from_being_told(
    remote: RemoteBackend, told: Told
) -> None:
    remote.on_submit = never_answer
    with transaction.atomic():
        note.enqueue("outer")
        with contextlib.suppress(ZeroDivisionError), transaction.atomic():
            note.enqueue("gone")
            raise ZeroDivisionError
    assert remote.texts == ["outer"]
    assert [(text, type(error)) for text, error in told.failed] == [("outer", BackendUnavailable)]


def create_savepoint() -> str:
    """Make a savepoint by hand, under the name that Django gives it from 6.1 on or before."""
    name = "savepoint_create" if hasattr(transaction, "savepoint_create") else "savepoint"
    return getattr(transaction, name)()


@committing
@pytest.mark.contract(51)
def test_a_manual_savepoint_keeps_hooks_as_django_does(memory) -> None:
    # Django ties its hooks to the savepoints of atomic() alone, so a manual one drops none.
    with transaction.atomic():
        note.enqueue("before")
        savepoint = create_savepoint()
        note.enqueue("within")
        transaction.savepoint_rollback(savepoint)
        note.enqueue("after")
        assert memory.queue_names() == []
    assert texts(memory) == ["before", "within", "after"]


@committing
@pytest.mark.contract(51)
def test_a_manual_savepoint_that_is_released_changes_nothing(memory) -> None:
    with transaction.atomic():
        savepoint = create_savepoint()
        note.enqueue("within")
        transaction.savepoint_commit(savepoint)
    assert texts(memory) == ["within"]


@committing
@pytest.mark.contract(51)
def test_a_durable_block_is_a_transaction_too(memory) -> None:
    with transaction.atomic(durable=True):
        note.enqueue("hello")
        assert memory.queue_names() == []
    assert texts(memory) == ["hello"]


@committing
@pytest.mark.contract(51)
def test_a_job_enqueued_by_a_hook_is_sent(memory, told: Told) -> None:
    with transaction.atomic():
        transaction.on_commit(lambda: note.enqueue("from a hook"))
        note.enqueue("from the block")
    assert texts(memory) == ["from a hook", "from the block"]
    assert sorted(told.enqueued) == ["from a hook", "from the block"]


@committing
@pytest.mark.contract(49, 51)
def test_a_transaction_with_a_hundred_jobs_waits_once(remote: RemoteBackend, told: Told) -> None:
    # The transport answers the first job only when it has got the last one.
    remote.on_submit = answer_at(100, unless=lambda: told.failed)
    with transaction.atomic():
        for number in range(100):
            note.enqueue(str(number))
        assert remote.sent == []
    assert remote.texts == [str(number) for number in range(100)]
    assert sorted(told.enqueued) == sorted(remote.texts)
    assert told.failed == []
    assert told.threads == {threading.current_thread()}


@committing
@pytest.mark.contract(49, 51)
def test_many_at_once_in_a_transaction_are_one_wait_too(remote: RemoteBackend, told: Told) -> None:
    remote.on_submit = answer_at(30, unless=lambda: told.failed)
    with transaction.atomic():
        note.enqueue("first")
        handles = enqueue_many(note.prepare(str(number)) for number in range(28))
        note.enqueue("last")
        assert {handle.enqueued_at for handle in handles} == {None}
        assert remote.sent == []
    assert remote.texts == ["first", *map(str, range(28)), "last"]
    assert sorted(told.enqueued) == sorted(remote.texts)
    assert told.failed == []


@committing
@pytest.mark.contract(51)
def test_a_refusal_is_raised_in_the_transaction(remote: RemoteBackend) -> None:
    with transaction.atomic():
        with pytest.raises(UnknownQueue):
            note.using(queue="missing").enqueue("hello")
        with pytest.raises(PayloadTooLarge):
            note.enqueue("x" * 200_000)
        with pytest.raises(UnknownQueue):
            enqueue_many([note.prepare("a"), note.using(queue="missing").prepare("b")])
    assert remote.sent == []


@committing
def test_on_commit_false_does_not_wait_for_the_commit(memory, told: Told) -> None:
    with transaction.atomic():
        handle = note.using(on_commit=False).enqueue("now")
        later = note.enqueue("later")
        assert texts(memory) == told.enqueued == ["now"]
        assert (handle.enqueued_at is None, later.enqueued_at is None) == (False, True)
        transaction.set_rollback(True)
    assert texts(memory) == ["now"]


@committing
def test_some_of_many_may_not_wait_for_the_commit(memory, told: Told) -> None:
    with transaction.atomic():
        handles = enqueue_many([note.prepare("later"), note.using(on_commit=False).prepare("now")])
        assert texts(memory) == ["now"]
        assert [handle.enqueued_at is None for handle in handles] == [True, False]
    assert texts(memory) == told.enqueued == ["now", "later"]


@committing
def test_a_delay_is_measured_from_the_call_and_not_from_the_commit(
    remote: RemoteBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(
        publication, "time", types.SimpleNamespace(time=time.time, monotonic=lambda: now)
    )
    with transaction.atomic():
        note.enqueue_after("60s", "a")
        now += 10
        note.defer("60s", "b")
        note.enqueue_after("5s", "c")
        note.enqueue("d")
        now += 20
    assert [(delay, front) for _, delay, front in remote.sent] == [
        (30.0, False),
        (40.0, True),
        (0.0, False),
        (0.0, False),
    ]


# Which transaction


@committing
@pytest.mark.contract(51)
def test_the_transaction_of_another_database_does_not_count(memory) -> None:
    with transaction.atomic(using="other"):
        note.enqueue("hello")
        assert texts(memory) == ["hello"]


@committing
@pytest.mark.contract(51)
def test_the_call_may_name_the_database_whose_commit_counts(memory) -> None:
    with transaction.atomic(using="other"):
        with transaction.atomic():
            note.using(database="other").enqueue("hello")
        assert memory.queue_names() == []
    assert texts(memory) == ["hello"]


@committing
@pytest.mark.contract(51)
def test_the_settings_may_name_the_database_whose_commit_counts() -> None:
    with override_settings(JOBQ={"default": {**MEMORY, "DATABASE": "other"}}):
        memory: Any = backends["default"]
        with transaction.atomic():
            note.enqueue("at once")
            assert texts(memory) == ["at once"]
        with transaction.atomic(using="other"):
            note.enqueue("at the commit")
            with transaction.atomic():
                note.using(database="default").enqueue("named")
            assert texts(memory) == ["at once", "named"]
        assert texts(memory) == ["at once", "named", "at the commit"]


@committing
@pytest.mark.contract(51)
def test_each_database_releases_its_own_jobs(memory, told: Told) -> None:
    with transaction.atomic():
        with contextlib.suppress(ZeroDivisionError), transaction.atomic(using="other"):
            enqueue_many([note.prepare("default"), note.using(database="other").prepare("other")])
            raise ZeroDivisionError
        with transaction.atomic(using="other"):
            enqueue_many(
                [note.using(database="other").prepare("other again"), note.prepare("default again")]
            )
        assert texts(memory) == told.enqueued == ["other again"]
    assert texts(memory) == told.enqueued == ["other again", "default", "default again"]


def test_a_database_that_is_not_open_is_not_opened(memory) -> None:
    # Without a mark for the database the test could not open it.
    note.enqueue("hello")
    note.using(database="other").enqueue("hello")
    assert texts(memory) == ["hello", "hello"]


@committing
@pytest.mark.contract(51)
def test_with_autocommit_off_there_is_no_commit_to_wait_for(memory) -> None:
    transaction.set_autocommit(False)
    try:
        with pytest.raises(TransactionManagementError) as caught:
            note.enqueue("hello")
        assert str(caught.value) == (
            "Autocommit is off on database 'default', so there is no commit that would release the"
            " job. Turn it on and use transaction.atomic(), or enqueue after your own commit with"
            " .using(on_commit=False)."
        )
        assert memory.queue_names() == []
        note.using(on_commit=False).enqueue("now")
        assert texts(memory) == ["now"]
    finally:
        transaction.rollback()
        transaction.set_autocommit(True)
    note.enqueue("later")
    assert texts(memory) == ["now", "later"]


@committing
@pytest.mark.contract(51)
def test_with_autocommit_off_a_block_is_refused_or_waits_for_the_commit(memory) -> None:
    refused = False
    transaction.set_autocommit(False)
    try:
        with transaction.atomic():
            try:
                note.enqueue("hello")
            except TransactionManagementError:
                refused = True
        assert memory.queue_names() == []
        transaction.commit()
    finally:
        transaction.set_autocommit(True)
    assert texts(memory) == ([] if refused else ["hello"])


def test_autocommit_may_be_off_before_the_connection_is_open(
    memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    connection = connections["other"]
    monkeypatch.setattr(connection, "connection", None)
    monkeypatch.setitem(connection.settings_dict, "AUTOCOMMIT", False)
    with pytest.raises(TransactionManagementError, match="Autocommit is off on database 'other'"):
        note.using(database="other").enqueue("hello")
    assert memory.queue_names() == []


@committing
@pytest.mark.contract(51)
def test_each_thread_has_transactions_of_its_own(memory) -> None:
    def work(number: int) -> None:
        try:
            with transaction.atomic():
                note.enqueue(f"committed {number}")
            with transaction.atomic():
                note.enqueue(f"gone {number}")
                transaction.set_rollback(True)
        finally:
            raw = connections["default"].connection
            connections.close_all()
            raw.close()

    with transaction.atomic():
        note.enqueue("mine")
        threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
            thread.join(DEADLINE)
        assert texts(memory) == [f"committed {number}" for number in range(6)]
    assert texts(memory)[-1] == "mine"


def test_threads_may_enqueue_at_once(remote: RemoteBackend) -> None:
    start = threading.Barrier(8)

    def work(number: int) -> None:
        start.wait(DEADLINE)
        for step in range(10):
            note.enqueue(f"{number}.{step}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)
    assert sorted(remote.texts) == sorted(f"{a}.{b}" for a in range(8) for b in range(10))
    for number in range(8):
        own = [text for text in remote.texts if text.startswith(f"{number}.")]
        assert own == [f"{number}.{step}" for step in range(10)]


# When publishing fails after the commit


@committing
@pytest.mark.parametrize(
    "error", [PublishFailed("not routed"), BackendUnavailable("refused"), OSError("reset")]
)
def test_a_failure_after_the_commit_is_logged_and_told(
    error: Exception, remote: RemoteBackend, told: Told, hooks: list[str], caplog
) -> None:
    remote.on_submit = fail_with(error)
    with transaction.atomic():
        transaction.on_commit(lambda: hooks.append("before"))
        handle = note.enqueue("hello")
        transaction.on_commit(lambda: hooks.append("after"))
    assert hooks == ["before", "after"]
    assert told.failed == [("hello", error)]
    assert told.enqueued == []
    [record] = [entry for entry in caplog.records if entry.name == "django_jobq.producer"]
    assert record.levelname == "ERROR"
    assert record.getMessage() == (
        f"Job tests.app.jobs.note ({handle.id}) was NOT published after its transaction committed:"
        f" {error}"
    )
    assert record.exc_info[1] is error
    assert (record.job_id, record.job, record.queue, record.attempt) == (
        handle.id,
        "tests.app.jobs.note",
        "default",
        1,
    )


@committing
def test_a_failure_is_told_on_the_thread_that_enqueued(remote: RemoteBackend, told: Told) -> None:
    # A receiver may use the database, and the transport's thread has no business there.
    remote.on_submit = fail_with(PublishFailed("not routed"), count=2)
    with transaction.atomic():
        note.enqueue("a")
        note.enqueue("b")
    assert sorted(text for text, _ in told.failed) == ["a", "b"]
    assert told.threads == {threading.current_thread()}


@committing
def test_a_failure_is_told_with_the_job_and_the_alias(remote: RemoteBackend) -> None:
    received = []

    def receive(**kwargs: Any) -> None:
        received.append(kwargs)

    remote.on_submit = fail_with(PublishFailed("not routed"))
    signals.job_enqueue_failed.connect(receive)
    try:
        with transaction.atomic():
            handle = note.enqueue("hello")
    finally:
        signals.job_enqueue_failed.disconnect(receive)
    [kwargs] = received
    assert set(kwargs) == {"signal", "sender", "envelope", "error", "backend"}
    assert (kwargs["sender"], kwargs["backend"]) == (note, "default")
    assert kwargs["envelope"].job_id == handle.id


@committing
def test_a_backend_that_raises_at_the_call_does_not_stop_the_hooks(
    remote: RemoteBackend, told: Told, hooks: list[str], caplog
) -> None:
    with transaction.atomic():
        note.enqueue("hello")
        note.enqueue("again")
        transaction.on_commit(lambda: hooks.append("after"))
        remote.close()
    assert hooks == ["after"]
    assert [(text, type(error)) for text, error in told.failed] == [
        ("hello", ShutDown),
        ("again", ShutDown),
    ]
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]


@committing
def test_a_failure_of_one_job_does_not_keep_back_the_others(
    remote: RemoteBackend, told: Told
) -> None:
    refused = PublishFailed("not routed")
    remote.on_submit = refuse_bad(refused)
    with transaction.atomic():
        for text in ("first", "bad", "last"):
            note.enqueue(text)
    assert told.enqueued == ["first", "last"]
    assert told.failed == [("bad", refused)]


@committing
@pytest.mark.usefixtures("short_wait")
def test_no_answer_after_the_commit_is_told_once(
    remote: RemoteBackend, told: Told, hooks: list[str], caplog
) -> None:
    remote.on_submit = never_answer
    with transaction.atomic():
        note.enqueue("a")
        note.enqueue("b")
        transaction.on_commit(lambda: hooks.append("after"))
    assert hooks == ["after"]
    assert [(text, type(error)) for text, error in told.failed] == [
        ("a", BackendUnavailable),
        ("b", BackendUnavailable),
    ]
    assert "the transport did not confirm within 0.05 s" in caplog.messages[0]
    remote.settle_all(PublishFailed("much later"), wait=True)
    assert [text for text, _ in told.failed] == ["a", "b"]


@committing
@pytest.mark.usefixtures("short_wait")
def test_a_transport_that_hangs_is_not_asked_for_each_job_of_a_transaction(
    remote: RemoteBackend, told: Told
) -> None:
    remote.on_submit = hang
    with transaction.atomic():
        for number in range(50):
            note.enqueue(str(number))
    assert len(remote.sent) <= 2
    assert [text for text, _ in told.failed] == [str(number) for number in range(50)]


@committing
@pytest.mark.usefixtures("short_wait")
def test_the_time_that_foreign_hooks_take_is_not_the_transports(remote: RemoteBackend) -> None:
    refusals = iter([BackendUnavailable("the connection is just being replaced")])

    def refuse_once(backend: RemoteBackend) -> None:
        for refusal in refusals:
            raise refusal
        backend.settle_all()

    remote.on_submit = refuse_once
    with transaction.atomic():
        note.enqueue("refused")
        transaction.on_commit(lambda: time.sleep(0.2))
        note.enqueue("accepted")
    assert remote.texts == ["refused", "accepted"]


@committing
@pytest.mark.usefixtures("short_wait")
def test_no_answer_is_not_said_to_be_a_failure(remote: RemoteBackend, caplog) -> None:
    remote.on_submit = never_answer
    with transaction.atomic():
        note.enqueue("a")
    [message] = caplog.messages
    assert "is not known" in message
    assert "was NOT published" not in message


@committing
def test_a_cancelled_confirm_does_not_stop_the_hooks(
    remote: RemoteBackend, told: Told, hooks: list[str]
) -> None:
    remote.on_submit = lambda backend: backend.futures[-1].cancel()
    with transaction.atomic():
        note.enqueue("hello")
        transaction.on_commit(lambda: hooks.append("after"))
    assert hooks == ["after"]
    assert [text for text, _ in told.failed] == ["hello"]


@committing
def test_a_full_queue_is_told_after_the_commit(told: Told) -> None:
    entry = {**MEMORY, "OPTIONS": {"max_pending": 1}}
    with override_settings(JOBQ={"default": entry}), transaction.atomic():
        note.enqueue("fits")
        note.enqueue("does not")
    assert told.enqueued == ["fits"]
    assert [(text, type(error)) for text, error in told.failed] == [("does not", QueueFull)]


@committing
def test_a_receiver_that_raises_does_not_stop_the_hooks(
    remote: RemoteBackend, hooks: list[str]
) -> None:
    def explode(**_: Any) -> None:
        raise ValueError("receiver failed")

    remote.on_submit = fail_with(PublishFailed("not routed"))
    signals.job_enqueue_failed.connect(explode)
    try:
        with transaction.atomic():
            note.enqueue("hello")
            transaction.on_commit(lambda: hooks.append("after"))
    finally:
        signals.job_enqueue_failed.disconnect(explode)
    assert hooks == ["after"]


# Beside the hooks of others


def explode() -> None:
    raise ZeroDivisionError("a foreign hook")


@committing
def test_a_foreign_hook_that_raises_behind_ours_changes_nothing(memory, told: Told) -> None:
    with pytest.raises(ZeroDivisionError, match="a foreign hook"):
        commit_with(lambda: note.enqueue("hello"), explode)
    assert texts(memory) == told.enqueued == ["hello"]


@committing
def test_a_foreign_hook_that_raises_before_ours_does_not_reach_the_next_transaction(
    memory, told: Told
) -> None:
    # Django drops the hooks behind one that raises; what it dropped must not come back later.
    with pytest.raises(ZeroDivisionError, match="a foreign hook"):
        commit_with(explode, lambda: note.enqueue("dropped"))
    with transaction.atomic():
        note.enqueue("next")
    assert texts(memory) == told.enqueued == ["next"]


@committing
def test_a_robust_foreign_hook_that_raises_changes_nothing(memory, told: Told) -> None:
    with transaction.atomic():
        transaction.on_commit(explode, robust=True)
        note.enqueue("hello")
        transaction.on_commit(explode, robust=True)
    assert texts(memory) == told.enqueued == ["hello"]


def commit_with(*steps: Callable[[], Any]) -> None:
    """Commit a transaction of which `explode` becomes a hook and the rest is called."""
    with transaction.atomic():
        for step in steps:
            if step is explode:
                transaction.on_commit(explode)
            else:
                step()


# In the tests of a project


@pytest.mark.django_db
@pytest.mark.contract(51)
def test_captured_hooks_send_the_jobs(memory, told: Told) -> None:
    with TestCase.captureOnCommitCallbacks(execute=True) as callbacks:
        note.enqueue("a")
        note.enqueue("b")
        assert memory.queue_names() == []
    assert len(callbacks) == 2
    assert texts(memory) == told.enqueued == ["a", "b"]


@pytest.mark.django_db
@pytest.mark.contract(51)
def test_captured_hooks_that_are_not_executed_send_nothing(memory) -> None:
    with TestCase.captureOnCommitCallbacks() as callbacks:
        note.enqueue("a")
    assert (len(callbacks), memory.queue_names()) == (1, [])
    callbacks[0]()
    assert texts(memory) == ["a"]


@pytest.mark.django_db
@pytest.mark.contract(51)
def test_many_at_once_are_one_hook(memory) -> None:
    with TestCase.captureOnCommitCallbacks() as callbacks:
        enqueue_many([note.prepare("a"), note.prepare("b")])
    assert len(callbacks) == 1


@pytest.mark.django_db
@pytest.mark.contract(51)
def test_a_test_case_captures_what_nested_blocks_leave(memory, told: Told) -> None:
    with TestCase.captureOnCommitCallbacks(execute=True), transaction.atomic():
        note.enqueue("kept")
        with contextlib.suppress(ZeroDivisionError), transaction.atomic():
            note.enqueue("gone")
            raise ZeroDivisionError
    assert texts(memory) == told.enqueued == ["kept"]


@pytest.mark.django_db
def test_in_a_test_case_nothing_is_sent_without_capturing(memory) -> None:
    handle = note.enqueue("hello")
    assert handle.enqueued_at is None
    assert memory.queue_names() == []


# On an event loop


async def test_a_sync_enqueue_on_an_event_loop_is_refused(memory) -> None:
    for call in (
        lambda: note.enqueue("hello"),
        lambda: note.enqueue_after("5s", "hello"),
        lambda: note.defer("5s", "hello"),
        lambda: enqueue_many([note.prepare("hello")]),
    ):
        with pytest.raises(SynchronousOnlyOperation) as caught:
            call()
        assert str(caught.value) == (
            "You cannot enqueue from an event loop this way: use await job.aenqueue()."
        )
    assert memory.queue_names() == []


async def test_an_async_enqueue_waits_for_the_transport(remote: RemoteBackend, told: Told) -> None:
    handle = await note.aenqueue("hello")
    assert [future.done() for future in remote.futures] == [True]
    assert handle.id == remote.sent[0][0].job_id
    assert told.enqueued == ["hello"]


async def begin_enqueuing(remote: RemoteBackend) -> asyncio.Task[Any]:
    """Return the task of an enqueue that has sent its job and waits for the answer."""
    loop, sent = asyncio.get_running_loop(), asyncio.Event()
    remote.on_submit = lambda _: loop.call_soon_threadsafe(sent.set)
    enqueuing = asyncio.create_task(note.aenqueue("hello"))
    await asyncio.wait_for(sent.wait(), DEADLINE)
    return enqueuing


async def test_an_async_enqueue_does_not_block_the_loop(remote: RemoteBackend) -> None:
    enqueuing = await begin_enqueuing(remote)
    assert not enqueuing.done()
    remote.settle_all()
    handle = await asyncio.wait_for(enqueuing, DEADLINE)
    assert handle.id == remote.sent[0][0].job_id


@pytest.mark.contract(49)
async def test_many_async_enqueues_are_one_wait(remote: RemoteBackend, told: Told) -> None:
    remote.on_submit = answer_at(100)
    handles = await aenqueue_many(note.prepare(str(number)) for number in range(100))
    assert len(handles) == 100
    assert told.enqueued == [str(number) for number in range(100)]


@pytest.mark.contract(49)
@pytest.mark.parametrize("kind", [PublishFailed, BackendUnavailable])
async def test_an_async_enqueue_raises_what_the_transport_says(
    kind: type[Exception], remote: RemoteBackend, told: Told
) -> None:
    error = kind("not routed")
    remote.on_submit = fail_with(error)
    with pytest.raises(kind, match="not routed") as caught:
        await note.aenqueue("hello")
    assert caught.value is error
    assert told.enqueued == []


@pytest.mark.contract(49, 195)
async def test_of_many_async_ones_the_accepted_ones_are_told(
    remote: RemoteBackend, told: Told
) -> None:
    remote.on_submit = refuse_bad(PublishFailed("not routed"))
    with pytest.raises(PublishFailed, match="not routed"):
        await aenqueue_many(note.prepare(text) for text in ("first", "bad", "last"))
    assert told.enqueued == ["first", "last"]


@pytest.mark.usefixtures("short_wait")
async def test_a_failure_after_the_caller_has_given_up_leaves_no_noise(
    remote: RemoteBackend, caplog
) -> None:
    remote.on_submit = never_answer
    with pytest.raises(BackendUnavailable):
        await note.aenqueue("hello")
    remote.settle_all(PublishFailed("much later"), wait=True)
    for _ in range(10):
        await asyncio.sleep(0)
    gc.collect()
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


@pytest.mark.contract(49)
@pytest.mark.usefixtures("short_wait")
async def test_an_async_enqueue_gives_up_in_time(remote: RemoteBackend) -> None:
    remote.on_submit = never_answer
    with pytest.raises(BackendUnavailable, match=r"did not confirm within 0\.05 s"):
        await note.aenqueue("hello")
    assert not remote.futures[0].cancelled()


async def test_a_cancelled_caller_does_not_cancel_the_publishing(remote: RemoteBackend) -> None:
    enqueuing = await begin_enqueuing(remote)
    enqueuing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await enqueuing
    assert not remote.futures[0].cancelled()
    remote.futures[0].set_result(None)


async def test_async_enqueues_may_overlap(remote: RemoteBackend) -> None:
    remote.on_submit = answer_at(20)
    handles = await asyncio.wait_for(
        asyncio.gather(*(note.aenqueue(str(number)) for number in range(20))), DEADLINE
    )
    assert len({handle.id for handle in handles}) == 20


async def view_enqueue(request: HttpRequest) -> HttpResponse:
    handle = await note.aenqueue("from a view")
    return HttpResponse(str(handle.id))


async def view_enqueue_wrongly(request: HttpRequest) -> HttpResponse:
    return HttpResponse(str(note.enqueue("from a view").id))


async def view_transaction(request: HttpRequest) -> HttpResponse:
    @sync_to_async
    def place_order(fail: bool) -> str:
        with transaction.atomic():
            handle = note.enqueue("committed" if not fail else "gone")
            transaction.set_rollback(fail)
        return str(handle.enqueued_at)

    return HttpResponse(await place_order("fail" in request.GET))


def view_sync(request: HttpRequest) -> HttpResponse:
    return HttpResponse(str(note.enqueue("from a view").enqueued_at))


urlpatterns = [
    path("enqueue/", view_enqueue),
    path("wrongly/", view_enqueue_wrongly),
    path("transaction/", view_transaction),
    path("sync/", view_sync),
]


@committing
@override_settings(ROOT_URLCONF=__name__)
async def test_an_async_view_enqueues(memory) -> None:
    response = await AsyncClient().get("/enqueue/")
    assert [str(envelope.job_id) for envelope in memory.pending("default")] == [
        response.content.decode()
    ]


@committing
@override_settings(ROOT_URLCONF=__name__)
async def test_an_async_view_that_enqueues_the_sync_way_is_told_so(memory) -> None:
    with pytest.raises(SynchronousOnlyOperation, match=r"use await job\.aenqueue\(\)"):
        await AsyncClient().get("/wrongly/")
    assert memory.queue_names() == []


@committing
@pytest.mark.contract(51)
@override_settings(ROOT_URLCONF=__name__)
async def test_an_async_view_has_its_transactions_in_sync_code(memory) -> None:
    response = await AsyncClient().get("/transaction/")
    assert response.content == b"None"
    await AsyncClient().get("/transaction/?fail=1")
    assert texts(memory) == ["committed"]


@committing
@override_settings(ROOT_URLCONF=__name__)
async def test_a_sync_view_under_asgi_enqueues(memory) -> None:
    await AsyncClient().get("/sync/")
    assert texts(memory) == ["from a view"]


@committing
@pytest.mark.contract(51)
@override_settings(ROOT_URLCONF=__name__)
def test_a_view_in_a_transaction_of_its_request_enqueues_at_the_commit(
    memory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(connections["default"].settings_dict, "ATOMIC_REQUESTS", True)
    assert Client().get("/sync/").content == b"None"
    assert texts(memory) == ["from a view"]


# When the settings change


def test_changed_settings_make_new_backends_and_close_the_old_ones() -> None:
    before: Any = backends["default"]
    with override_settings(JOBQ={"default": MEMORY, "second": REMOTE}):
        during, second = backends["default"], backends["second"]
        assert during is not before
        assert before.is_closed
        with pytest.raises(ShutDown):
            before.publish(Envelope(job_id=uuid.uuid4(), job="a", queue="default", enqueued_at=0))
        assert isinstance(second, RemoteBackend)
        note.enqueue("hello")
        assert during.counts("default").ready == 1
    assert during.is_closed  # type: ignore[attr-defined]
    assert second.is_closed
    after: Any = backends["default"]
    assert after is not during
    assert after.counts("default").ready == 0


def test_another_setting_leaves_the_backends_alone() -> None:
    before = backends["default"]
    with override_settings(DEBUG=True):
        assert backends["default"] is before
    assert backends["default"] is before


@committing
def test_a_backend_that_was_replaced_before_the_commit_is_not_used(told: Told, caplog) -> None:
    with transaction.atomic():
        note.enqueue("hello")
        with override_settings(JOBQ={"default": MEMORY}):
            pass
    assert told.enqueued == []
    assert [(text, type(error)) for text, error in told.failed] == [("hello", ShutDown)]
    assert "backend 'default' (memory) is closed" in caplog.text


def test_an_app_that_is_not_installed_takes_no_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it in INSTALLED_APPS nothing would run them, so that is said at the first call."""
    monkeypatch.setattr(producer, "_observers", [])
    with pytest.raises(ImproperlyConfigured, match="add 'django_jobq' to INSTALLED_APPS"):
        note.enqueue("hello")
