"""Trials of platforms: the worker beside the reloader, and on loops without signal support."""

from __future__ import annotations

import os
import signal

import pytest

from tests.trials.project import Process, Project, wait_until

JOBS = """
from django_jobq import job


@job
def hello():
    print("hello from {text}", flush=True)
"""
FIRST = "from shop.jobs import hello\n\n\ndef first_jobs():\n    return [hello.prepare()]\n"


def change_until_reloaded(project: Project, worker: Process) -> None:
    """Change the code; a reloader that has not looked at it yet sees one of the later changes."""
    project.write("shop/jobs.py", JOBS.format(text="two"))
    file = project.path / "shop" / "jobs.py"
    for later in range(1, 60):
        os.utime(file, (file.stat().st_atime, file.stat().st_mtime + later))
        if worker.sees("hello from two", 0.5):
            return
    pytest.fail(f"the worker did not reload:\n{worker.output}")


@pytest.mark.contract(75)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_b189_the_worker_runs_beside_the_reloader(number: int, project: Project) -> None:
    """With reloading on, the worker starts, restarts when code changes, and stops on one signal."""
    project.settings("DEBUG = True\n")
    project.write("shop/jobs.py", JOBS.format(text="one"))
    project.write("shop/first.py", FIRST)

    worker = project.django("runworker", "--reload")
    worker.wait_for("hello from one")
    if number == signal.SIGTERM:
        change_until_reloaded(project, worker)
    # A terminal signals the whole group, a supervisor the process it started.
    if number == signal.SIGINT:
        worker.signal_group(number)
    else:
        worker.signal(number)

    assert worker.wait(20) is not None
    wait_until(lambda: not worker.has_group())


NO_SIGNALS = """
import asyncio
from asyncio import unix_events


def refuse(self, *args):
    raise NotImplementedError


unix_events._UnixSelectorEventLoop.add_signal_handler = refuse
"""


@pytest.mark.contract(75)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_b191_a_loop_without_signal_support_stops_gracefully(number: int, project: Project) -> None:
    """Where the event loop cannot handle signals, the worker starts and stops like anywhere."""
    project.write("shop/jobs.py", NO_SIGNALS + JOBS.format(text="one"))
    project.write("shop/first.py", FIRST)

    worker = project.django("runworker")
    worker.wait_for("hello succeeded")
    worker.signal(number)

    assert worker.wait(10) == 0
    assert "Stopping: 0 running job(s) end first" in worker.output
    assert "Traceback" not in worker.output
    assert "1 succeeded" in worker.output


@pytest.mark.contract(75)
def test_b191_a_second_signal_ends_there_too(project: Project) -> None:
    """On such a loop a second signal ends a worker whose job blocks."""
    project.write(
        "shop/jobs.py",
        NO_SIGNALS + JOBS.format(text="one") + "    import time\n\n    time.sleep(600)\n",
    )
    project.write("shop/first.py", FIRST)

    worker = project.django("runworker")
    worker.wait_for("hello from one")
    worker.signal(signal.SIGINT)
    worker.wait_for("Stopping: 1 running job(s) end first")
    worker.signal(signal.SIGINT)

    assert worker.wait(10) == 130
