"""``manage.py jobq_enqueue``: enqueue one job by its name, from cron or a shell.

The id of the job is all that it writes to standard output.
"""

from __future__ import annotations

import json
from typing import Any, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import Error

from django_jobq.backends.base import Backend
from django_jobq.backends.handler import backends
from django_jobq.exceptions import JobqError
from django_jobq.jobs import Job
from django_jobq.queues import suggest
from django_jobq.registry import registry

T = TypeVar("T")


class Command(BaseCommand):
    """Enqueue one job by its name."""

    help = "Enqueues a job and prints its id."
    # What concerns the job is checked as it is enqueued; each run need not pay for the rest.
    requires_system_checks: list[str] = []
    own_process = False

    def add_arguments(self, parser: CommandParser) -> None:
        """Define the arguments."""
        parser.add_argument("job", help="name of the job, such as shop.jobs.send_receipt")
        # Django passes on positional arguments as "args".
        parser.add_argument(
            "--args",
            dest="arguments",
            default="[]",
            metavar="JSON",
            help="""positional arguments as a JSON list, such as '[1, "x"]'""",
        )
        parser.add_argument(
            "--kwargs",
            dest="keywords",
            default="{}",
            metavar="JSON",
            help="""keyword arguments as a JSON object, such as '{"a": 1}'""",
        )
        self._add_call_options(parser)

    def _add_call_options(self, parser: CommandParser) -> None:
        """Define the options of `Job.using()` that a shell has a use for."""
        parser.add_argument("-q", "--queue", metavar="NAME", help="default: the queue of the job")
        parser.add_argument("--priority", type=int, metavar="N", help="default: that of the job")
        parser.add_argument(
            "--delay", metavar="DURATION", help="run it no sooner than after, say, 30s, 5m or 2h"
        )
        parser.add_argument("--front", action="store_true", help="run it ahead of the backlog")
        parser.add_argument("--correlation-id", metavar="ID", help="text that goes with the job")

    def run_from_argv(self, argv: list[str]) -> None:
        """Note that the process ends with the command, unlike in call_command()."""
        self.own_process = True
        super().run_from_argv(argv)

    def handle(self, *args: Any, **options: Any) -> None:
        """Enqueue the job, or say in one sentence why not."""
        job = _find(options["job"])
        arguments = _read("--args", options["arguments"], list, """a list such as '[1, "x"]'""")
        keywords = _read("--kwargs", options["keywords"], dict, """an object such as '{"a": 1}'""")
        try:
            if self.own_process:
                _refuse_if_pointless(backends[job.backend])
            enqueued = job.using(
                queue=options["queue"],
                priority=options["priority"],
                delay=options["delay"],
                front=options["front"] or None,
                correlation_id=options["correlation_id"],
            ).enqueue(*arguments, **keywords)
        except (JobqError, ImproperlyConfigured, Error) as error:
            # In one line, unlike what some databases say.
            raise CommandError(" ".join(str(error).split())) from error
        if options["verbosity"] > 0:
            self.stdout.write(str(enqueued.id))
            self.stderr.write(f"Enqueued {enqueued.job} on queue {enqueued.queue}", str)


def _find(name: str) -> Job[..., Any]:
    job = registry.find(name)
    if job is None:
        known = [item.name for item in registry]
        raise CommandError(f"no job has the name {name!r}{suggest(name, known)}")
    return job


def _read(option: str, text: str, kind: type[T], wanted: str) -> T:
    """Return the JSON value of an option."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{option} is not JSON ({error}); write {wanted}") from error
    if not isinstance(value, kind):
        raise CommandError(f"{option} is {text}, but must be {wanted}")
    return value


def _refuse_if_pointless(backend: Backend) -> None:
    if not backend.shared:
        raise CommandError(
            f"JOBQ[{backend.alias!r}] is the {backend.driver} backend, which keeps jobs inside the"
            " process that enqueues them: this job would end with the command. Set JOBQ to a"
            " backend that processes share."
        )
