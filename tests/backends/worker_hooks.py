"""What the suite of the worker needs beside the hooks of a backend."""

import asyncio
import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, TypeVar
from unittest import mock

from django.db import connections

from django_jobq import Defer, Fatal, JobContext, job
from django_jobq.backends.base import Backend
from django_jobq.backends.handler import backends
from django_jobq.jobs import Job
from django_jobq.queues import QueueConfig
from django_jobq.worker import runner as runner_module
from django_jobq.worker.runner import WorkerStats
from django_jobq.worker.worker import Worker
from tests.backends.hooks import BackendHooks

R = TypeVar("R")
Action = Callable[[JobContext], object]
AT_ONCE = {"backoff": "none"}
SOON = {"backoff": "fixed", "delay": "1s"}


class WorkerHooks(BackendHooks):
    """Share the tools of the parts: jobs that note their runs, and workers on the test's loop."""

    worker_class: type[Worker] = Worker
    # Whether a job that is put back without a delay is ready before the next one starts.
    comes_back_at_once = True

    def setup_method(self) -> None:
        super().setup_method()
        self.runs: list[JobContext] = []
        self.moments: list[float] = []
        self.gate = threading.Event()
        self.gate.set()

    def teardown_method(self) -> None:
        self.gate.set()
        super().teardown_method()

    def serve(self, *queues: QueueConfig | str, **options: Any) -> Backend:
        """Return a backend that the producer uses; ``options`` replace some that all have."""
        backend = self.install(self.open(*queues))
        for name, value in options.items():
            object.__setattr__(backend.options, name, value)
        return backend

    def install(self, backend: Backend) -> Backend:
        """Make a backend the one of the alias 'default'."""
        backends._backends["default"] = backend
        return backend

    def define(self, *actions: Action, name: str = "tests.job", **options: Any) -> Job[..., Any]:
        """Return a job that notes its run, waits for the gate and does its next action.

        The last action is done in every further run; without any the job just returns.
        """
        runs: Counter[Any] = Counter()

        def run(context: JobContext, *args: Any, **kwargs: Any) -> None:
            del args, kwargs
            self.moments.append(self.now())
            self.runs.append(context)
            assert self.gate.wait(30)
            number = runs[context.job_id]
            runs[context.job_id] += 1
            if actions:
                actions[min(number, len(actions) - 1)](context)

        return job(name=name, takes_context=True, **{"queue": "a", **options})(run)

    @contextlib.asynccontextmanager
    async def working(self, backend: Backend, **options: Any) -> AsyncIterator[Worker]:
        """Run a worker meanwhile."""
        worker = self.worker_class(backend, **{"shutdown_timeout": 5.0, **options})
        task = asyncio.create_task(worker.run())
        try:
            yield worker
        finally:
            self.gate.set()
            worker.shutdown()
            await asyncio.wait_for(task, self.patience + 5)

    async def burst(self, backend: Backend, **options: Any) -> WorkerStats:
        """Run what is due, and return the counts."""
        worker = self.worker_class(backend, burst=True, **options)
        return await asyncio.wait_for(worker.run(), self.patience + 5)

    async def on_thread(self, func: Callable[..., R], *args: Any) -> R:
        """Call on a thread, and close what it opened: a database counts its connections."""

        def call() -> R:
            try:
                return func(*args)
            finally:
                connections.close_all()

        return await asyncio.to_thread(call)

    async def later(self, condition: Callable[[], bool]) -> None:
        """Wait for a state that comes with the time of holds."""
        deadline = time.monotonic() + self.patience
        while not condition():
            assert time.monotonic() < deadline, "the state was not reached in time"
            await self.pass_time(0.05)
            await asyncio.sleep(0.01)

    async def dead(self, backend: Backend, number: int = 1, queue: str = "a") -> list[Any]:
        """Return a queue's dead letters once there are that many."""
        deadline = time.monotonic() + self.patience
        while len(found := await self.dead_letters(backend, queue)) < number:
            assert time.monotonic() < deadline, "the dead letter did not come in time"
            await asyncio.sleep(0.02)
        assert len(found) == number
        return found

    async def is_empty(self, backend: Backend, queue: str = "a") -> bool:
        """Return whether a queue has nothing to deliver, once its worker has stopped."""
        consumer = backend.consume(queue, 1)
        try:
            await self.expect_nothing(consumer)
        finally:
            await consumer.aclose()
        return True

    async def ready(self, backend: Backend, number: int, queue: str = "a") -> None:
        """Wait until a queue has that many jobs ready."""
        await self.later(lambda: backend.counts(queue).ready == number)

    def let_come_back(self, context: JobContext) -> None:
        """Wait, as one of two other jobs, until the first job to run is back or has run again.

        What is back waits with the others that have not run, since nothing is prefetched.
        """
        first = self.runs[0].job_id
        deadline = time.monotonic() + self.patience
        waiting = 1 + 2 - len(set(self.ids()) - {first})
        while self.ids().count(first) < 2 and backends["default"].counts("a").ready != waiting:
            assert time.monotonic() < deadline, "it did not come back in time"
            time.sleep(0.01)

    def ids(self) -> list[Any]:
        """Return the ids of the jobs that ran, in order."""
        return [context.job_id for context in self.runs]


def fail(context: JobContext) -> None:
    """Fail with an error that names the attempt."""
    raise ValueError(f"no luck in attempt {context.attempt}")


def give_up(context: JobContext) -> None:
    """Give up at once."""
    raise Fatal("hopeless")


def wait(delay: str) -> Action:
    """Return an action that defers the job."""

    def defer(context: JobContext) -> None:
        raise Defer(delay)

    return defer


def succeed(context: JobContext) -> None:
    """Do nothing."""


class Meter:
    """Measure how many blocks overlap."""

    def __init__(self) -> None:
        self.most = 0
        # By who is in it: when a timeout strikes in __exit__(), the next one in that place repairs.
        self._inside: set[object] = set()

    def __enter__(self) -> None:
        self._inside.add(self._who())
        self.most = max(self.most, len(self._inside))

    def __exit__(self, *_: object) -> None:
        self._inside.discard(self._who())

    def _who(self) -> object:
        try:
            return asyncio.current_task()
        except RuntimeError:
            return threading.get_ident()


@contextlib.contextmanager
def captured(logger: str) -> Iterator[list[logging.LogRecord]]:
    """Return the records that a logger gets meanwhile, INFO included."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    found = logging.getLogger(logger)
    level = found.level
    found.addHandler(handler)
    found.setLevel(logging.INFO)
    try:
        yield records
    finally:
        found.removeHandler(handler)
        found.setLevel(level)


@contextlib.contextmanager
def quick_pauses() -> Iterator[None]:
    """Let a worker wait a moment instead of a second after a settle that failed."""
    with mock.patch.object(runner_module, "_FIRST_PAUSE", 0.05):
        yield
