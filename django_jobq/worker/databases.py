"""Databases in a worker process: connections stay open between jobs, and outages are waited out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from django.db import (
    InterfaceError,
    InternalError,
    OperationalError,
    close_old_connections,
    connections,
)

from django_jobq.exceptions import BackendUnavailable

OUTAGES = (OperationalError, InterfaceError, InternalError, BackendUnavailable)
"""What goes away by itself: a database or a broker that does not answer, or only reads for now."""

# Django's default of 0 would connect anew for every job, which costs ten times the job's overhead.
_MAX_AGE = 300

R = TypeVar("R")


def with_fresh_connections(func: Callable[[], R]) -> R:
    """Call a function with connections that are neither too old nor broken."""
    close_old_connections()
    return func()


def keep_connections() -> None:
    """Let this process keep its connections, except those of a pool, which keeps its own."""
    for alias in connections.settings:
        database = connections.settings[alias]
        if database.get("OPTIONS", {}).get("pool"):
            continue
        if database.get("CONN_MAX_AGE") == 0:
            database["CONN_MAX_AGE"] = _MAX_AGE
        database["CONN_HEALTH_CHECKS"] = True
