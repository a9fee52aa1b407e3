"""Trials of isolation: what one job does to its surroundings, the next one does not see."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest
from django.test import override_settings
from django.utils import timezone, translation

from django_jobq import Defer, RetryPolicy, current_job, job
from django_jobq.backends.handler import backends
from django_jobq.backends.memory import MemoryBackend
from django_jobq.context import JobLogFilter
from django_jobq.registry import registry
from django_jobq.worker.worker import Worker
from tests.trials.project import Project, within

bound: ContextVar[str] = ContextVar("bound", default="nothing")


def state() -> tuple[str | None, str, str]:
    """Return what a job could leave behind: language, zone and a context variable."""
    return translation.get_language(), timezone.get_current_timezone_name(), bound.get()


def disturb(text: str) -> None:
    translation.activate("de")
    timezone.activate("Asia/Tokyo")
    bound.set(text)


@pytest.mark.parametrize("runner", ["work", "drain"])
@pytest.mark.parametrize("ending", ["returns", "raises", "exits", "times out", "defers"])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_b159_nothing_of_a_job_is_seen_by_the_next(
    kind: str, ending: str, runner: str, request: pytest.FixtureRequest
) -> None:
    """Language, time zone and context variables of a job end with it, however it ends."""
    seen: list[Any] = []

    def end() -> None:
        match ending:
            case "raises":
                raise ValueError
            case "exits":
                raise SystemExit
            case "defers":
                raise Defer("1h")

    def leaves() -> None:
        disturb("left")
        while ending == "times out":
            time.sleep(0.001)
        end()

    async def leaves_async() -> None:
        disturb("left")
        if ending == "times out":
            await asyncio.Event().wait()
        end()

    @job(name="trial.looks")
    def looks() -> None:
        seen.append(state())

    @job(name="trial.looks-async")
    async def looks_async() -> None:
        seen.append(state())

    before = state()
    job(
        leaves if kind == "sync" else leaves_async,
        name="trial.leaves",
        timeout="50ms" if ending == "times out" else None,
        retry=RetryPolicy.none(2),
    ).enqueue()
    looks.enqueue()
    looks_async.enqueue()
    looks.enqueue()
    run = request.getfixturevalue(runner)
    if runner == "work":
        within(10, lambda: run(concurrency=1))
    else:
        run()

    assert before == ("en-us", "America/Chicago", "nothing")
    assert seen == [before] * 3
    assert state() == before


def test_b159_async_jobs_that_interleave_do_not_see_each_other(work: Callable[..., Any]) -> None:
    """Two async jobs that take turns on one loop each keep their own language and zone."""
    seen: dict[str, Any] = {}
    arrived: dict[str, asyncio.Event] = {}

    @job(name="trial.turns")
    async def turns(language: str, other: str) -> None:
        for name in (language, other):
            arrived.setdefault(name, asyncio.Event())
        translation.activate(language)
        bound.set(language)
        arrived[language].set()
        await arrived[other].wait()
        await asyncio.sleep(0)
        seen[language] = (translation.get_language(), bound.get())

    turns.enqueue("de", "fr")
    turns.enqueue("fr", "de")
    within(10, lambda: work(concurrency=2))

    assert seen == {"de": ("de", "de"), "fr": ("fr", "fr")}


def test_b159_jobs_do_not_run_in_the_language_of_the_worker_s_caller(
    work: Callable[..., Any],
) -> None:
    """A worker with lanes of its own runs sync and async jobs in the project's language."""
    seen = []

    @job(name="trial.looks")
    def looks() -> None:
        seen.append(state())

    @job(name="trial.looks-async")
    async def looks_async() -> None:
        seen.append(state())

    looks.enqueue()
    looks_async.enqueue()
    with translation.override("de"), timezone.override("Asia/Tokyo"):
        work(concurrency=1)

    assert seen == [("en-us", "America/Chicago", "nothing")] * 2


