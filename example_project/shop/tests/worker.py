"""Run the jobs of a test on the calling thread, where they see the test's data."""

from __future__ import annotations

import time
from collections.abc import Callable

from django.core.management import call_command

TIMEOUT = 20.0


def run_jobs() -> None:
    """Run every job that is due."""
    call_command("runworker", burst=True, verbosity=0)


def run_jobs_until(condition: Callable[[], bool]) -> None:
    """Run jobs, also those that are due later, until something has come true."""
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, "the jobs did not get there in time"
        run_jobs()
