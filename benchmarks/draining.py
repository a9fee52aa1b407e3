"""The worker: how fast it empties a queue that was filled before it started.

1. Fill the queue and start the worker; wait for the first side effect, so that its start does not
   count.
2. Wait until the journal has every job, and note the CPU time between the two moments.
3. Stop the worker. Whatever it had not acknowledged is ready again, so an empty queue proves that
   nothing was left.
"""

from __future__ import annotations

import dataclasses
import mmap
import subprocess
import time
from collections.abc import Callable

from benchmarks import common, processes, work
from benchmarks.broker import Broker
from benchmarks.common import Product

_LOOK = 0.005
_START_PATIENCE = 60.0
# No worker is this slow; one that is has failed.
_LEAST_RATE = 20.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSample:
    """Hold one measurement; CPU is seconds per 1,000 jobs, ``repeated`` the runs beyond one."""

    rate: float
    cpu: float | None
    broker_cpu: float | None
    megabytes: float | None
    repeated: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Moment:
    time: float
    jobs: int
    cpu: float | None
    broker_cpu: float | None


def drain(product: Product, broker: Broker, jobs: int, *, query: bool) -> WorkerSample:
    """Run one worker through ``jobs`` queued jobs."""
    work.new_journal(jobs)
    journal = work.open_journal()
    fill(product, broker, jobs)
    env = processes.environment(
        **{common.QUERY_VARIABLE: query, common.QUIET_VARIABLE: product.quiet}
    )
    broker_pids = processes.broker_pids()
    with processes.running(product.worker, env) as process:
        _wait(process, lambda: _seen(journal) > 0, _START_PATIENCE)
        pids = processes.tree(process.pid)
        first = _moment(journal, pids, broker_pids)
        _wait(process, lambda: _seen(journal) == jobs, 30 + jobs / _LEAST_RATE)
        last = _moment(journal, pids, broker_pids)
        megabytes = processes.peak_megabytes(pids)
    broker.wait_for_ready(product.queue, 0)
    repeated = sum(journal[:]) - jobs
    work.open_journal.cache_clear()
    done = last.jobs - first.jobs
    if done <= 0:
        raise SystemExit("the queue was empty before the measurement began: use more --jobs")
    return WorkerSample(
        rate=done / (last.time - first.time),
        cpu=_per_thousand(first.cpu, last.cpu, done),
        broker_cpu=_per_thousand(first.broker_cpu, last.broker_cpu, done),
        megabytes=megabytes,
        repeated=repeated,
    )


def fill(product: Product, broker: Broker, jobs: int) -> None:
    """Enqueue the jobs, unmeasured and so without the peers' confirms, and count them."""
    env = processes.environment(**{common.CONFIRMS_VARIABLE: False})
    with processes.running(("benchmarks.filling", product.module, str(jobs)), env) as process:
        if process.wait() != 0:
            processes.fail(f"filling the queue of {product.name} failed")
    broker.wait_for_ready(product.queue, jobs)


def _seen(journal: mmap.mmap) -> int:
    return len(journal) - journal[:].count(0)


def _wait(process: subprocess.Popen[bytes], ready: Callable[[], bool], patience: float) -> None:
    give_up = time.monotonic() + patience
    while not ready():
        if process.poll() is not None:
            processes.fail(f"the worker ended with status {process.returncode}")
        if time.monotonic() > give_up:
            processes.fail(f"the worker was not done within {patience:g} s")
        time.sleep(_LOOK)


def _moment(journal: mmap.mmap, pids: list[int], broker_pids: list[int]) -> _Moment:
    return _Moment(
        time=time.perf_counter(),
        jobs=_seen(journal),
        cpu=processes.cpu_seconds(pids),
        broker_cpu=processes.cpu_seconds(broker_pids),
    )


def _per_thousand(before: float | None, after: float | None, jobs: int) -> float | None:
    return None if before is None or after is None else (after - before) / jobs * 1000
