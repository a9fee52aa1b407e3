"""The worker inside the process that enqueues, in real processes, and that tests have none."""

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

from django_jobq import job
from django_jobq.backends.memory import MemoryBackend

ROOT = Path(__file__).parent.parent.parent
DEADLINE = 40.0

PROLOGUE = """
import asyncio, os, sys, threading, time
import django
from django.conf import settings

settings.configure(
    DEBUG=os.environ["PROJECT_DEBUG"] == "1",
    SECRET_KEY="script",
    INSTALLED_APPS=["django_jobq"],
    JOBQ={
        "default": {
            "BACKEND": "django_jobq.backends.memory.MemoryBackend",
            "OPTIONS": {"allow_in_production": os.environ["PROJECT_ALLOW"] == "1"},
        }
    },
)
django.setup()
from django_jobq import Defer, job
from django_jobq.backends.handler import backends
from django_jobq.worker import embedded


def say(*words):
    # One write, so that lines of several threads do not mix.
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())


@job
def quick(number):
    say("ran", number)


@job
async def quick_async(number):
    await asyncio.sleep(0)
    say("ran", number)
"""


class Script:
    """A script that ran to its end."""

    def __init__(self, tmp_path: Path, body: str, *, debug: bool, allow: bool) -> None:
        file = tmp_path / "script.py"
        file.write_text(PROLOGUE + textwrap.dedent(body))
        ended = subprocess.run(
            [sys.executable, str(file)],
            capture_output=True,
            text=True,
            timeout=DEADLINE,
            check=False,
            cwd=tmp_path,
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "PROJECT_DEBUG": str(int(debug)),
                "PROJECT_ALLOW": str(int(allow)),
            },
        )
        self.status, self.out, self.err = ended.returncode, ended.stdout, ended.stderr

    @property
    def ran(self) -> list[int]:
        lines = [line.split() for line in self.out.splitlines()]
        return sorted(int(words[1]) for words in lines if words[0] == "ran")


@pytest.fixture
def run(tmp_path: Path) -> Any:
    def call(body: str, *, debug: bool = True, allow: bool = False) -> Script:
        return Script(tmp_path, body, debug=debug, allow=allow)

    return call


def test_script_that_enqueues_and_exits_runs_its_jobs(run: Any) -> None:
    script = run(
        """
        for number in range(0, 20, 2):
            quick.enqueue(number)
            quick_async.enqueue(number + 1)
        """
    )

    assert script.status == 0, script.err
    assert script.ran == list(range(20))
    assert script.err.count("Memory backend: jobs run inside this process") == 1
    assert script.err.count(" succeeded in ") == 20
    assert "lost with this process" not in script.err
    assert "Traceback" not in script.err
    assert "ERROR" not in script.err


def test_job_that_runs_at_the_exit_is_waited_for(run: Any) -> None:
    script = run(
        """
        started = threading.Event()

        @job
        def slow(number):
            started.set()
            time.sleep(0.5)
            quick.enqueue(number + 1)
            say("ran", number)

        slow.enqueue(1)
        assert started.wait(20)
        say("the main thread ends")
        """
    )

    assert script.status == 0, script.err
    assert script.out.startswith("the main thread ends")
    assert script.ran == [1, 2]


@pytest.mark.contract(103)
def test_held_jobs_are_announced_as_lost(run: Any) -> None:
    script = run(
        """
        @job
        def defers():
            raise Defer("1h")

        quick.enqueue(1)
        quick.enqueue_after("1h", 2)
        quick.enqueue_after("1h", 3)
        defers.enqueue()
        """
    )

    assert script.status == 0, script.err
    assert script.ran == [1]
    (line,) = [line for line in script.err.splitlines() if "lost with this process:" in line]
    assert "WARNING" in line
    assert "3 job(s)" in line
    assert "0 ready, 3 delayed, 0 running" in line


def test_job_that_does_not_end_is_announced_and_does_not_keep_the_process(run: Any) -> None:
    script = run(
        """
        embedded.EXIT_TIMEOUT = 0.5
        started = threading.Event()

        @job
        def endless():
            started.set()
            threading.Event().wait(600)

        endless.enqueue()
        assert started.wait(20)
        """
    )

    assert script.status == 0, script.err
    assert "1 job(s)" in script.err
    assert "lost with this process" in script.err


