"""Trials of jobs that cannot run here: kept, named, bounded, and never in the way."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.test import override_settings

from django_jobq import JobContext, RetryPolicy, job
from django_jobq.backends.base import Counts
from django_jobq.backends.handler import backends
from django_jobq.backends.memory import ManualClock, MemoryBackend
from django_jobq.queues import QueueConfig
from django_jobq.registry import registry
from django_jobq.worker.stats import WorkerStats
from django_jobq.worker.worker import Worker
from tests.trials.project import within

NO_GRACE = {
    "default": {
        "BACKEND": "django_jobq.backends.memory.MemoryBackend",
        "OPTIONS": {"unknown_job_grace": 0},
    }
}


def body(**fields: Any) -> bytes:
    """Return the body of a job, as another program might write it."""
    known = {
        "job_id": str(uuid.UUID(int=1)),
        "job": "trial.known",
        "queue": "default",
        "attempt": 1,
        "enqueued_at": 1,
        "args": [],
        "kwargs": {},
    }
    return json.dumps({**known, **fields}).encode()


@pytest.mark.contract(58, 108, 110)
def test_b125_an_unknown_job_becomes_a_dead_letter_with_its_name(
    work: Callable[..., WorkerStats],
) -> None:
    """A job nobody knows is filed under its name, with no attempt made and no user code run."""
    with override_settings(JOBQ=NO_GRACE):
        ran = []

        @job(name="trial.known")
        def known() -> None:
            ran.append("known")

        @job(name="trial.unknown", retry=9)
        def unknown(order: int) -> None:
            ran.append("unknown")

        handle = unknown.enqueue(7)
        known.enqueue()
        del registry._jobs["trial.unknown"]
        stats = within(10, work)

        backend = backends["default"]
        assert isinstance(backend, MemoryBackend)
        [letter] = backend.dead_letters("default")
    assert ran == ["known"]
    assert (stats.succeeded, stats.dead_lettered, stats.retried) == (1, 1, 0)
    assert letter.cause == "no_handler"
    assert "trial.unknown" in letter.reason
    assert letter.envelope is not None
    assert (letter.envelope.job_id, letter.envelope.args) == (handle.id, [7])
    assert letter.envelope.attempt == 1


@pytest.mark.contract(58)
def test_b125_a_job_that_a_deploy_brings_meanwhile_runs(
    clocked: MemoryBackend, clock: ManualClock, work: Callable[..., WorkerStats]
) -> None:
    """A job that is unknown for a while waits uncounted, and runs on its first attempt."""
    seen: list[JobContext] = []

    @job(name="trial.known")
    def known() -> None: ...

    clocked.inject("default", body(job="trial.new", args=[3]))
    for _ in range(3):
        assert within(10, work).held == 1
        assert clocked.counts("default") == Counts(ready=0, held=1, reserved=0, dead=0)
        clock.advance(30)

    @job(name="trial.new", takes_context=True)
    def new(context: JobContext, number: int) -> None:
        seen.append(context)

    assert within(10, work).succeeded == 1
    assert [(context.attempt, context.deferrals) for context in seen] == [(1, 0)]


CHANGES: dict[str, Callable[[], Any]] = {}


def change(function: Callable[[], Any]) -> Callable[[], Any]:
    CHANGES[function.__name__] = function
    return function


@change
def fewer() -> Any:
    def deployed(a: int) -> None: ...

    return deployed


@change
def default_removed() -> Any:
    def deployed(a: int, b: int, x: int, y: int) -> None: ...

    return deployed


@change
def keyword_renamed() -> Any:
    def deployed(a: int, b: int, z: int = 0) -> None: ...

    return deployed


@change
def now_async_and_fewer() -> Any:
    async def deployed(a: int) -> None: ...

    return deployed


@change
def keyword_only() -> Any:
    def deployed(*, a: int, b: int, x: int) -> None: ...

    return deployed


@pytest.mark.contract(60, 80)
@pytest.mark.parametrize("how", CHANGES)
def test_b131_arguments_that_no_longer_fit_are_a_bounded_failure(
    how: str, memory: MemoryBackend, work: Callable[..., WorkerStats]
) -> None:
    """A job whose function changed its parameters fails by its policy, with both sides named."""

    @job(name="trial.deployed")
    def deployed(a: int, b: int, x: int = 0) -> None: ...

    deployed.enqueue(1, 2, x=3)
    del registry._jobs["trial.deployed"]
    job(CHANGES[how](), name="trial.deployed", retry=RetryPolicy.none(3))
    stats = within(10, lambda: work(max_jobs=20, burst=True))

    assert (stats.retried, stats.dead_lettered) == (2, 1)
    [letter] = memory.dead_letters("default")
    assert (letter.attempts, letter.cause) == (3, "exhausted")
    assert "TypeError" in letter.reason
    assert "deployed()" in letter.reason


def test_b131_a_job_that_became_async_runs(work: Callable[..., WorkerStats]) -> None:
    """A job that was enqueued as a sync function runs as the async one it became."""
    ran = []

    @job(name="trial.deployed")
    def deployed(a: int) -> None: ...

    deployed.enqueue(1)
    del registry._jobs["trial.deployed"]

    async def became_async(a: int) -> None:
        ran.append(a)

    job(became_async, name="trial.deployed")

    assert within(10, work).succeeded == 1
    assert ran == [1]


@pytest.mark.contract(107)
@pytest.mark.parametrize("attempt", [1, 3])
@pytest.mark.parametrize("how", ["no_handler", "decode", "expired"])
def test_b125_a_dead_letter_counts_the_attempts_that_were_made(
    how: str, attempt: int, make_memory: Callable[..., MemoryBackend], clock: ManualClock
) -> None:
    """A job that was filed instead of being run has made one attempt less than it is at."""
    backend = make_memory(
        QueueConfig(name="default", message_ttl=10.0),
        clock=clock,
        options={"unknown_job_grace": 0},
    )

    @job(name="trial.known")
    def known(*args: Any) -> None: ...

    fields: dict[str, dict[str, Any]] = {
        "no_handler": {"job": "trial.unknown"},
        "decode": {"args": [{"$t": "date", "v": "never"}]},
        "expired": {},
    }
    backend.inject("default", body(attempt=attempt, **fields[how]))
    if how == "expired":
        clock.advance(11)
    worker = Worker(backend, burst=True)
    within(10, lambda: asyncio.run(worker.run()))

    [letter] = backend.dead_letters("default")
    assert (letter.cause, letter.attempts) == (how, attempt - 1)


POISON = {
    "not json": b"\x80\x02",
    "empty": b"",
    "list": b"[]",
    "null": b"null",
    "cut": body()[:-3],
    "no fields": b"{}",
    "wrong type": body(args={"a": 1}),
    "deep 600": body(args=[0]).replace(b"[0]", b"[" * 600 + b"]" * 600),
    "deep 100000": body(args=[0]).replace(b"[0]", b"[" * 100_000 + b"]" * 100_000),
    "unknown tag": body(args=[{"$t": "pickle", "v": "x"}]),
    "bad date": body(args=[{"$t": "date", "v": "2026-02-30"}]),
    "timedelta of an object": body(args=[{"$t": "timedelta", "v": {}}]),
    "timedelta too long": body(args=[{"$t": "timedelta", "v": [10**12, 0, 0]}]),
    "tagged dict of a list": body(kwargs={"a": {"$t": "dict", "v": []}}),
    "uuid of null": body(args=[{"$t": "uuid", "v": None}]),
    "decimal of a list": body(args=[{"$t": "decimal", "v": [1]}]),
    "long number": body(args=[0]).replace(b"[0]", b"[" + b"9" * 5_000 + b"]"),
    "retry policy": body(headers={"retry": {"max_attempts": 0}}),
    "retry text": body(headers={"retry": "3"}),
    "timeout": body(headers={"timeout": "1s"}),
    "timeout below zero": body(headers={"timeout": -1}),
}


@pytest.mark.contract(59, 119)
@pytest.mark.parametrize("kind", POISON)
def test_b125_a_body_that_cannot_be_read_is_filed_once(
    kind: str, memory: MemoryBackend, work: Callable[..., WorkerStats]
) -> None:
    """A body that cannot be read runs nothing, is filed whole, and lets those behind it pass."""
    ran = []

    @job(name="trial.known", retry=RetryPolicy.none(3))
    def known(*args: Any, **kwargs: Any) -> None:
        ran.append(args)

    memory.inject("default", POISON[kind])
    known.enqueue("good")
    stats = within(10, lambda: work(max_jobs=12, burst=True, concurrency=1))

    assert ran == [("good",)]
    assert (stats.succeeded, stats.dead_lettered, stats.handed_back) == (1, 1, 0)
    [letter] = memory.dead_letters("default")
    assert letter.cause == "decode"
    assert letter.body == POISON[kind]
    assert letter.reason.startswith("malformed envelope")


FAILING_POISON = {
    "history is a number": {"headers": {"errors": 3}},
    "history is an object": {"headers": {"errors": {"a": 1}}},
    "history of numbers": {"headers": {"errors": [1, 2]}},
    "queue of another name": {"queue": "elsewhere"},
    "attempt beyond reason": {"attempt": 10**18},
    "unknown since a text": {"headers": {"unknown_since": "long"}},
    "starts is a text": {"headers": {"starts": "x"}},
}


@pytest.mark.contract(60)
@pytest.mark.parametrize("kind", FAILING_POISON)
def test_b125_a_failing_job_with_odd_fields_runs_as_often_as_allowed(
    kind: str, memory: MemoryBackend, work: Callable[..., WorkerStats]
) -> None:
    """No field of a body makes a failing job run for ever: it ends as a dead letter."""
    ran = []

    @job(name="trial.known", retry=RetryPolicy.none(2))
    def known() -> None:
        ran.append(1)
        raise ValueError

    memory.inject("default", body(**FAILING_POISON[kind]))
    try:
        stats = within(5, lambda: work(max_jobs=6, burst=True, concurrency=1))
    finally:
        backends["default"].close()

    assert len(ran) <= 2
    assert (stats.dead_lettered, stats.settle_failures, stats.handed_back) == (1, 0, 0)
    assert memory.counts("default").dead == 1
