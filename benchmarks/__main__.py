"""Run the benchmark: python -m benchmarks [--rounds 3] [--jobs 10000] [--only worker|enqueue].

Rounds are interleaved (every product once, then again), so that a busy moment of the machine falls
on all of them; each measurement starts with an empty queue.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from types import FrameType
from typing import NoReturn

from pika.exceptions import AMQPConnectionError

from benchmarks import common, processes, report
from benchmarks.broker import Broker, BrokerBusy
from benchmarks.common import Product
from benchmarks.draining import WorkerSample, drain
from benchmarks.enqueueing import JOBS, WARM_UP, EnqueueSample


def main() -> None:
    """Measure and report; whatever happens, the broker is left as it was found."""
    options = _parse_arguments()
    # Also where a shell has switched Ctrl-C off, as it does for what runs in its background.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    with contextlib.ExitStack() as stack:
        os.environ[common.DIRECTORY_VARIABLE] = stack.enter_context(
            tempfile.TemporaryDirectory(prefix=common.PREFIX)
        )
        try:
            broker = stack.enter_context(Broker())
        except BrokerBusy:
            raise SystemExit("another run of the benchmark uses this broker") from None
        except AMQPConnectionError as error:
            raise SystemExit(f"no broker at AMQP_URL: {error!r}") from error
        common.say(report.versions(broker.version))
        common.say(f"{options.rounds} rounds, {_load()}")
        if options.only != "worker":
            report.enqueue_report([_enqueue_round(broker) for _ in range(options.rounds)])
        if options.only != "enqueue":
            query = " that ask the database" if options.query else ""
            common.say(f"\nWorkers: {options.jobs:,} no-op jobs{query} each round")
            report.worker_report([_worker_round(broker, options) for _ in range(options.rounds)])


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="default: %(default)s")
    parser.add_argument(
        "--jobs", type=int, default=10_000, help="queued for each worker (default: %(default)s)"
    )
    parser.add_argument("--only", choices=["worker", "enqueue"], help="measure one half")
    parser.add_argument(
        "--query", action="store_true", help="each job of the worker asks the database SELECT 1"
    )
    options = parser.parse_args()
    if options.rounds < 1 or options.jobs < 1:
        parser.error("--rounds and --jobs are whole numbers from 1")
    return options


def _enqueue_round(broker: Broker) -> dict[str, dict[str, EnqueueSample]]:
    return {product.name: _enqueue(product, broker) for product in common.ENQUEUERS}


def _enqueue(product: Product, broker: Broker) -> dict[str, EnqueueSample]:
    with (
        processes.log_path().open("wb") as log,
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.enqueueing", product.module],
            cwd=common.ROOT,
            env=processes.environment(**{common.CONFIRMS_VARIABLE: True}),
            stdout=subprocess.PIPE,
            stderr=log,
            start_new_session=True,
        ) as child,
    ):
        try:
            output, _ = child.communicate()
        finally:
            child.kill()
    if child.returncode != 0:
        processes.fail(f"enqueueing with {product.name} failed")
    broker.wait_for_ready(product.queue, WARM_UP + sum(JOBS.values()))
    broker.purge(product.queue)
    return {mode: EnqueueSample(**fields) for mode, fields in json.loads(output).items()}


def _worker_round(broker: Broker, options: argparse.Namespace) -> dict[str, WorkerSample]:
    return {
        product.name: drain(product, broker, options.jobs, query=options.query)
        for product in common.WORKERS
    }


def _load() -> str:
    busy, cores = os.getloadavg()[0], os.cpu_count() or 1
    text = f"load {busy:.1f} on {cores} cores at the start"
    return f"{text} (! the machine is busy with something else)" if busy > cores / 2 else text


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        raise SystemExit("interrupted; everything is cleaned up") from None
