"""Jobs of worker processes that tests start; they note what happens in a file, by job id."""

import os
import signal
import time
import uuid
from pathlib import Path
from typing import Any

from django_jobq import Defer, job
from django_jobq.context import JobContext
from django_jobq.envelope import Envelope
from django_jobq.store import filing, holds


def note(event: str, job: JobContext | Envelope) -> None:
    """Append one line, whole even if the process dies the moment after."""
    path = Path(os.environ["JOBQ_TEST_NOTES"])
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, f"{event} {job.job_id}\n".encode())
    os.close(file)


@job(queue="a", name="tests.take", takes_context=True)
def take(context: JobContext, seconds: float = 0) -> None:
    """Take a while."""
    note("started", context)
    time.sleep(seconds)
    note("ended", context)


@job(queue="a", name="tests.kill", takes_context=True)
def kill(context: JobContext) -> None:
    """End the process as the kernel does when memory is short."""
    note("started", context)
    os.kill(os.getpid(), signal.SIGKILL)


@job(queue="a", name="tests.fail", takes_context=True)
def fail(context: JobContext) -> None:
    """Fail."""
    note("started", context)
    raise ValueError("no luck")


@job(queue="a", name="tests.defer", takes_context=True)
def defer(context: JobContext, delay: str) -> None:
    """Defer for ever, until the process is told to let it end."""
    note(f"started-{context.deferrals}", context)
    if "JOBQ_TEST_END" in os.environ:
        note("ended", context)
        return
    raise Defer(delay)


def die_once_stored() -> None:
    """End the process with every hold, between its commit and the acknowledgement."""
    put = holds.put

    def put_and_die(*args: Any, **kwargs: Any) -> bool:
        put(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError

    holds.put = put_and_die


if "JOBQ_TEST_DIE_ONCE_STORED" in os.environ:
    die_once_stored()


def die_after_filing() -> None:
    """Let the process end the first time that dead letters were filed, and not removed yet."""
    file = filing.file

    def file_and_die(*args: Any, **options: Any) -> None:
        file(*args, **options)
        notes = Path(os.environ["JOBQ_TEST_NOTES"])
        if "filed " not in notes.read_text():
            with notes.open("a") as lines:
                lines.write(f"filed {uuid.uuid4()}\n")
            os.kill(os.getpid(), signal.SIGKILL)

    filing.file = file_and_die


if "JOBQ_TEST_DIE_AFTER_FILING" in os.environ:
    die_after_filing()


def die_in_the_hook(*, envelope: Envelope, **_: Any) -> None:
    """Note that a job is given up, and the first time end the process before it is filed."""
    note("told", envelope)
    if Path(os.environ["JOBQ_TEST_NOTES"]).read_text().count("told ") == 1:
        os.kill(os.getpid(), signal.SIGKILL)