def test_async_job_that_does_not_end_does_not_keep_the_process(run: Any) -> None:
    script = run(
        """
        embedded.EXIT_TIMEOUT = 0.5
        started = threading.Event()

        @job
        async def endless():
            started.set()
            while True:
                try:
                    await asyncio.sleep(600)
                except asyncio.CancelledError:
                    pass

        endless.enqueue()
        assert started.wait(20)
        """
    )

    assert script.status == 0, script.err
    assert "lost with this process" in script.err


def test_job_that_fails_is_told_and_the_process_ends_well(run: Any) -> None:
    script = run(
        """
        @job
        def fails():
            raise ValueError("out of stock")

        fails.enqueue()
        quick.enqueue(1)
        """
    )

    assert script.status == 0
    assert script.ran == [1]
    assert "ValueError: out of stock" in script.err
    assert "lost with this process" not in script.err


@pytest.mark.parametrize("call", ["quick.enqueue(1)", "asyncio.run(quick.aenqueue(1))"])
def test_without_debug_enqueueing_is_refused(run: Any, call: str) -> None:
    script = run(
        f"""
        from django.core.exceptions import ImproperlyConfigured
        try:
            {call}
        except ImproperlyConfigured as error:
            say("refused:", error)
        time.sleep(0.1)
        backend = backends["default"]
        say("stored", backend.unfinished().ready, "threads", threading.active_count())
        """,
        debug=False,
    )

    assert script.status == 0, script.err
    refused, stored = script.out.splitlines()[0], script.out.splitlines()[-1]
    assert refused.startswith("refused: JOBQ['default'] is the memory backend and DEBUG is off")
    assert "allow_in_production" in refused
    assert stored.startswith("stored 0 ")
    assert script.ran == []


def test_allow_in_production_runs(run: Any) -> None:
    script = run("quick.enqueue(1)\nquick_async.enqueue(2)\n", debug=False, allow=True)

    assert script.status == 0, script.err
    assert script.ran == [1, 2]


def test_nothing_starts_before_the_first_enqueue(run: Any) -> None:
    script = run(
        """
        backends["default"]
        say("threads", threading.active_count())
        """
    )

    assert script.status == 0, script.err
    assert script.out == "threads 1\n"
    assert script.err == ""


def test_enqueueing_from_many_threads_starts_one_worker(run: Any) -> None:
    script = run(
        """
        together = threading.Barrier(8)

        def enqueue(number):
            together.wait(20)
            quick.enqueue(number)

        threads = [threading.Thread(target=enqueue, args=[number]) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        say("workers", sum(t.name == "jobq-worker" for t in threading.enumerate()))
        """
    )

    assert script.status == 0, script.err
    assert "workers 1" in script.out.splitlines()
    assert script.ran == list(range(8))


def test_queue_that_comes_later_is_served_too(run: Any) -> None:
    """One worker for all queues or not: its start and its end are no error of another."""
    script = run(
        """
        # Runs after what is registered later, so that every worker's last words are heard.
        threading._register_atexit(time.sleep, 0.2)
        quick.enqueue(1)

        @job(queue="late")
        def late(number):
            say("ran", number)

        late.enqueue(2)
        quick.enqueue(3)
        """
    )

    assert script.status == 0, script.err
    assert script.ran == [1, 2, 3]
    assert "ERROR" not in script.err


def test_stuck_job_does_not_stop_the_others(run: Any) -> None:
    script = run(
        """
        from django_jobq.worker import attempt, executor
        attempt.GRACE = executor.GRACE = 0.2
        gate = threading.Event()

        @job(timeout="50ms")
        def stuck():
            gate.wait(600)

        for _ in range(embedded.CONCURRENCY):
            stuck.enqueue()
        for number in range(3):
            quick.enqueue(number)
        """
    )

    assert script.status == 0, script.err
    assert script.ran == [0, 1, 2]
    assert script.err.count("its thread is given up") == 4


def test_a_test_process_has_no_worker_inside(memory: MemoryBackend, settings: Any) -> None:
    ran: list[bool] = []

    @job(name="tests.runs")
    def runs() -> None:
        ran.append(True)

    settings.DEBUG = True
    before = set(threading.enumerate())
    runs.enqueue()

    assert set(threading.enumerate()) == before
    assert memory.counts("default").ready == 1
    assert ran == []
