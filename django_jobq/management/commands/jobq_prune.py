"""``manage.py jobq_prune``: delete what was resolved long ago, a batch at a time."""

from __future__ import annotations

import datetime as dt
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_jobq import conf, durations
from django_jobq.exceptions import InvalidDuration
from django_jobq.store import dead_letters


class Command(BaseCommand):
    """Delete dead letters that were resolved long ago."""

    help = "Deletes dead letters that were requeued or discarded long ago; never open ones."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        """Define the options."""
        parser.add_argument(
            "--older-than",
            metavar="DURATION",
            help="how long ago they were resolved (default: the setting JOBQ_RETENTION)",
        )
        parser.add_argument(
            "--batch",
            type=int,
            default=1_000,
            metavar="N",
            help="how many rows one transaction deletes (default: %(default)s)",
        )
        parser.add_argument("--dry-run", action="store_true", help="only count them")
        parser.add_argument(
            "--database", help="alias of DATABASES (default: every DATABASE of JOBQ)"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Delete and say how many, for each database."""
        if options["batch"] < 1:
            raise CommandError("--batch is a whole number from 1")
        try:
            oldest = self._oldest(options["older_than"])
            named = options["database"]
            used = [named] if named else [entry.database for entry in conf.load_aliases().values()]
        except (InvalidDuration, ImproperlyConfigured) as error:
            raise CommandError(str(error)) from error
        for using in dict.fromkeys(used):
            if options["dry_run"]:
                number = dead_letters.prunable(oldest, using=using).count()
                self.stdout.write(f"{using}: {number} dead letter(s) would be deleted")
            else:
                number = _prune(oldest, using, options["batch"])
                self.stdout.write(f"{using}: {number} dead letter(s) deleted")

    def _oldest(self, given: str | None) -> dt.timedelta:
        if given is not None:
            return dt.timedelta(seconds=durations.parse_setting(given))
        oldest = conf.retention()
        if oldest is None:
            raise CommandError("JOBQ_RETENTION keeps everything: give --older-than")
        return oldest


def _prune(oldest: dt.timedelta, using: str, batch: int) -> int:
    total = 0
    while number := dead_letters.prune(oldest, using=using, batch=batch):
        total += number
    return total
