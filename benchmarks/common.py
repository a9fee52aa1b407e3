"""What all processes of one run agree on: the broker, names, a directory, the products."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path

URL = os.environ.get("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/")
ROOT = Path(__file__).resolve().parent.parent
DIRECTORY_VARIABLE = "BENCHMARK_DIRECTORY"
CONFIRMS_VARIABLE = "BENCHMARK_CONFIRMS"
QUERY_VARIABLE = "BENCHMARK_QUERY"
QUIET_VARIABLE = "BENCHMARK_QUIET"
DATABASE_VARIABLE = "BENCHMARK_DATABASE"

# Every name on the broker begins with this.
PREFIX = "jobq-benchmark"
THREADS = 10


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """Describe one contestant: its adapter module, its queue, how its worker is started."""

    name: str
    module: str
    queue: str
    worker: tuple[str, ...]
    switched_on: str
    quiet: bool = False


JOBQ = Product(
    name="django_jobq",
    module="benchmarks.with_jobq",
    queue=f"{PREFIX}.q.default.1",
    worker=("django", "runworker", "--concurrency", str(THREADS)),
    switched_on=(
        "acks after the run, database hygiene and health checks, receiver of job_succeeded,"
        " one log line a job (the default)"
    ),
)
JOBQ_QUIET = dataclasses.replace(
    JOBQ,
    name="django_jobq, no line a job",
    switched_on="the same without the log line a job, which the peers do not write either",
    quiet=True,
)
CELERY = Product(
    name="celery",
    module="benchmarks.with_celery",
    queue=f"{PREFIX}-celery",
    worker=(
        *("celery", "--app", "benchmarks.with_celery", "worker", "--pool", "threads"),
        *("--concurrency", str(THREADS), "--loglevel", "WARNING"),
        *("--without-gossip", "--without-mingle", "--without-heartbeat"),
    ),
    switched_on=(
        "task_acks_late, reject on worker lost, its Django fixup, receiver of task_success;"
        " events, remote control, gossip, mingle and heartbeat are off"
    ),
)
DRAMATIQ = Product(
    name="dramatiq",
    module="benchmarks.with_dramatiq",
    queue=f"{PREFIX}-dramatiq",
    worker=(
        *("dramatiq", "benchmarks.with_dramatiq", "--processes", "1"),
        *("--threads", str(THREADS)),
    ),
    switched_on=(
        "acks after the run (it has no other), default middleware, database hygiene as in"
        " django_dramatiq, middleware that hears of each job"
    ),
)
ENQUEUERS = (JOBQ, CELERY, DRAMATIQ)
WORKERS = (JOBQ, JOBQ_QUIET, CELERY, DRAMATIQ)


def directory() -> Path:
    """Return the temporary directory of this run."""
    return Path(os.environ[DIRECTORY_VARIABLE])


def is_on(variable: str) -> bool:
    """Return whether the parent process switched something on for this one."""
    return os.environ.get(variable) == "1"


def say(text: str = "") -> None:
    """Write one line of the report."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
