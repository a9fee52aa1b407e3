"""The outbox on a real broker: what was committed runs, whatever is killed or away meanwhile.

Jobs are counted by id, as rows and on the broker, and by their runs.
"""

import contextlib
import http.client
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import pytest
from django.conf import settings as django_settings
from django.db import connections, transaction

from django_jobq import Job, enqueue_many, job
from django_jobq.backends.handler import backends
from django_jobq.backends.rabbitmq import RabbitMQBackend
from django_jobq.exceptions import PublishFailed
from django_jobq.store import outbox
from django_jobq.store.rows import FRESH, HOLD
from tests.app.models import Row
from tests.backends.rabbitmq.support import (
    PATIENCE,
    ROOT,
    BackendFactory,
    WorkerProcess,
    browse,
    channel,
    job_ids,
    ready,
    wait_until,
)
from tests.proxy import Proxy
from tests.store.tools import USING, stored
from tests.web.stops import STOPS

pytestmark = pytest.mark.django_db(transaction=True, databases=[USING])

BACKEND_NAME: str = django_settings.DATABASES[USING]["ENGINE"].rpartition(".")[2]
# How often a process is killed at each point; JOBQ_TEST_ROUNDS=20 for more trust in it.
ROUNDS = int(os.environ.get("JOBQ_TEST_ROUNDS", "6"))


@pytest.fixture
def note() -> Job[[str], None]:
    @job(name="tests.noop", queue="a")
    def note(text: str) -> None: ...

    return note


@pytest.fixture
def publish_like(settings: Any) -> Callable[..., RabbitMQBackend]:
    """Return what configures the alias default like a backend, and stores jobs by default."""

    def configure(backend: RabbitMQBackend, **keys: Any) -> RabbitMQBackend:
        settings.JOBQ = {"default": {**setting_of(backend), "DATABASE": USING, **keys}}
        used = backends["default"]
        assert isinstance(used, RabbitMQBackend)
        return used

    return configure


def setting_of(backend: RabbitMQBackend) -> dict[str, Any]:
    return {
        "BACKEND": "django_jobq.backends.rabbitmq.RabbitMQBackend",
        "URL": backend.settings.url,
        "QUEUES": list(backend.queues),
        "OPTIONS": dict(backend.settings.options),
    }


def queue(backend: RabbitMQBackend) -> str:
    (config,) = backend.queues.values()
    return backend.topology.work_queue(config)


def on_the_broker(factory: BackendFactory, backend: RabbitMQBackend) -> list[uuid.UUID]:
    return job_ids(browse(factory.url, queue(backend)))


def atomic() -> Any:
    return transaction.atomic(using=USING)


class TestPublishing:
    backend_name = BACKEND_NAME

    @pytest.mark.contract(40, 49, 51)
    def test_what_was_committed_is_on_the_broker_and_no_row_is_left(
        self, make: BackendFactory, publish_like: Any, note: Job[[str], None]
    ) -> None:
        backend = publish_like(make("a"))
        with atomic():
            handles = [note.enqueue("first"), *enqueue_many([note.prepare("a"), note.prepare("b")])]
            assert {row.kind for row in stored()} == {FRESH}
        with contextlib.suppress(ZeroDivisionError), atomic():
            note.enqueue("gone")
            raise ZeroDivisionError
        handles.append(note.enqueue("without a transaction"))
        assert on_the_broker(make, backend) == [handle.id for handle in handles]
        assert stored() == []

    def test_a_delayed_job_is_a_row_and_not_on_the_broker(
        self, make: BackendFactory, publish_like: Any, note: Job[[str], None]
    ) -> None:
        backend = publish_like(make("a"))
        backend.declare(backend.queues.values())
        note.enqueue_after("1s", "held")
        with atomic():
            note.enqueue_after("1s", "held")
        assert [row.kind for row in stored()] == [HOLD, HOLD]
        assert backend.counts("a").ready == 0

    @pytest.mark.contract(49)
    def test_what_the_broker_returns_is_kept_after_a_commit_and_raised_without(
        self, make_apart: BackendFactory, publish_like: Any, note: Job[[str], None]
    ) -> None:
        declared = make_apart("a")
        declared.declare(declared.queues.values())
        backend = publish_like(declared, DECLARE="never")
        with channel(make_apart.url) as raw:
            raw.queue_delete(queue(backend))
        with atomic():
            handle = note.enqueue("kept")
        with pytest.raises(PublishFailed):
            note.enqueue("raised")
        assert [row.job_id for row in stored()] == [handle.id]


