"""Trials of tests: a project's own tests run its jobs without a server, thread or commit."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.core.management import call_command
from django.db import connection, transaction
from django.test import TestCase, override_settings

from django_jobq import RetryPolicy, job
from django_jobq.backends.handler import backends
from django_jobq.backends.memory import MemoryBackend
from tests.app.models import Row


def burst() -> None:
    call_command("runworker", burst=True, verbosity=0)


def define_jobs() -> Any:
    """Define a job that changes a row and enqueues another one to do the same."""

    @job(name="trial.second")
    def second(pk: int) -> None:
        Row.objects.filter(pk=pk).update(name="second")

    @job(name="trial.first")
    def first(pk: int) -> None:
        row = Row.objects.get(pk=pk)
        row.name = "first"
        row.save()
        second.enqueue(pk)

    return first


class TestInsideATransaction(TestCase):
    """What a project writes in an ordinary TestCase."""

    def test_b172_captured_commits_release_the_jobs(self) -> None:
        """Executed commit callbacks publish a job, also one that a job enqueues."""
        first = define_jobs()
        row = Row.objects.create(name="new")

        with self.captureOnCommitCallbacks(execute=True) as callbacks:
            first.enqueue(row.pk)
            assert backends["default"].counts("default").ready == 0
        assert len(callbacks) == 1
        with self.captureOnCommitCallbacks(execute=True):
            burst()
        row.refresh_from_db()
        assert row.name == "first"
        burst()

        row.refresh_from_db()
        assert row.name == "second"
        assert backends["default"].counts("default").dead == 0

    def test_b172_without_a_commit_nothing_is_enqueued(self) -> None:
        """A transaction that never commits publishes nothing, and its next test starts empty."""
        first = define_jobs()

        first.enqueue(1)
        burst()

        assert backends["default"].counts("default").ready == 0

    def test_b172_a_call_may_do_without_the_commit(self) -> None:
        """A call that does not wait for a commit is published inside the test's transaction."""
        first = define_jobs()
        row = Row.objects.create(name="new")

        first.using(on_commit=False).enqueue(row.pk)
        burst()

        row.refresh_from_db()
        assert row.name == "first"


@pytest.mark.django_db
def test_b172_the_fixture_of_pytest_django_works_too(
    django_capture_on_commit_callbacks: Callable[..., Any], drain: Callable[..., None]
) -> None:
    """Under pytest, captured callbacks publish what ordinary code enqueued."""
    first = define_jobs()
    row = Row.objects.create(name="new")

    with django_capture_on_commit_callbacks(execute=True), transaction.atomic():
        first.enqueue(row.pk)
    with django_capture_on_commit_callbacks(execute=True):
        drain()

    row.refresh_from_db()
    assert row.name == "first"


@pytest.mark.django_db
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_b174_jobs_use_the_thread_and_connection_of_the_test(
    kind: str, drain: Callable[..., None]
) -> None:
    """A job run by a test sees the test's uncommitted rows and writes where the test reads."""
    threads: list[threading.Thread] = []
    row = Row.objects.create(name="uncommitted")

    def update(pk: int) -> None:
        threads.append(threading.current_thread())
        assert connection.in_atomic_block
        Row.objects.filter(pk=pk, name="uncommitted").update(name="by the job")

    async def update_async(pk: int) -> None:
        found = await Row.objects.aget(pk=pk)
        found.name = "by the job"
        await found.asave()
        await sync_to_async(update)(pk)

    made = job(update if kind == "sync" else update_async, name="trial.update")
    made.using(on_commit=False).enqueue(row.pk)
    drain()

    row.refresh_from_db()
    assert row.name == "by the job"
    assert threads == [threading.current_thread()]
    assert connection.in_atomic_block
    assert Row.objects.count() == 1


@pytest.mark.django_db
@pytest.mark.contract(72)
def test_b174_a_database_error_in_a_job_leaves_the_test_usable(
    memory: MemoryBackend, drain: Callable[..., None]
) -> None:
    """A job that fails inside its own block breaks neither the test's transaction nor the next."""

    @job(name="trial.breaks", retry=RetryPolicy.none(2))
    def breaks() -> None:
        with transaction.atomic():
            Row.objects.create(name="gone")
            Row.objects.create(pk="no number", name="x")

    breaks.using(on_commit=False).enqueue()
    drain()

    assert Row.objects.count() == 0
    assert [letter.attempts for letter in memory.dead_letters("default")] == [2]


async def test_b174_an_async_test_runs_jobs_through_a_thread(memory: MemoryBackend) -> None:
    """An async test enqueues with the async call and runs the jobs through sync_to_async."""
    ran = []

    @job(name="trial.sync")
    def runs() -> None:
        ran.append("sync")

    @job(name="trial.async")
    async def runs_async() -> None:
        ran.append("async")

    await runs.aenqueue()
    await runs_async.aenqueue()
    await sync_to_async(burst)()

    assert sorted(ran) == ["async", "sync"]


def memory_settings(**options: Any) -> dict[str, Any]:
    entry = {"BACKEND": "django_jobq.backends.memory.MemoryBackend", "OPTIONS": options}
    return {"default": entry}


def test_b176_each_call_uses_the_settings_of_its_moment() -> None:
    """Changed settings hold for the very next call, with the old backend closed, and back again."""

    @job(name="trial.note")
    def note(text: str) -> None: ...

    note.enqueue("outer")
    outer = backends["default"]
    bound = note.using(priority=1)
    prepared = note.prepare("prepared")
    with override_settings(JOBQ=memory_settings(max_payload=1_000)):
        bound.enqueue("inner")
        inner = backends["default"]
        assert isinstance(inner, MemoryBackend)
        assert inner is not outer
        assert outer.is_closed  # type: ignore[attr-defined]
        assert [item.args for item in inner.pending("default")] == [["inner"]]
        with pytest.raises(Exception, match="more than the limit of 1,000"):
            note.enqueue("x" * 1_000)
    assert inner.is_closed
    prepared.job.enqueue("back")
    back = backends["default"]
    assert back not in (inner, outer)
    assert back.counts("default").ready == 1
    note.enqueue("x" * 1_000)


@override_settings(JOBQ=memory_settings(max_pending=1))
class TestWithOtherSettings(TestCase):
    """Settings of a class and of a method."""

    def test_b176_a_class_has_its_own_backend(self) -> None:
        """The settings of the class hold in its methods."""
        assert backends["default"].options.max_pending == 1  # type: ignore[attr-defined]

    @override_settings(JOBQ=memory_settings(max_pending=2))
    def test_b176_a_method_has_its_own_backend(self) -> None:
        """The settings of the method come before those of the class."""
        assert backends["default"].options.max_pending == 2  # type: ignore[attr-defined]


def test_b176_settings_that_are_wrong_are_told_at_the_call() -> None:
    """A wrong setting raises at the next call, and a right one after it is used again."""

    @job(name="trial.note")
    def note() -> None: ...

    for wrong, message in (
        ({"default": {}}, r"JOBQ\['default'\] has no 'BACKEND'"),
        ({"default": {"BACKEND": "nowhere.Backend"}}, "cannot import 'nowhere.Backend'"),
        (memory_settings(max_pendign=1), "did you mean 'max_pending'"),
        ({"other": {"BACKEND": "x.Y"}}, "JOBQ has no backend 'default'"),
        (None, "JOBQ is no dict"),
    ):
        with override_settings(JOBQ=wrong), pytest.raises(Exception, match=message):
            note.enqueue()
    note.enqueue()

    assert backends["default"].counts("default").ready == 1
