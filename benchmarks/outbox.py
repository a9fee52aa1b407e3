"""Measure what the outbox costs: python -m benchmarks.outbox [--database URL] [--rounds 40].

Transactions that write one row and enqueue 1, 10 or 100 jobs, one by one or with enqueue_many(),
with and without the outbox in turn, so that a busy moment of the machine falls on both. It makes
its tables and drops them again.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import time
from collections.abc import Iterator

import django
from django.core.management import call_command

from benchmarks import common, report
from benchmarks.broker import Broker
from django_jobq import Job, enqueue_many

SIZES = (1, 10, 100)
ONE_BY_ONE, MANY = "one by one", "enqueue_many"
_ROWS = "benchmark_rows"


def main() -> None:
    """Measure and report; what it made is removed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.outbox", description=__doc__)
    parser.add_argument("--database", default="postgres:///test", help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=40, help="default: %(default)s")
    options = parser.parse_args()
    os.environ[common.DATABASE_VARIABLE] = options.database
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.settings"
    with tempfile.TemporaryDirectory(prefix=common.PREFIX) as folder, Broker() as broker:
        os.environ[common.DIRECTORY_VARIABLE] = folder
        django.setup()
        with _tables():
            common.say(f"{report.versions(broker.version)}\n{_database()}")
            cases = [*((size, ONE_BY_ONE) for size in SIZES), (SIZES[-1], MANY)]
            _report({case: _measure(case, options.rounds, broker) for case in cases})


def _measure(case: tuple[int, str], rounds: int, broker: Broker) -> dict[str, list[float]]:
    """Return how many milliseconds each transaction took, by alias."""
    from benchmarks.jobs import record, record_stored

    jobs = {"outbox off": record, "outbox on": record_stored}
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for number in range(rounds + 3):
        for name, job in jobs.items():
            started = time.perf_counter()
            _enqueue(job, *case)
            if number >= 3:  # the first ones connect and declare
                times[name].append((time.perf_counter() - started) * 1000)
        broker.purge(common.JOBQ.queue)
    return times


def _enqueue(job: Job[[int], None], size: int, how: str) -> None:
    from django.db import connection, transaction

    with transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(f"INSERT INTO {_ROWS} VALUES (1)")
        if how == MANY:
            enqueue_many([job.prepare(number) for number in range(size)])
        else:
            for number in range(size):
                job.enqueue(number)


@contextlib.contextmanager
def _tables() -> Iterator[None]:
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {_ROWS} (number integer)")
    try:
        call_command("migrate", "jobq", verbosity=0)
        yield
    finally:
        call_command("migrate", "jobq", "zero", verbosity=0)
        with connection.cursor() as cursor:
            cursor.execute(f"DROP TABLE {_ROWS}")


def _database() -> str:
    from django.db import connection

    return f"{connection.display_name} {'.'.join(map(str, connection.get_database_version()))}"


def _report(found: dict[tuple[int, str], dict[str, list[float]]]) -> None:
    common.say("\njobs  how           outbox off ms  outbox on ms     x  ms a job more")
    for (size, how), times in found.items():
        off, on = (statistics.median(times[name]) for name in ("outbox off", "outbox on"))
        more = (on - off) / size
        common.say(
            f"{size:>4}  {how:<12}  {off:>13.2f}  {on:>12.2f}  {on / off:>4.2f}  {more:>13.3f}"
        )


if __name__ == "__main__":
    main()
