"""The tables: medians over the rounds, ratios within a round, and a word on noise."""

from __future__ import annotations

import platform
import statistics
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import django_jobq
from benchmarks import common
from benchmarks.draining import WorkerSample
from benchmarks.enqueueing import BATCH, SINGLE, THREADED, THREADS, TRANSACTION, EnqueueSample

TOLERATED_SPREAD = 1.5
_PACKAGES = ("Django", "aio-pika", "pika", "celery", "kombu", "amqp", "dramatiq")
_PEERS = (common.CELERY.name, common.DRAMATIQ.name)
_TITLES = {
    SINGLE: "One job after the other, each waiting for its confirm",
    TRANSACTION: f"{BATCH} jobs in one transaction; a call is the whole transaction",
    THREADED: f"{THREADS} threads, each enqueueing one job after the other",
}

EnqueueRounds = Sequence[Mapping[str, Mapping[str, EnqueueSample]]]
WorkerRounds = Sequence[Mapping[str, WorkerSample]]


def versions(broker: str) -> str:
    """Return what is measured, on what."""
    try:
        packages = ", ".join(f"{name} {version(name)}" for name in _PACKAGES)
    except PackageNotFoundError as error:
        raise SystemExit(f"{error}; install the group: pip install --group bench") from error
    return (
        f"django_jobq {django_jobq.__version__}; {packages};"
        f" Python {platform.python_version()}; {broker}"
    )


def enqueue_report(rounds: EnqueueRounds) -> None:
    """Write a table for each mode; rounds are samples by product and mode."""
    for mode, title in _TITLES.items():
        common.say(f"\n{title}\n")
        samples = {name: [one[name][mode] for one in rounds] for name in rounds[0]}
        rows = [
            [
                name,
                _rate(those),
                *_ratios(samples, name),
                f"{statistics.median(one.call for one in those):.2f}",
                _median([one.cpu for one in those], 3),
                _median([one.broker_cpu for one in those], 3),
            ]
            for name, those in samples.items()
        ]
        _table(["call ms", "CPU s/1k", "broker s/1k"], rows)
        _warn_of_noise(samples)
    ours = [one[common.JOBQ.name] for one in rounds]
    price = statistics.median(one[TRANSACTION].call / one[SINGLE].call for one in ours)
    common.say(f"\n{BATCH} django_jobq jobs in a transaction cost {price:.1f} single enqueues.")


def worker_report(rounds: WorkerRounds) -> None:
    """Write the table of the workers; rounds are samples by product."""
    common.say(f"\nWorker, {common.THREADS} at once, queue filled before\n")
    samples = {name: [one[name] for one in rounds] for name in rounds[0]}
    rows = [
        [
            name,
            _rate(those),
            *_ratios(samples, name),
            _median([one.cpu for one in those], 3),
            _median([one.broker_cpu for one in those], 3),
            _median([one.megabytes for one in those], 0),
            str(sum(one.repeated for one in those)),
        ]
        for name, those in samples.items()
    ]
    _table(["CPU s/1k", "broker s/1k", "peak MB", "repeated"], rows)
    _warn_of_noise(samples)
    common.say("\nSwitched on:")
    for product in common.WORKERS:
        common.say(f"  {product.name}: {product.switched_on}")


def _rate(samples: Sequence[Any]) -> str:
    rates = [one.rate for one in samples]
    return f"{statistics.median(rates):,.0f} ({min(rates):,.0f}-{max(rates):,.0f})"


def _ratios(samples: Mapping[str, Sequence[Any]], name: str) -> list[str]:
    """Return how many times as fast a product was as each peer, within the same round."""
    return [
        f"{statistics.median(a.rate / b.rate for a, b in pairs):.2f}"
        for peer in _PEERS
        for pairs in [list(zip(samples[name], samples[peer], strict=True))]
    ]


def _median(values: Sequence[float | None], digits: int) -> str:
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):.{digits}f}" if known else "-"


def _warn_of_noise(samples: Mapping[str, Sequence[Any]]) -> None:
    for name, those in samples.items():
        rates = [one.rate for one in those]
        spread = max(rates) / min(rates)
        if spread > TOLERATED_SPREAD:
            common.say(
                f"! {name} varied by {spread:.1f}x: the machine was noisy, trust ratios and CPU"
            )


def _table(last_columns: list[str], rows: list[list[str]]) -> None:
    head = ["", "jobs/s (range)", *(f"x {peer}" for peer in _PEERS), *last_columns]
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    for row in [head, *rows]:
        cells = [text.rjust(width) for text, width in zip(row, widths, strict=True)]
        common.say("  ".join([row[0].ljust(widths[0]), *cells[1:]]))
