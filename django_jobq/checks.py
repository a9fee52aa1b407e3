"""System checks. None of them opens a connection; a URL is never part of a message."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from django.conf import settings
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from django_jobq import conf
from django_jobq.backends.base import Backend
from django_jobq.backends.handler import build
from django_jobq.exceptions import InvalidJob, JobqError
from django_jobq.queues import suggest
from django_jobq.registry import place_of, registry


def register() -> None:
    """Add the checks to Django's."""
    checks.register(check_jobq, "jobq")


def check_jobq(**_: Any) -> list[checks.CheckMessage]:
    """Check the settings, then the jobs against them."""
    try:
        aliases = conf.load_aliases()
    except ImproperlyConfigured as error:
        return [_error("E001", str(error), "Correct the JOBQ setting.")]
    found: list[checks.CheckMessage] = list(_check_settings())
    backends = {}
    for alias, entry in aliases.items():
        try:
            backends[alias] = build(entry)
        except (ImproperlyConfigured, JobqError) as error:
            found.append(_error("E002", str(error), f"Correct JOBQ[{alias!r}]."))
    found.extend(_check_databases(backends))
    found.extend(_check_similar_aliases(backends))
    found.extend(_check_production(backends))
    found.extend(_check_conflicts())
    for alias, backend in backends.items():
        found.extend(_check_queue_names(alias, backend))
    for job in registry:
        if job.backend not in aliases:
            hint = f"Name it in JOBQ, or correct the job{suggest(job.backend, aliases)}"
            text = f"Job {job.name} uses the backend {job.backend!r}, which JOBQ does not name."
            found.append(_error("E004", text, hint))
        elif job.backend in backends:
            found.extend(_check_queue(job, backends[job.backend]))
    return found


def _check_settings() -> Iterator[checks.CheckMessage]:
    for name, suggestion in conf.unknown_settings().items():
        yield _error(
            "E008",
            f"The setting {name} is read by nothing.",
            f"Correct its name{suggestion}",
        )
    try:
        conf.retention()
    except ImproperlyConfigured as error:
        yield _error("E001", f"{error}.", "Write a duration such as '30d', or None.")


def _check_databases(backends: dict[str, Backend]) -> Iterator[checks.CheckMessage]:
    known = connections.settings
    for alias, backend in backends.items():
        for database in backend.databases:
            if database not in known:
                key = "DATABASE" if database == backend.settings.database else "OUTBOX_DATABASES"
                yield _error(
                    "E010",
                    f"JOBQ[{alias!r}][{key!r}]: DATABASES has no alias {database!r}.",
                    f"Correct its name{suggest(database, known)}",
                )


def _check_similar_aliases(backends: dict[str, Backend]) -> Iterator[checks.CheckMessage]:
    """Find aliases that MariaDB takes for the same one, and would give each other's jobs."""
    storing = [item for item in backends.items() if item[1].uses_outbox or item[1].uses_holds]
    for (first, one), (second, other) in itertools.combinations(storing, 2):
        shared = [name for name in one.databases if name in other.databases]
        if shared and first.casefold() == second.casefold():
            yield _error(
                "E011",
                f"JOBQ[{first!r}] and JOBQ[{second!r}] store jobs in database {shared[0]!r} and"
                " differ only in case.",
                "Give one of them another name.",
            )


def _check_production(backends: dict[str, Backend]) -> Iterator[checks.CheckMessage]:
    if settings.DEBUG or conf.is_test_process():
        return
    for alias, backend in backends.items():
        if backend.shared or getattr(backend.options, "allow_in_production", True):
            continue
        yield _error(
            "E005",
            f"JOBQ[{alias!r}] is the {backend.driver} backend and DEBUG is off: its jobs live in"
            " one process and are lost with it.",
            "Choose a backend that keeps jobs, or set OPTIONS['allow_in_production'] to True.",
        )


def _check_queue_names(alias: str, backend: Backend) -> Iterator[checks.CheckMessage]:
    for config in backend.queues.values():
        problem = backend.check_queue(config)
        if problem is not None:
            hint = "Give the queue a shorter name, or the backend a shorter prefix."
            yield _error("E009", f"JOBQ[{alias!r}]: {problem}.", hint)


def _check_conflicts() -> Iterator[checks.CheckMessage]:
    for first, second in registry.conflicts:
        yield _error(
            "E003",
            f"Two functions are registered as job {first.name!r}: {place_of(first.func)} and"
            f" {place_of(second.func)}.",
            "Give one of them another name.",
        )


def _check_queue(job: Any, backend: Backend) -> Iterator[checks.CheckMessage]:
    if job.queue not in backend.queues:
        known = backend.queues
        yield _error(
            "E006",
            f"Job {job.name} uses the queue {job.queue!r}, which JOBQ[{job.backend!r}] does not"
            " name.",
            f"Add it to JOBQ[{job.backend!r}]['QUEUES'], or correct the job"
            f"{suggest(job.queue, known)}",
        )
        return
    try:
        backend.queue(job.queue).check_priority(job.priority)
    except InvalidJob as error:
        yield _error("E007", f"Job {job.name}: {error}.", "Lower the job's priority.")


def _error(number: str, text: str, hint: str) -> checks.Error:
    return checks.Error(text, hint=hint, id=f"jobq.{number}")
