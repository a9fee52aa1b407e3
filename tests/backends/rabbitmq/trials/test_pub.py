"""Trials of publishing from long-lived, forked and rarely active processes."""

import gc
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from django_jobq import job
from django_jobq.backends.rabbitmq import codec
from django_jobq.exceptions import PayloadTooLarge, PublishFailed
from tests.backends.rabbitmq.support import PATIENCE, ROOT, BackendFactory, wait_until
from tests.backends.rabbitmq.trials.live import Live
from tests.lane import queue_type
from tests.proxy import Proxy
from tests.trials.project import Project

PREFORK = """
import os, sys, warnings
import django
django.setup()  # whose AppConfig.ready() enqueues a job
from shop.jobs import note
children = []
for name in ("one", "two"):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        for number in range(100):
            note.enqueue(f"{name} {number}")
        sys.exit(0)  # with its exit handlers, unlike os._exit()
    children.append(child)
for child in children:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
note.enqueue("parent")
"""
RARELY = """
import logging, sys, time
import django
django.setup()
from shop.jobs import note
logging.basicConfig(level=logging.WARNING)
for number in range(2):
    note.enqueue(str(number))
    print("sent", flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Return a project with a job, which enqueues one when the app is ready."""
    made = Project(tmp_path)
    made.write("shop/jobs.py", "from django_jobq import job\n\n\n@job\ndef note(text): ...\n")
    made.write(
        "shop/apps.py",
        "from django.apps import AppConfig\n\n\nclass Shop(AppConfig):\n"
        '    name = "shop"\n\n    def ready(self):\n'
        "        from shop.jobs import note\n\n"
        '        note.enqueue("ready")\n',
    )
    return made


def script(project: Project, url: str, prefix: str, text: str, **options: str) -> list[str]:
    """Configure the project for the broker and return the command that runs a script in it."""
    entry = {
        "BACKEND": "django_jobq.backends.rabbitmq.RabbitMQBackend",
        "OUTBOX": "off",
        "HOLDS": "broker",
        "URL": url,
        "QUEUES": ["default"],
        "OPTIONS": {"prefix": prefix, "queue_type": queue_type(), **options},
    }
    project.settings(f"JOBQ = {{'default': {entry!r}}}\n", apps=["django_jobq", "shop"])
    project.write("script.py", text)
    return [sys.executable, "script.py"]


def environment(project: Project) -> dict[str, str]:
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "settings",
        "PYTHONPATH": os.pathsep.join([str(project.path), str(ROOT)]),
    }


def test_b37_a_preforking_server_publishes_everything(live: Live, project: Project) -> None:
    """A connection from before the fork, two busy children and their exits lose no job."""
    done = subprocess.run(
        script(project, live.url, live.topology.prefix, PREFORK),
        check=False,
        cwd=project.path,
        env=environment(project),
        capture_output=True,
        timeout=PATIENCE,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    expected = ["ready", "parent", *(f"{name} {n}" for name in ("one", "two") for n in range(100))]
    assert sorted(envelope.args[0] for envelope in live.envelopes()) == sorted(expected)


@pytest.mark.slow
def test_b43_a_process_that_rarely_publishes_is_quiet(
    proxied: BackendFactory, proxy: Proxy, go_live: Callable[..., Live], project: Project
) -> None:
    """Several heartbeats between two jobs cost neither a log line nor another socket."""
    live = go_live(proxied)
    command = script(project, proxied.backend_url, live.topology.prefix, RARELY, heartbeat="1s")
    with subprocess.Popen(
        command,
        cwd=project.path,
        env=environment(project),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(2):
            assert process.stdout.readline() == "sent\n"
            time.sleep(2.5)  # the broker gives up after two heartbeats without a sign of life
            assert proxy.connections == 1
            process.stdin.write("\n")
            process.stdin.flush()
        assert process.stdout.read() == ""
    assert process.returncode == 0
    assert proxy.accepted == 1
    wait_until(lambda: proxy.connections == 0)
    assert live.ready() == 3


@pytest.mark.slow
def test_b45_failures_leave_neither_channels_nor_memory(live: Live) -> None:
    """Thousands of jobs, of which every hundredth is too large or has no route, leave nothing."""
    live.declare()
    backend = live.backend

    @job(name="trial.note")
    def note(text: str) -> None: ...

    def burst(number: int) -> None:
        futures = []
        for count in range(number):
            envelope = note.prepare("x").publication().envelope
            if count % 200 == 0:
                with pytest.raises(PayloadTooLarge):
                    note.enqueue("x" * 200_000)
            if count % 200 == 100:
                lost = backend._publisher.publish(
                    live.topology.entrance, "nowhere", codec.encode(envelope, 0)
                )
                assert isinstance(lost.exception(PATIENCE), PublishFailed)
            futures.append(backend.publish(envelope))
        for future in futures:
            future.result(PATIENCE)

    burst(1_000)
    gc.collect()
    before = len(gc.get_objects())
    burst(2_000)
    gc.collect()
    grown = len(gc.get_objects()) - before
    assert grown < 500
    engine = backend._publisher._engine
    assert engine is not None
    assert len(engine._connection._channels) <= 2
    assert live.backend.clear("default") == 3_000
