"""The option ``--queue`` of commands: repeatable, or a comma list."""

from __future__ import annotations

from django.core.management.base import CommandError, CommandParser


def add_queue_option(parser: CommandParser, what: str) -> None:
    """Define the option; ``what`` is done only with these queues."""
    parser.add_argument(
        "-q",
        "--queue",
        action="append",
        dest="queues",
        metavar="NAMES",
        help=f"{what} only these queues; repeatable, or a comma list (default: all)",
    )


def read_queue_names(given: list[str] | str | None) -> list[str] | None:
    """Return the names that were given, or None if the option was not."""
    given = [given] if isinstance(given, str) else given
    if not given:
        return None
    names = [name.strip() for item in given for name in item.split(",") if name.strip()]
    if not names:
        raise CommandError("--queue names no queue")
    return names
