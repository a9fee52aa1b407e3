"""Enqueueing, measured in a process of its own: python -m benchmarks.enqueueing MODULE.

Run by the benchmark; the result is one JSON object for each mode on standard output.
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import django

from benchmarks import processes

SINGLE, TRANSACTION, THREADED = "single", "transaction", "threads"
BATCH, THREADS = 100, 8
# How many jobs each mode enqueues.
JOBS = {SINGLE: 1_000, TRANSACTION: 20 * BATCH, THREADED: THREADS * 250}
WARM_UP = 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EnqueueSample:
    """Hold one measurement: jobs a second, the median call in ms, CPU seconds per 1,000 jobs."""

    rate: float
    call: float
    cpu: float
    broker_cpu: float | None


def measure(mode: str, adapter: Any) -> EnqueueSample:
    """Enqueue the jobs of a mode, each with its confirm."""
    run: Callable[[], list[float]] = {
        SINGLE: lambda: time_each(adapter.enqueue, range(JOBS[SINGLE])),
        TRANSACTION: lambda: time_each(
            adapter.enqueue_in_transaction,
            [range(i, i + BATCH) for i in range(0, JOBS[TRANSACTION], BATCH)],
        ),
        THREADED: lambda: in_threads(adapter.enqueue),
    }[mode]
    broker = processes.broker_pids()
    cpu, broker_cpu = time.process_time(), processes.cpu_seconds(broker)
    started = time.perf_counter()
    calls = run()
    took = time.perf_counter() - started
    cpu = time.process_time() - cpu
    after = processes.cpu_seconds(broker)
    thousands = JOBS[mode] / 1000
    return EnqueueSample(
        rate=JOBS[mode] / took,
        call=statistics.median(calls) * 1000,
        cpu=cpu / thousands,
        broker_cpu=(
            None if after is None or broker_cpu is None else (after - broker_cpu) / thousands
        ),
    )


def time_each(call: Callable[[Any], None], arguments: Any) -> list[float]:
    """Return how many seconds each call took."""
    times = []
    for argument in arguments:
        started = time.perf_counter()
        call(argument)
        times.append(time.perf_counter() - started)
    return times


def in_threads(call: Callable[[int], None]) -> list[float]:
    """Return the times of calls from several threads at once."""
    share = JOBS[THREADED] // THREADS
    times: list[list[float]] = [[] for _ in range(THREADS)]

    def work(index: int) -> None:
        times[index] = time_each(call, range(index * share, (index + 1) * share))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not all(times):
        raise SystemExit("a thread failed to enqueue")
    return [one for those in times for one in those]


def main(module: str) -> None:
    """Measure every mode of one product."""
    django.setup()
    adapter: Any = importlib.import_module(module)
    for number in range(WARM_UP):
        adapter.enqueue(number)
    results = {mode: dataclasses.asdict(measure(mode, adapter)) for mode in JOBS}
    sys.stdout.write(json.dumps(results))


if __name__ == "__main__":
    main(sys.argv[1])