@pytest.mark.slow
class TestBrokerAway:
    """A stream of requests, each with a transaction, meets a broker that goes and comes back."""

    backend_name = BACKEND_NAME

    @pytest.mark.contract(49, 51)
    @pytest.mark.parametrize("in_transactions", [True, False])
    @pytest.mark.parametrize("how", ["refuse", "stall"])
    def test_every_request_succeeds_and_every_job_is_a_row_or_on_the_broker(
        self,
        how: str,
        in_transactions: bool,
        proxied: BackendFactory,
        proxy: Proxy,
        publish_like: Any,
        note: Job[[str], None],
    ) -> None:
        backend = publish_like(proxied.impatient("1s"), DECLARE="never")
        ids: list[uuid.UUID] = []

        def request() -> float:
            """Return how long it took."""
            began = time.monotonic()
            with atomic() if in_transactions else contextlib.nullcontext():
                ids.append(note.enqueue(str(len(ids))).id)
            return time.monotonic() - began

        for _ in range(20):
            request()
        assert stored() == []
        getattr(proxy, how)()
        took = [request() for _ in range(100)]
        proxy.resume()
        # One finds out that the broker is away; the others need not wait for it.
        assert len([seconds for seconds in took if seconds > 0.7]) <= 1
        assert sorted(took)[-2] < 0.7
        assert sum(took) < 20
        known = len(stored())
        assert known >= 99

        def is_back() -> bool:
            request()
            return ids[-1] not in {row.job_id for row in stored()}

        wait_until(is_back)
        rows = {row.job_id for row in stored()}
        sent = Counter(on_the_broker(proxied, backend))
        assert set(ids) == rows | set(sent)
        # What was on its way when the broker fell silent may have arrived.
        assert len(rows & set(sent)) <= 1
        assert set(sent.values()) == {1}


class WebProcess:
    """Run the server of tests.web, whose processes die where they are told to; use as a context."""

    def __init__(self, env: dict[str, str]) -> None:
        self._env = env

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.web.server"],
            cwd=ROOT,
            env=self._env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._port = int(self._read())
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()

    def request(self, path: str, stop: str) -> tuple[bool, int]:
        """Return whether there was a response, and how the process ended."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{stop}\n")
        self._process.stdin.flush()
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)
        try:
            connection.request("GET", path)
            answered = connection.getresponse().status == 200
        except ConnectionError:
            answered = False
        finally:
            connection.close()
        return answered, int(self._read())

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the server is gone"
        return line


@pytest.fixture
def environment(make: BackendFactory, tmp_path: Path) -> dict[str, str]:
    """Return the environment of a project on the broker and on the database of stored jobs."""
    backend = make("default")
    backend.declare(backend.queues.values())
    keys = ("ENGINE", "NAME", "USER", "PASSWORD", "HOST", "PORT", "OPTIONS")
    database = {key: connections[USING].settings_dict[key] for key in keys}
    jobq = {**setting_of(backend), "DECLARE": "never"}
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.web.settings",
        "JOBQ_TEST_SETTING": json.dumps({"default": jobq}),
        "JOBQ_TEST_WEB_DATABASE": json.dumps(database, default=str),
        "JOBQ_TEST_NOTES": str(tmp_path / "notes"),
    }


class TestKilled:
    """A web process is killed at each point between the statements and the wire."""

    backend_name = BACKEND_NAME

    @pytest.mark.slow
    @pytest.mark.contract(49, 51)
    @pytest.mark.parametrize("stop", STOPS)
    def test_what_was_committed_runs_and_nothing_else(
        self, stop: str, make: BackendFactory, environment: dict[str, str], tmp_path: Path
    ) -> None:
        orders = {f"order-{number}" for number in range(ROUNDS)}
        with WebProcess(environment) as web:
            for order in orders:
                assert web.request(f"/place/{order}/", stop) == outcome(dies=stop != "never")
            if stop in ("never", "insert"):  # the others are beyond the commit
                for order in orders:
                    gone = web.request(f"/fail/gone-{order}/", stop)
                    assert gone == outcome(dies=stop == "insert")
        committed = set(Row.objects.using(USING).values_list("name", flat=True))
        assert committed == (set() if stop == "insert" else orders)
        rows = {json.loads(bytes(row.body))["args"][0] for row in stored()}
        assert rows == (set() if stop in ("never", "delete") else committed)

        runs = run_all(make, environment, tmp_path, committed)

        assert set(runs) == committed
        twice = [order for order, number in runs.items() if number > 1]
        assert not twice or stop in ("write", "confirm")
        assert max(runs.values(), default=0) <= 2


def outcome(*, dies: bool) -> tuple[bool, int]:
    """Return what a request comes to: a response, or the end of its process."""
    return (False, -signal.SIGKILL) if dies else (True, 0)


def run_all(
    make: BackendFactory, environment: dict[str, str], folder: Path, committed: set[str]
) -> Counter[str]:
    """Let a worker run what is on the broker and in the outbox, and return the runs by order."""
    # As if the grace were over.
    outbox.sight("default", using=USING, grace=timedelta(0))
    backend = make("default")
    worker = WorkerProcess(backend, folder)
    worker.set_environment(**environment)
    notes = Path(environment["JOBQ_TEST_NOTES"])

    def runs() -> Counter[str]:
        return Counter(notes.read_text().split() if notes.exists() else ())

    with worker:
        wait_until(lambda: set(runs()) >= committed and not stored())
        wait_until(lambda: not ready(make.url, queue(backend)))
    return runs()
