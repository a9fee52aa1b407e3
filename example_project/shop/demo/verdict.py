"""Judge a run of the demo on a fresh database: the table of its jobs, and what went wrong.

A complaint is a sentence; no complaints mean that every job ended as it should.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import supplier
from shop import mail
from shop.demo.ledger import DEAD, DONE, Entry
from shop.demo.scenario import PIANO, SOAP, WISHES
from shop.models import ImportReport, Order, Product

EXPECTED_JOBS = 3 * len(WISHES) + 1
EXPECTED_IMPORT = {
    "lines": 979,
    "header": 1,
    "good": 858,
    "bad": 99,
    "blank": 10,
    "continued": 11,
    "created": 858,
}
_COLUMNS = ["job", "for", "outcome", "attempts", "deferrals", "waited", "took", ""]


def table(entries: Iterable[Entry]) -> list[str]:
    """Return the lines of a table with one row for each job."""
    rows = [_COLUMNS, *(_cells(entry) for entry in entries)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    lines = ["  ".join(_aligned(row, widths)).rstrip() for row in rows]
    lines.insert(1, "  ".join("─" * width for width in widths[:-1]))
    return lines


def complaints(entries: Sequence[Entry], mail_folder: Path) -> list[str]:
    """Return a sentence for each thing that is not as it should be."""
    return [
        *_about_jobs({str(entry): entry for entry in entries}),
        *_about_detours(entries),
        *_about_orders(),
        *_about_mail(mail_folder),
        *_about_import(),
    ]


def _cells(entry: Entry) -> list[str]:
    return [
        entry.title,
        entry.about,
        entry.outcome or "not ended",
        str(entry.attempts),
        str(entry.deferrals),
        "never ran" if entry.waited is None else f"{entry.waited:.2f} s",
        f"{entry.took:.2f} s",
        entry.reason,
    ]


def _aligned(row: list[str], widths: list[int]) -> Iterator[str]:
    for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
        yield cell.rjust(width) if 3 <= column <= 6 else cell.ljust(width)


def _about_jobs(entries: dict[str, Entry]) -> Iterator[str]:
    expected = dict(_expected())
    for name, should in expected.items():
        entry = entries.get(name)
        if entry is None:
            yield f"The {name} was never enqueued."
        elif (entry.outcome, entry.cause, entry.attempts) != should:
            yield f"The {name} should be {_told(*should)}, but is {_told_of(entry)}."
    for name in entries.keys() - expected.keys():
        yield f"Nobody expected the {name}."


def _expected() -> Iterator[tuple[str, tuple[str, str, int]]]:
    for number, wish in enumerate(WISHES, 1):
        about = f"order {number}"
        yield f"receipt for {about}", (DONE, "", 1 if number % mail.EVERY else 2)
        yield f"stock for {about}", (DONE, "", 1)
        if PIANO in wish.items:
            yield f"packing for {about}", (DEAD, "fatal", 1)
        elif SOAP in wish.items:
            yield f"packing for {about}", (DEAD, "exhausted", 3)
        else:
            yield f"packing for {about}", (DONE, "", 1)
    yield "catalogue for import 1", (DONE, "", 1)


def _told(outcome: str, cause: str, attempts: int) -> str:
    why = f" ({cause})" if cause else ""
    return f"{outcome or 'under way'}{why} after {attempts} attempt{'s' * (attempts != 1)}"


def _told_of(entry: Entry) -> str:
    return _told(entry.outcome, entry.cause, entry.attempts)


def _about_detours(entries: Sequence[Entry]) -> Iterator[str]:
    done = [entry for entry in entries if entry.outcome == DONE]
    if not any(entry.title == "receipt" and entry.attempts > 1 for entry in done):
        yield "No receipt was sent after a retry."
    if not any(entry.title == "stock" and entry.deferrals for entry in done):
        yield "No stock was synced after a deferral."


def _about_orders() -> Iterator[str]:
    for order, wish in zip(Order.objects.order_by("pk"), WISHES, strict=False):
        if order.receipt_sent_at is None:
            yield f"{order} has no receipt."
        if order.stock_synced_at is None:
            yield f"{order} is not in step with the supplier."
        if (order.packed_at is None) != bool({PIANO, SOAP} & wish.items.keys()):
            yield f"{order} is {'not ' if order.packed_at is None else ''}packed."
    for product in Product.objects.filter(order_lines__isnull=False).distinct():
        if product.stock != supplier.stock_level(product.sku):
            yield f"The stock of {product} is {product.stock}, the supplier says otherwise."


def _about_mail(folder: Path) -> Iterator[str]:
    text = "".join(path.read_text() for path in sorted(folder.glob("*.log")))
    sent = [int(number) for number in re.findall(r"^Subject: Your order (\d+)$", text, re.M)]
    for number in range(1, len(WISHES) + 1):
        if sent.count(number) != 1:
            yield f"The receipt for order {number} was sent {sent.count(number)} times."


def _about_import() -> Iterator[str]:
    report = ImportReport.objects.first()
    if report is None:
        yield "There is no import report."
        return
    for name, expected in EXPECTED_IMPORT.items():
        if (found := getattr(report, name)) != expected:
            yield f"The import report says {found} {name}, not {expected}."
    if (stored := report.problems.count()) != report.bad:
        yield f"The report counts {report.bad} bad lines and names {stored}."
