"""jobq_enqueue and jobq_status as processes of their own, on a real broker."""

import json
import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from django_jobq.backends.rabbitmq import RabbitMQBackend
from tests.backends.rabbitmq.support import (
    PATIENCE,
    ROOT,
    BackendFactory,
    WorkerProcess,
    browse,
    channel,
    environment_of,
    send,
    wait_until,
)
from tests.broker import free_ports

EXIT_UNAVAILABLE = 69

Shop = Callable[..., subprocess.CompletedProcess[str]]


def run(environment: dict[str, str], *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**environment, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE * 2,
    )


def manage(
    backend: RabbitMQBackend, *arguments: str, **keys: Any
) -> subprocess.CompletedProcess[str]:
    environment = {**environment_of(backend, **keys), "JOBQ_TEST_LEVEL": "WARNING"}
    return run(environment, "-m", "django", *arguments)


def status(backend: RabbitMQBackend, **keys: Any) -> Any:
    """Return what is said of the default alias, with the exit status."""
    done = manage(backend, "jobq_status", "--format=json", **keys)
    (found,) = json.loads(done.stdout)["backends"].values()
    return {**found, "exit": done.returncode}


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    """Return the one line of the command itself; the client logs until the process has ended."""
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("CommandError")]
    return line


def declared(backend: RabbitMQBackend) -> RabbitMQBackend:
    backend.declare(backend.queues.values())
    return backend


class TestEnqueue:
    backend_name = "rabbitmq"

    def test_a_worker_runs_what_a_shell_enqueued(
        self, make: BackendFactory, tmp_path: Path
    ) -> None:
        backend = declared(make("a"))
        done = manage(backend, "jobq_enqueue", "tests.take", "--kwargs", '{"seconds": 0}')
        assert done.returncode == 0, done.stderr
        assert done.stderr == "Enqueued tests.take on queue a\n"
        job_id = uuid.UUID(done.stdout.strip())
        assert done.stdout == f"{job_id}\n"
        with WorkerProcess(backend, tmp_path, "--burst") as worker:
            assert worker.wait(PATIENCE) == 0, worker.output
        assert worker.noted("ended") == [job_id]

    def test_a_broker_that_is_down_is_one_sentence_and_status_1(self, make: BackendFactory) -> None:
        backend = make("a", url=nowhere(), publish_timeout="1s")
        began = time.monotonic()
        done = manage(backend, "jobq_enqueue", "tests.take")
        assert time.monotonic() - began < PATIENCE
        assert (done.returncode, done.stdout) == (1, "")
        assert refusal(done).startswith("CommandError: no connection to amqp://")
        assert "secret" not in done.stderr
        assert "Traceback" not in done.stderr

    def test_a_hold_without_its_table_is_one_sentence(self, make: BackendFactory) -> None:
        job = ("jobq_enqueue", "tests.take", "--delay=5m")
        done = manage(declared(make("a")), *job, OUTBOX="always", HOLDS="database")
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr == (
            "CommandError: database 'default' has no table of stored jobs: run manage.py migrate\n"
        )


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """Return what calls manage.py of the example project, migrated, with a URL of its queue."""
    script = str(ROOT / "example_project" / "manage.py")

    def call(url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "SHOP_VAR": str(tmp_path), "JOBQ_URL": url}
        # Not those of the tests.
        environment.pop("DJANGO_SETTINGS_MODULE", None)
        return run(environment, script, *arguments)

    assert call("memory://", "migrate", "--verbosity=0").returncode == 0
    return call


class TestExampleProject:
    backend_name = "rabbitmq"
    pack = ("jobq_enqueue", "shop.jobs.pack_order", "--args=[7]")

    @pytest.mark.contract(203)
    def test_a_job_is_enqueued_and_seen(self, make_apart: BackendFactory, shop: Shop) -> None:
        backend = make_apart("warehouse", queue_type="classic")
        url = f"{backend.settings.url}?prefix={backend.topology.prefix}"
        done = shop(url, *self.pack, "-v0", "--priority=3")
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
        assert shop(url, *self.pack, "-v0", "--delay=1h").returncode == 0
        [(properties, body)] = browse(make_apart.url, queue_of(backend, "warehouse"))
        assert json.loads(body)["args"] == [7]
        assert properties.priority == 3
        told = shop(url, "jobq_status", "--queue=warehouse")
        assert (told.returncode, told.stderr) == (0, "")
        assert re.search(r"^  warehouse +1 +1 +0 +\S+ +0$", told.stdout, re.MULTILINE), told.stdout

    @pytest.mark.contract(203)
    def test_while_the_broker_is_down_jobs_are_stored_and_seen(self, shop: Shop) -> None:
        url = f"{nowhere()}?publish_timeout=1s"
        done = shop(url, *self.pack)
        assert done.returncode == 0
        uuid.UUID(done.stdout.strip())
        assert "it stays stored and a worker publishes it" in done.stderr
        told = shop(url, "jobq_status", "--queue=warehouse")
        assert told.returncode == EXIT_UNAVAILABLE
        seen = r"^  warehouse +- +0 +1 \(oldest \d+s\) +\S+ +-$"
        assert re.search(seen, told.stdout, re.MULTILINE), told.stdout
        assert "secret" not in done.stderr + told.stdout + told.stderr


