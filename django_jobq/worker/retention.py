"""Retention: what nobody asks for any more is deleted after a while, a batch at a time."""

from __future__ import annotations

import datetime as dt

from django_jobq import conf
from django_jobq.backends.base import Backend
from django_jobq.store import dead_letters, starts
from django_jobq.worker.services import Call, Service

BATCH = 1_000
_PAUSE = 3_600.0
# What runs longer without any outcome has other problems than being counted.
_AGE_OF_STARTS = dt.timedelta(days=1)


class Retention(Service):
    """Prune the resolved dead letters of one database, and starts that no outcome ended."""

    name = "retention"

    def __init__(self, backend: Backend) -> None:
        self._using = backend.settings.database

    async def work(self, call: Call) -> float:
        """Delete a batch of what is old enough; look again at once if there was any."""
        return 0.0 if await call(self._prune) else _PAUSE

    def _prune(self) -> int:
        number = starts.prune(_AGE_OF_STARTS, using=self._using)
        oldest = conf.retention()
        if oldest is not None:
            number += dead_letters.prune(oldest, using=self._using, batch=BATCH)
        return number
