"""Tools for tests on a broker: raw access, clean prefixes, backends, workers, runs by job id."""

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

import pika
from django.db import connections
from pika.exceptions import ChannelClosedByBroker

from django_jobq import job
from django_jobq.backends.rabbitmq import RabbitMQBackend
from django_jobq.backends.rabbitmq.topology import Exchange, Queue, Topology
from django_jobq.conf import AliasSettings
from django_jobq.context import JobContext
from django_jobq.envelope import Envelope
from django_jobq.exceptions import EnvelopeError
from django_jobq.jobs import Job
from django_jobq.queues import QueueConfig
from django_jobq.worker.worker import Worker
from tests.backends.contract import make_envelope
from tests.broker import PrivateNode
from tests.lane import queue_type

PATIENCE = 30.0
ROOT = Path(__file__).parents[3]


# The broker


@contextlib.contextmanager
def channel(url: str) -> Iterator[Any]:
    """Open a raw channel."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    try:
        yield connection.channel()
    finally:
        if connection.is_open:
            connection.close()


def clean(url: str, topology: Topology, configs: Iterable[QueueConfig]) -> None:
    """Delete the work queues of a prefix and every message under it; the rest stays declared."""
    holds = [
        item.name
        for item in topology.shared()
        if isinstance(item, Queue) and item.name not in (topology.lost, topology.dead)
    ]
    with channel(url) as ch:
        for config in configs:
            ch.queue_delete(topology.work_queue(config))
        # From the top of the ladder down, as messages move; pipelined, as there are so many.
        with contextlib.suppress(ChannelClosedByBroker):  # nothing was ever declared here
            for name in (*reversed(holds), topology.lost):
                ch._impl.queue_purge(name)
            ch.queue_purge(topology.dead)


def delete_everything(url: str, topology: Topology, configs: Iterable[QueueConfig] = ()) -> None:
    """Delete all that the backends of a prefix declared."""
    with channel(url) as ch:
        for config in configs:
            ch.queue_delete(topology.work_queue(config))
        for item in topology.shared():
            if isinstance(item, Queue):
                ch._impl.queue_delete(item.name)
            elif isinstance(item, Exchange):
                ch._impl.exchange_delete(item.name)
        ch.queue_delete(topology.dead)


def ready(url: str, queue: str) -> int:
    """Return how many messages of a queue are ready."""
    with channel(url) as ch:
        return int(ch.queue_declare(queue, passive=True).method.message_count)


def messages(node: PrivateNode, queue: str) -> int:
    """Return how many messages of a queue are ready or unacknowledged; it takes a moment."""
    rows = [line.split("\t") for line in node.ctl("list_queues", "name", "messages").splitlines()]
    return int(dict(rows).get(queue, 0))


def browse(url: str, queue: str) -> list[tuple[Any, bytes]]:
    """Return properties and body of every ready message of a queue, which stay there."""
    found = []
    with channel(url) as ch:
        while True:
            method, properties, body = ch.basic_get(queue)
            if method is None:
                return found
            found.append((properties, body))


def job_ids(messages: Iterable[tuple[Any, bytes]]) -> list[uuid.UUID]:
    """Return the job ids of messages."""
    return [Envelope.decode(body).job_id for _, body in messages]


def letters(url: str, topology: Topology) -> list[Any]:
    """Return the dead letters in the inbox."""
    return [_read_letter(properties, body) for properties, body in browse(url, topology.dead)]


def _read_letter(properties: Any, body: bytes) -> Any:
    """Return a dead letter with envelope, body, queue, cause, reason, attempts, time, headers."""
    headers = properties.headers or {}
    try:
        envelope = Envelope.decode(body)
    except EnvelopeError:
        envelope = None
    return SimpleNamespace(
        queue=headers.get("x-original-queue"),
        body=body,
        envelope=envelope,
        cause=headers.get("x-death-cause", headers.get("x-first-death-reason")),
        reason=headers.get("x-death-reason", ""),
        attempts=headers.get("x-attempts"),
        died_at=headers.get("x-died-at", 0) / 1000,
        headers=headers,
    )


# Backends and workers


def make_settings(
    url: str,
    *queues: QueueConfig | str,
    declare: str = "auto",
    database: str | None = None,
    **options: Any,
) -> AliasSettings:
    """Return the settings of an alias with these queues, or with one called 'a'.

    Without a database there is neither an outbox nor are there holds but the broker's.
    """
    options.setdefault("queue_type", queue_type())
    configs = [QueueConfig(name=q) if isinstance(q, str) else q for q in queues or ("a",)]
    return AliasSettings(
        alias="default",
        backend="rabbitmq",
        url=url,
        queues={config.name: config for config in configs},
        outbox="always" if database else "off",
        holds="database" if database else "broker",
        database=database or "default",
        declare=declare,
        options=options,
    )


class BackendFactory:
    """Make backends under one prefix and put it in order again at the end.

    ``url`` reaches the broker for certain; ``backend_url`` is what backends get, the same at first.
    """

    def __init__(self, url: str, prefix: Callable[[str], str]) -> None:
        self.url = self.backend_url = url
        self._prefix = prefix
        self._made: list[RabbitMQBackend] = []

    def __call__(
        self,
        *queues: QueueConfig | str,
        url: str | None = None,
        declare: str = "auto",
        **options: Any,
    ) -> RabbitMQBackend:
        """Return a backend with fast reconnects; nothing is declared yet."""
        options.setdefault("queue_type", queue_type())
        options.setdefault("prefix", self._prefix(options["queue_type"]))
        options.setdefault("reconnect_max", "500ms")
        # The first one of a prefix declares 80 queues, which takes a busy broker its time.
        options.setdefault("publish_timeout", "20s")
        settings = make_settings(url or self.backend_url, *queues, declare=declare, **options)
        backend = RabbitMQBackend(settings)
        self._made.append(backend)
        return backend

    def impatient(self, publish_timeout: str = "1s", **options: Any) -> RabbitMQBackend:
        """Return a connected backend with a short timeout; its queue 'a' was declared in peace."""
        patient = self("a", url=self.url)
        patient.declare(patient.queues.values())
        backend = self("a", declare="never", publish_timeout=publish_timeout, **options)
        backend.counts("a")
        return backend

    def close(self) -> None:
        """Close the backends, and remove their queues and messages."""
        for topology, configs in self._close():
            clean(self.url, topology, configs)

    def delete(self) -> None:
        """Close the backends, and remove all that they declared."""
        for topology, configs in self._close():
            delete_everything(self.url, topology, configs)

    def _close(self) -> Iterator[tuple[Topology, list[QueueConfig]]]:
        for backend in self._made:
            backend.close()
        for topology in {backend.topology for backend in self._made}:
            queues = [b.queues.values() for b in self._made if b.topology == topology]
            yield topology, [config for configs in queues for config in configs]


def send(backend: RabbitMQBackend, number: int, **fields: Any) -> list[Envelope]:
    """Publish envelopes, pipelined, and wait for all confirms."""
    sent = [make_envelope(**{"args": [], "kwargs": {}, **fields}) for _ in range(number)]
    for future in [backend.publish(envelope) for envelope in sent]:
        future.result(PATIENCE)
    return sent


@contextlib.asynccontextmanager
async def working(backend: RabbitMQBackend, **options: Any) -> AsyncIterator[Worker]:
    """Run a worker on this loop meanwhile."""
    worker = Worker(backend, **{"shutdown_timeout": 5.0, **options})
    task = asyncio.create_task(worker.run())
    try:
        yield worker
    finally:
        worker.shutdown()
        await asyncio.wait_for(task, PATIENCE)


class Runs:
    """Register jobs that note their runs by job id."""

    def __init__(self) -> None:
        self.started: Counter[uuid.UUID] = Counter()
        self.ended: Counter[uuid.UUID] = Counter()
        self.order: list[uuid.UUID] = []
        self.contexts: list[JobContext] = []
        self.gate = threading.Event()
        self.gate.set()

    def job(
        self, action: Callable[[JobContext], None] | None = None, **options: Any
    ) -> Job[Any, Any]:
        """Return a job that counts itself, waits for the gate, and does ``action``."""

        def run(context: JobContext, *args: Any, **kwargs: Any) -> None:
            del args, kwargs
            self.started[context.job_id] += 1
            self.order.append(context.job_id)
            self.contexts.append(context)
            assert self.gate.wait(PATIENCE)
            if action is not None:
                action(context)
            self.ended[context.job_id] += 1

        options.setdefault("name", "tests.noop")
        return job(takes_context=True, **options)(run)


async def until(condition: Callable[[], object], patience: float = PATIENCE) -> None:
    """Wait for an observable state."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, "the state was not reached in time"
        await asyncio.sleep(0.02)