class TestStatus:
    backend_name = "rabbitmq"

    @pytest.mark.contract(22, 203)
    def test_it_counts_jobs_consumers_and_dead_letters(
        self, make: BackendFactory, tmp_path: Path
    ) -> None:
        backend = declared(make("a", "b"))
        send(backend, 3, queue="b")
        with channel(make.url) as ch:
            ch.confirm_delivery()
            for name in (backend.topology.dead, backend.topology.lost):
                ch.basic_publish("", name, b"what a newer version filed")
        with WorkerProcess(backend, tmp_path, "--queue=a"):
            wait_until(lambda: backend.counts("a").consumers == 1)
            found = status(backend)
        assert found["exit"] == 0
        assert (found["status"], found["reason"], found["unfiled"]) == ("ok", None, 2)
        queues = found["queues"]
        assert (queues["a"]["ready"], queues["a"]["consumers"]) == (0, 1)
        assert (queues["b"]["ready"], queues["b"]["consumers"]) == (3, 0)
        assert {queue[key] for queue in queues.values() for key in ("held", "dead")} == {None}
        wait_until(lambda: backend.counts("a").consumers == 0)

    def test_a_queue_that_nobody_has_made_yet_is_told_and_no_failure(
        self, make_apart: BackendFactory
    ) -> None:
        found = status(make_apart("a", "b"))
        assert (found["exit"], found["status"], found["unfiled"]) == (0, "ok", 0)
        assert {queue["note"] for queue in found["queues"].values()} == {"not on the broker yet"}
        assert {queue["ready"] for queue in found["queues"].values()} == {0}

    @pytest.mark.contract(203)
    def test_a_broker_that_is_down_is_unavailable_within_its_time(
        self, make: BackendFactory
    ) -> None:
        backend = make(*map(str, range(20)), url=nowhere(), publish_timeout="2s")
        began = time.monotonic()
        done = manage(backend, "jobq_status", "--format=json")
        # Two seconds for the broker, the rest for a slow machine; not two for each of 20 queues.
        assert time.monotonic() - began < PATIENCE
        assert done.returncode == EXIT_UNAVAILABLE
        found = json.loads(done.stdout)["backends"]["default"]
        assert found["status"] == "unavailable"
        assert found["reason"].startswith("no connection to amqp://guest@127.0.0.1:")
        assert found["queues"]["0"]["ready"] is None
        assert refusal(done) == "CommandError: unavailable: default"
        assert "secret" not in done.stdout + done.stderr

    @pytest.mark.contract(203)
    def test_a_refused_password_is_unavailable(self, make: BackendFactory) -> None:
        backend = make("a", url=re.sub(r"//.*@", "//guest:secret@", make.url))
        done = manage(backend, "jobq_status")
        assert done.returncode == EXIT_UNAVAILABLE
        assert "the broker refuses the user or password of amqp://guest@" in done.stdout
        assert "secret" not in done.stdout + done.stderr

    @pytest.mark.contract(203)
    def test_a_database_without_the_table_is_a_hint(self, make: BackendFactory) -> None:
        found = status(declared(make("a")), OUTBOX="always", HOLDS="database")
        assert found["exit"] == EXIT_UNAVAILABLE
        assert found["reason"] == (
            "database 'default' has no table of stored jobs: run manage.py migrate"
        )
        assert (found["queues"]["a"]["ready"], found["queues"]["a"]["held"]) == (0, None)


def nowhere() -> str:
    """Return the URL of a broker that does not listen."""
    return f"amqp://guest:secret@127.0.0.1:{free_ports(1)[0]}/"


def queue_of(backend: RabbitMQBackend, name: str) -> str:
    return backend.topology.work_queue(backend.queue(name))
