"""Retention: dead letters that somebody has resolved go after a while, a batch at a time."""

from __future__ import annotations

from functools import partial

from django_jobq import conf
from django_jobq.backends.base import Backend
from django_jobq.store import dead_letters
from django_jobq.worker.services import Call, Service

BATCH = 1_000
_PAUSE = 3_600.0


class Retention(Service):
    """Prune the dead letters of one database, as JOBQ_RETENTION says."""

    name = "retention"

    def __init__(self, backend: Backend) -> None:
        self._using = backend.settings.database

    async def work(self, call: Call) -> float:
        """Delete one batch of what is old enough; look again at once if it was full."""
        oldest = conf.retention()
        if oldest is None:
            return _PAUSE
        prune = partial(dead_letters.prune, oldest, using=self._using, batch=BATCH)
        return 0.0 if await call(prune) == BATCH else _PAUSE