@pytest.mark.contract(200)
@pytest.mark.parametrize("ending", ["returns", "raises", "times out", "unknown", "undecodable"])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_b161_the_log_context_ends_with_its_job(
    kind: str, ending: str, memory: MemoryBackend, caplog: pytest.LogCaptureFixture
) -> None:
    """Records of a job carry its fields; those before, between and after carry none of it."""
    logger = logging.getLogger("trial")
    caplog.handler.addFilter(context_filter := JobLogFilter())
    caplog.set_level(logging.INFO)
    contexts: list[Any] = []

    def speaks() -> None:
        logger.info("speaks")
        while ending == "times out":
            time.sleep(0.001)
        if ending == "raises":
            raise ValueError

    async def speaks_async() -> None:
        logger.info("speaks")
        if ending == "times out":
            await asyncio.Event().wait()
        if ending == "raises":
            raise ValueError

    @job(name="trial.next")
    def after() -> None:
        contexts.append(current_job())
        logger.info("next")

    job(speaks if kind == "sync" else speaks_async, name="trial.speaks", timeout="50ms").enqueue()
    if ending == "unknown":
        del registry._jobs["trial.speaks"]
    elif ending == "undecodable":
        memory.clear("default")
        memory.inject("default", b"{")
    handle = after.enqueue()
    try:
        within(
            10,
            lambda: asyncio.run(Worker(backends["default"], burst=True, concurrency=1).run()),
        )
        logger.info("outside")
    finally:
        caplog.handler.removeFilter(context_filter)

    said = {record.getMessage(): record for record in caplog.records if record.name == "trial"}
    if ending not in ("unknown", "undecodable"):
        assert said["speaks"].job == "trial.speaks"  # type: ignore[attr-defined]
    assert said["next"].job == "trial.next"  # type: ignore[attr-defined]
    assert said["next"].job_id == handle.id  # type: ignore[attr-defined]
    assert said["outside"].job == ""  # type: ignore[attr-defined]
    assert [context.job_id for context in contexts] == [handle.id]
    assert current_job() is None


LOGGING = """
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"json": {"format": '{"level": "%(levelname)s", "text": "%(message)s"}'}},
    "handlers": {"out": {"class": "logging.StreamHandler", "formatter": "json"}},
    "loggers": {"django_jobq": {"handlers": ["out"], "level": "INFO", "propagate": False}},
}
"""
JOBS = """
import logging
import time

from django_jobq import job


@job
def hello():
    root = logging.getLogger()
    print(f"root {root.level} {len(root.handlers)}", flush=True)
    logging.getLogger("shop").info("from the job")
    logging.getLogger("shop").warning("warning of the job")
"""
FIRST = "from shop.jobs import hello\n\n\ndef first_jobs():\n    return [hello.prepare()]\n"


@pytest.mark.parametrize("options", [(), ("-v", "0")], ids=str)
def test_b163_the_logging_of_the_project_is_left_alone(
    options: tuple[str, ...], project: Project
) -> None:
    """A project that configures our loggers gets each line once, in its own format."""
    project.settings(LOGGING)
    project.write("shop/jobs.py", JOBS)
    project.write("shop/first.py", FIRST)

    status, output = project.run("runworker", "--burst", *options)

    assert status == 0, output
    assert output.count("Job shop.jobs.hello succeeded") == 1
    assert '{"level": "INFO", "text": "Job shop.jobs.hello succeeded' in output
    assert "root 30 0" in output
    assert "from the job" not in output
    assert output.count("warning of the job") == 1


@pytest.mark.parametrize(
    ("options", "expected"), [((), True), (("-v", "0"), False), (("-v", "3"), True)], ids=str
)
def test_b163_without_a_configuration_the_option_sets_our_level_only(
    options: tuple[str, ...], expected: bool, project: Project
) -> None:
    """The verbosity of the worker decides what our loggers say, once, and nobody else's."""
    project.write("shop/jobs.py", JOBS)
    project.write("shop/first.py", FIRST)

    status, output = project.run("runworker", "--burst", *options)

    assert status == 0, output
    assert output.count("Job shop.jobs.hello succeeded") == int(expected)
    assert "root 30 0" in output
    assert "from the job" not in output


@pytest.mark.parametrize("verbosity", [0, 1])
def test_b163_running_jobs_in_process_changes_no_logging(
    verbosity: int, drain: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    """A worker called from a test or a command leaves handlers and levels as they were."""
    names = (None, "django_jobq", "django_jobq.jobs", "django_jobq.worker")
    loggers = [logging.getLogger(name) for name in names]
    before = [(logger.level, list(logger.handlers)) for logger in loggers]

    try:
        for logger in loggers[1:]:
            logger.setLevel(logging.NOTSET)
            logger.handlers.clear()
        drain(verbosity=verbosity)
        after = [(logger.level, list(logger.handlers)) for logger in loggers]
    finally:
        for logger, (level, handlers) in zip(loggers, before, strict=True):
            logger.setLevel(level)
            logger.handlers[:] = handlers

    assert after == [before[0]] + [(logging.NOTSET, [])] * 3


@override_settings(LOGGING_CONFIG=None)
def test_b163_a_failing_job_is_told_on_one_record(
    work: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    """A job that dies makes one record with its fields, which shows none of its arguments."""

    @job(name="trial.dies")
    def dies(secret: str) -> None:
        raise ValueError("end")

    handle = dies.enqueue("hunter2")
    work()

    records = [record for record in caplog.records if record.name.startswith("django_jobq")]
    assert [(r.levelname, r.name) for r in records] == [("ERROR", "django_jobq.jobs")]
    assert records[0].job_id == handle.id  # type: ignore[attr-defined]
    assert "hunter2" not in caplog.text
