"""``manage.py jobq_status``: what waits on each backend, queue by queue.

Exit status: 0 when everything could be read, 69 when a backend is unavailable (EX_UNAVAILABLE of
sysexits.h), 1 after another error, such as an alias that JOBQ does not name.
"""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections.abc import Iterator
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_jobq import conf
from django_jobq.backends.handler import backends
from django_jobq.exceptions import UnknownBackend
from django_jobq.management.queue_names import add_queue_option, read_queue_names
from django_jobq.queues import suggest
from django_jobq.status import OK, UNAVAILABLE, BackendStatus, QueueStatus, read_status

EXIT_UNAVAILABLE = 69
_WIDTH = 80
_COLUMNS = ("queue", "ready", "held", "undelivered", "dead", "consumers")


class Command(BaseCommand):
    """Show what waits on the backends."""

    help = "Shows how many jobs wait, and how many dead letters there are."
    # It tells what can be read; an error elsewhere in the project must not keep it from that.
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Define the options."""
        parser.add_argument(
            "-b",
            "--backend",
            metavar="ALIAS",
            help="alias of the JOBQ setting (default: every alias)",
        )
        add_queue_option(parser, "show")
        parser.add_argument(
            "--format",
            choices=("text", "json"),
            default="text",
            help="a table to read, or JSON for programs (default: %(default)s)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Read, write what was read, and fail if something could not be read."""
        only = set(read_queue_names(options["queues"]) or ())
        found = [read_status(alias, only) for alias in _aliases(options["backend"])]
        _check_names(only, found)
        show = _as_json if options["format"] == "json" else _as_text
        self.stdout.write(show(found))
        failed = [status.alias for status in found if status.status != OK]
        if failed:
            raise CommandError(f"unavailable: {', '.join(failed)}", returncode=EXIT_UNAVAILABLE)


def _aliases(wanted: str | None) -> list[str]:
    try:
        known = conf.load_aliases()
    except ImproperlyConfigured as error:
        raise CommandError(str(error)) from error
    if wanted is not None and wanted not in known:
        raise CommandError(str(UnknownBackend(wanted, known)))
    return list(known) if wanted is None else [wanted]


def _check_names(only: set[str], found: list[BackendStatus]) -> None:
    """Refuse a queue that no backend has, unless one of them could not tell."""
    missing = sorted(only - {queue.name for status in found for queue in status.queues})
    if missing and all(status.status == OK for status in found):
        known = {name for status in found for name in backends[status.alias].queues}
        raise CommandError(f"no backend has the queue {missing[0]!r}{suggest(missing[0], known)}")


def _as_json(found: list[BackendStatus]) -> str:
    everything = all(status.status == OK for status in found)
    tree = {
        "status": OK if everything else UNAVAILABLE,
        "backends": {status.alias: _tree(status) for status in found},
    }
    return json.dumps(tree, indent=2)


def _tree(status: BackendStatus) -> dict[str, Any]:
    """Return the fields by name; alias and queue are the keys that lead to them."""
    tree = {"status": status.status, **dataclasses.asdict(status)}
    tree["queues"] = {queue.pop("name"): queue for queue in tree["queues"]}
    del tree["alias"]
    return tree


def _as_text(found: list[BackendStatus]) -> str:
    return "\n\n".join("\n".join(_paragraph(status)) for status in found)


def _paragraph(status: BackendStatus) -> Iterator[str]:
    driver = f" ({status.driver})" if status.driver else ""
    yield f"{status.alias}{driver}: {status.status}"
    for text in (status.reason, status.note):
        if text:
            yield from _wrapped(text)
    if status.queues:
        yield from _table([_COLUMNS, *(_cells(queue) for queue in status.queues)])
    for note in dict.fromkeys(queue.note for queue in status.queues if queue.note):
        names = [_named(queue) for queue in status.queues if queue.note == note]
        yield from _wrapped(f"{note}: {', '.join(names)}")
    if status.unfiled:
        yield from _wrapped(f"dead letters not filed yet: {status.unfiled}")


def _cells(queue: QueueStatus) -> tuple[str, ...]:
    numbers = (queue.ready, queue.held, queue.undelivered, queue.dead, queue.consumers)
    cells = ["-" if number is None else str(number) for number in numbers]
    if queue.oldest_undelivered is not None:
        cells[2] += f" (oldest {_age(queue.oldest_undelivered)})"
    return (_named(queue), *cells)


def _named(queue: QueueStatus) -> str:
    """Return the name; a dead letter of foreign make may tell none."""
    return queue.name or "(none)"


def _age(seconds: float) -> str:
    """Return whole units, as durations are written in code."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f}{unit}"
    return f"{seconds:.0f}s"


def _table(rows: list[tuple[str, ...]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for name, *numbers in rows:
        cells = [text.rjust(width) for text, width in zip(numbers, widths[1:], strict=True)]
        yield "  ".join(["", name.ljust(widths[0]), *cells])


def _wrapped(text: str) -> list[str]:
    wrapper = textwrap.TextWrapper(
        width=_WIDTH,
        initial_indent="  ",
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return wrapper.wrap(text)