def wait_until(condition: Callable[[], object], patience: float = PATIENCE) -> None:
    """Wait for an observable state without a loop."""
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline, "the state was not reached in time"
        time.sleep(0.02)


def environment_of(backend: RabbitMQBackend, **keys: Any) -> dict[str, str]:
    """Return the environment of a process whose default alias is like a backend, but for keys."""
    setting = {
        "BACKEND": "django_jobq.backends.rabbitmq.RabbitMQBackend",
        "OUTBOX": backend.settings.outbox,
        "HOLDS": backend.settings.holds,
        "DATABASE": backend.settings.database,
        "URL": backend.settings.url,
        "QUEUES": {
            config.name: {"prefetch": config.prefetch} for config in backend.queues.values()
        },
        "OPTIONS": dict(backend.settings.options),
        **keys,
    }
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.backends.rabbitmq.project",
        "JOBQ_TEST_SETTING": json.dumps({"default": setting}),
        # The database of the tests, whose name they make up.
        "JOBQ_TEST_STORED": json.dumps({"NAME": connections["stored"].settings_dict["NAME"]}),
    }


class WorkerProcess:
    """Run ``manage.py runworker`` in a process of its own; use it as a context."""

    def __init__(self, backend: RabbitMQBackend, folder: Path, *arguments: str) -> None:
        self._arguments = arguments
        self.notes, self._log = folder / "notes", folder / "log"
        self._env = {**environment_of(backend), "JOBQ_TEST_NOTES": str(self.notes)}
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait(PATIENCE)

    @property
    def output(self) -> str:
        """Return what all its processes printed and logged."""
        return self._log.read_text()

    def start(self) -> None:
        """Start the worker, or start it again, as a supervisor does."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "django", "runworker", *self._arguments],
                cwd=ROOT,
                env=self._env,
                stdout=log,
                stderr=log,
            )

    def set_environment(self, **variables: str) -> None:
        """Add to the environment of the processes that start from now on."""
        self._env.update(variables)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def poll(self) -> int | None:
        """Return the exit status, or None while it runs."""
        assert self._process is not None
        return self._process.poll()

    def wait(self, patience: float = PATIENCE) -> int:
        """Return the exit status once it has ended."""
        assert self._process is not None
        return self._process.wait(patience)

    def noted(self, event: str) -> list[uuid.UUID]:
        """Return the ids of the jobs that something happened to, in order."""
        if not self.notes.exists():
            return []
        lines = [line.split() for line in self.notes.read_text().splitlines()]
        return [uuid.UUID(job_id) for what, job_id in lines if what == event]


def everything_about(error: BaseException) -> str:
    """Return all that a log or a debug page could show of an exception and its causes."""
    texts, todo = [], [error]
    while todo:
        one = todo.pop()
        texts += [repr(one), str(one), repr(one.args), repr(vars(one))]
        texts += traceback.format_exception(one)
        todo += [item for item in (one.__cause__, one.__context__) if item and item is not error]
    return "\n".join(texts)
