"""Trials of stopping: one signal lets running jobs end, two end the process."""

from __future__ import annotations

import signal
from time import monotonic

import pytest

from tests.trials.project import Project

JOBS = """
import asyncio, threading, time

from asgiref.sync import sync_to_async

from django_jobq import job


@job
def asleep():
    print("job runs", flush=True)
    time.sleep(600)


@job
def stubborn():
    print("job runs", flush=True)
    while True:
        try:
            time.sleep(600)
        except BaseException:
            pass


@job
async def awaiting():
    print("job runs", flush=True)
    await asyncio.sleep(600)


@job
async def defiant():
    print("job runs", flush=True)
    while True:
        try:
            await asyncio.sleep(0.05)
        except asyncio.CancelledError:
            pass


@job
async def in_thread():
    print("job runs", flush=True)
    await sync_to_async(time.sleep)(600)


@job
def quick():
    print("quick runs", flush=True)
"""


def start(project: Project, name: str, *options: str):  # type: ignore[no-untyped-def]
    project.write("shop/jobs.py", JOBS)
    project.write(
        "shop/first.py",
        f"from shop.jobs import {name}, quick\n\n\ndef first_jobs():\n"
        f"    return [{name}.prepare(), quick.prepare()]\n",
    )
    worker = project.django("runworker", "--concurrency", "1", *options)
    worker.wait_for("job runs")
    return worker


@pytest.mark.contract(66, 75)
@pytest.mark.parametrize("name", ["asleep", "stubborn", "defiant", "in_thread"])
def test_b121_a_second_signal_ends_at_once(name: str, project: Project) -> None:
    """The first signal says what it waits for; the second ends the process within a moment."""
    worker = start(project, name)

    worker.signal(signal.SIGINT)
    worker.wait_for("Stopping: 1 running job(s) end first")
    assert worker.process.poll() is None
    second = monotonic()
    worker.signal(signal.SIGINT)

    assert worker.wait(10) == 130
    assert monotonic() - second < 5
    assert "Second signal: ending at once" in worker.output
    assert "quick runs" not in worker.output


@pytest.mark.contract(64, 65, 75)
@pytest.mark.parametrize("name", ["asleep", "awaiting", "defiant", "in_thread"])
def test_b121_one_signal_ends_the_worker_by_its_deadline(name: str, project: Project) -> None:
    """After one signal the process is gone by the shutdown timeout, whatever the job does."""
    worker = start(project, name, "--shutdown-timeout", "500ms")

    first = monotonic()
    worker.signal(signal.SIGTERM)
    worker.wait_for("1 job(s) still run at the deadline; handed back")

    assert worker.wait(10) == 0
    assert monotonic() - first < 10
    assert "quick runs" not in worker.output
