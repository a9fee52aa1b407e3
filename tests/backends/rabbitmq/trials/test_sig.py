"""Trials of how a worker process ends: a supervisor can tell, and no job is lost."""

import subprocess
import sys
from pathlib import Path

from tests.backends.rabbitmq.support import (
    PATIENCE,
    ROOT,
    BackendFactory,
    WorkerProcess,
    browse,
    job_ids,
    send,
)

BROKEN = """
import django
django.setup()
from django.core.management import execute_from_command_line
from django_jobq.worker.buffer import RoundRobinBuffer

async def get(self):
    raise RuntimeError("the dispatcher is broken")

RoundRobinBuffer.get = get
execute_from_command_line(["manage.py", "runworker"])
"""


def test_b117_a_fault_of_the_worker_itself_ends_it_with_a_status(
    make: BackendFactory, tmp_path: Path
) -> None:
    """The process ends, says why, is not 0, and its jobs are ready for the next one."""
    backend = make("a")
    sent = send(backend, 3, job="tests.take")
    process = WorkerProcess(backend, tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", BROKEN],
        check=False,
        cwd=ROOT,
        env=process._env,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == 1
    assert done.stderr.count("RuntimeError: the dispatcher is broken") == 1
    queue = backend.topology.work_queue(backend.queue("a"))
    assert job_ids(browse(make.url, queue)) == [envelope.job_id for envelope in sent]
