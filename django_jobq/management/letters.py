"""What the commands share that resolve dead letters: which ones, on file for which backend."""

from __future__ import annotations

import abc
import uuid
from collections.abc import Collection, Mapping
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db.models import Count, Q, QuerySet

from django_jobq import conf
from django_jobq.backends.base import Backend
from django_jobq.backends.handler import backends
from django_jobq.exceptions import JobqError
from django_jobq.models import DeadLetter
from django_jobq.store import dead_letters

_FILTERS = ("job", "queue", "cause", "fingerprint")


class LettersCommand(BaseCommand, abc.ABC):
    """Resolve open dead letters of one backend, in the way that a subclass says."""

    # Nothing here depends on them, and it may be called in a hurry.
    requires_system_checks: list[str] = []
    done: str

    @abc.abstractmethod
    def resolve(self, ids: Collection[int], backend: Backend) -> tuple[int, Mapping[int, str]]:
        """Resolve letters; return how many, and by the ids of the others why they are not."""

    def add_arguments(self, parser: CommandParser) -> None:
        """Define the options."""
        parser.add_argument(
            "ids", nargs="*", metavar="ID", help="ids of dead letters, or of their jobs"
        )
        parser.add_argument("--job", metavar="NAME", help="only letters of this job")
        parser.add_argument("--queue", metavar="NAME", help="only letters of this queue")
        parser.add_argument(
            "--cause", choices=DeadLetter.Cause.values, help="only letters with this cause"
        )
        parser.add_argument("--fingerprint", metavar="TEXT", help="only failures of this kind")
        parser.add_argument("--all", action="store_true", help="all open letters of the backend")
        parser.add_argument(
            "--dry-run", action="store_true", help="only count the letters, by job and cause"
        )
        parser.add_argument(
            "-b",
            "--backend",
            default=conf.DEFAULT_ALIAS,
            help="alias of the JOBQ setting (default: %(default)s)",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Resolve what is chosen and say how many letters that were."""
        backend = self._backend(options["backend"])
        letters = self._choose(backend, options)
        if options["dry_run"]:
            self._count(letters)
            return
        ids = list(letters.values_list("id", flat=True))
        number, refused = self.resolve(ids, backend)
        self.stdout.write(f"{number} dead letter(s) {self.done}")
        for reason in refused.values():
            self.stderr.write(reason)
        if refused:
            raise CommandError(f"{len(refused)} dead letter(s) not {self.done}")

    def _backend(self, alias: str) -> Backend:
        try:
            backend = backends[alias]
        except (JobqError, ImproperlyConfigured) as error:
            raise CommandError(str(error)) from error
        if not backend.leaves_storing:
            raise CommandError(
                f"JOBQ[{alias!r}] is the {backend.driver} backend, which keeps its dead letters"
                " itself: none is on file, and no job could be given back to it from here"
            )
        return backend

    def _choose(self, backend: Backend, options: dict[str, Any]) -> QuerySet[DeadLetter]:
        wanted = {name: options[name] for name in _FILTERS if options[name]}
        if not (wanted or options["ids"] or options["all"]):
            raise CommandError("name ids, or --job, --queue, --cause or --fingerprint, or --all")
        letters = dead_letters.open_letters(backend.alias, using=backend.settings.database)
        letters = letters.filter(**wanted)
        if not options["ids"]:
            return letters
        numbers, job_ids = _read_ids(options["ids"])
        chosen = letters.filter(Q(id__in=numbers) | Q(job_id__in=job_ids))
        found = set(chosen.values_list("id", "job_id"))
        known = {pk for pk, _ in found} | {job_id for _, job_id in found}
        if missing := [str(one) for one in (*numbers, *job_ids) if one not in known]:
            raise CommandError(f"no such open dead letter: {', '.join(missing)}")
        return chosen

    def _count(self, letters: QuerySet[DeadLetter]) -> None:
        groups = letters.order_by("job", "cause").values_list("job", "cause")
        for job, cause, number in groups.annotate(Count("id")):
            self.stdout.write(f"{number:8,}  {cause:15} {job or '(no envelope)'}")
        self.stdout.write(f"{letters.count():,} dead letter(s) would be {self.done}")


def _read_ids(texts: Collection[str]) -> tuple[list[int], list[uuid.UUID]]:
    numbers, job_ids = [], []
    for text in map(str, texts):
        try:
            if text.isdecimal():
                numbers.append(int(text))
            else:
                job_ids.append(uuid.UUID(text))
        except ValueError as error:
            raise CommandError(f"{text!r} is neither the id of a letter nor of a job") from error
    return numbers, job_ids
