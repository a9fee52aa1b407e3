"""Filing: dead letters that wait with the transport become rows of the database.

A letter is removed from the transport once its row is committed. If the worker dies in between it
is filed again, which changes nothing.
"""

from __future__ import annotations

import logging
from functools import partial

from django_jobq.backends.base import Backend, DeadLetterSource
from django_jobq.exceptions import ShutDown
from django_jobq.store import filing
from django_jobq.worker.services import Call, Service

logger = logging.getLogger("django_jobq.worker")

_LOOK = 0.5


class Filing(Service):
    """File the dead letters of one backend."""

    name = "filing of dead letters"

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._source: DeadLetterSource | None = None

    async def work(self, call: Call) -> float:
        """File what has come, and look again at once if there was anything."""
        if self._source is None:
            self._source = self._backend.dead_letters_to_file()
        try:
            letters = await self._source.letters() if self._source else []
        except ShutDown:
            return _LOOK
        if self._source is None or not letters:
            return _LOOK
        using = self._backend.settings.database
        await call(partial(filing.file, self._backend.alias, letters, using=using))
        await self._source.remove()
        logger.info("Filed %s dead letter(s)", len(letters))
        return 0.0

    async def close(self) -> None:
        """Let the transport keep what is not filed."""
        if self._source is not None:
            await self._source.aclose()
