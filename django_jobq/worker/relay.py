"""The relay: it publishes what a database has stored once it is due.

1. A row of the outbox that is seen for the first time only gets its grace.
2. What may be taken is leased, published without waiting for each, and gone once the transport has
   confirmed it. What failed goes back, for a pause that grows with every failure.
3. Then the relay sleeps until the next hold is due, a second at most.

It also publishes what waits from before the settings were changed, so no change of them loses any.
"""

from __future__ import annotations

import concurrent.futures
import logging
import os
import socket
import time
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import Future
from datetime import timedelta
from typing import TYPE_CHECKING

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from django_jobq import conf
from django_jobq.backends.base import Backend
from django_jobq.envelope import Envelope
from django_jobq.exceptions import BackendUnavailable
from django_jobq.retry import exponential_backoff
from django_jobq.store import census, holds, outbox, rows
from django_jobq.store.rows import CHUNK, HOLD, OUTBOX, Lease
from django_jobq.worker.services import Call, Service

if TYPE_CHECKING:
    from django_jobq.models import StoredJob

logger = logging.getLogger("django_jobq.relay")

# Both bound what a worker holds in memory, whatever waits.
_BATCH = 200
_BATCH_BYTES = 64_000_000
_LEAST_BATCH = 10
_LEASE = timedelta(seconds=60)
_LONGEST_SLEEP = 1.0
# Settings change on some machines first: what the others store meanwhile is found so late.
_LOOK_WITHOUT_NEED = 60.0
_LONGEST_PAUSE = 300.0
# A transport keeps to publish_timeout itself and knows better what happened.
_MARGIN = 0.5


class Relay(Service):
    """Publish what one database has stored for one backend."""

    name = "relay"

    def __init__(self, backend: Backend, database: str) -> None:
        self._backend, self._database = backend, database
        self._needed = False
        self._next_look = 0.0
        self._kinds = [HOLD, OUTBOX]
        self._owner = f"{socket.gethostname()}:{os.getpid()}"

    async def work(self, call: Call) -> float:
        """Publish what is due. See sweep()."""
        return await call(self.sweep)

    def sweep(self) -> float:
        """Publish what is due, and return the seconds until there may be more."""
        if not self._needed:
            self._needed = self._is_needed()
            if not self._needed:
                return _LOOK_WITHOUT_NEED
            self._tell_left_behind()
        is_more = [self._look_at(kind) for kind in tuple(self._kinds)]
        if any(is_more):
            return 0.0
        due = holds.next_due(self._backend.alias, using=self._database)
        return _LONGEST_SLEEP if due is None else min(due, _LONGEST_SLEEP)

    def _look_at(self, kind: str) -> bool:
        try:
            return self._publish(HOLD) if kind == HOLD else self._look_at_outbox()
        except BackendUnavailable:
            # Perhaps only queues of these cannot be reached, so next time the others go first.
            self._kinds.append(self._kinds.pop(self._kinds.index(kind)))
            raise

    def _look_at_outbox(self) -> bool:
        """Publish what the outbox was left with, and return whether there is more to look at."""
        if time.monotonic() < self._next_look:
            return False
        seen = outbox.sight(self._backend.alias, using=self._database)
        forgotten = holds.forget(self._backend.alias, using=self._database)
        full = self._publish(OUTBOX) or CHUNK in (seen, forgotten)
        if not full:
            self._next_look = time.monotonic() + _LONGEST_SLEEP
        return full

    def _is_needed(self) -> bool:
        """Return whether there may be rows; a project that stores no jobs needs no database."""
        if self._backend.stores_jobs:
            self._check_table()
            return True
        try:
            return rows.stored_jobs(self._database).filter(alias=self._backend.alias).exists()
        except Exception:  # noqa: BLE001 - then nothing of former settings waits there
            return False

    def _check_table(self) -> None:
        table = rows.stored_jobs(self._database).model._meta.db_table
        if table not in connections[self._database].introspection.table_names():
            raise ImproperlyConfigured(
                f"database {self._database!r} has no table {table!r}: run manage.py migrate"
                f" --database {self._database}. To do without stored jobs, set OUTBOX to 'off' and"
                f" HOLDS to 'broker' in {self._backend.settings.path}"
            )

    def _tell_left_behind(self) -> None:
        """Warn of jobs that no worker publishes, since their alias was renamed or removed."""
        known = {self._backend.alias, *conf.load_aliases()}
        for alias, number in census.left_behind(known, using=self._database).items():
            logger.warning(
                "%s stored job(s) in database %r wait for backend %r, which JOBQ does not name:"
                " no worker publishes them until it does",
                number,
                self._database,
                alias,
            )

    def _publish(self, kind: str) -> bool:
        """Publish rows of a kind, and return whether there may be more that are due."""
        lease, timeout = self._lease(), self._backend.options.publish_timeout
        claimed = rows.claim(self._backend.alias, kind, lease, using=self._database)
        if not claimed:
            return False
        answers = [self._submit(row) for row in claimed]
        concurrent.futures.wait(answers, timeout + _MARGIN)
        pairs = list(zip(claimed, map(_error_of, answers), strict=True))
        confirmed = [row for row, error in pairs if error is None]
        finish = rows.retire if kind == HOLD else rows.drop
        finish(confirmed, using=self._database)
        if kind == OUTBOX and confirmed:
            logger.info("Published %s job(s) that the outbox was left with", len(confirmed))
        failed = [(row, error) for row, error in pairs if error is not None]
        self._give_back(failed, reached=bool(confirmed))
        return len(claimed) == lease.limit

    def _lease(self) -> Lease:
        options = self._backend.options
        return Lease(
            owner=self._owner,
            # It outlasts the wait for the answers, or what was published is published again.
            length=_LEASE + timedelta(seconds=options.publish_timeout),
            limit=min(_BATCH, max(_BATCH_BYTES // options.max_payload, _LEAST_BATCH)),
        )

    def _submit(self, row: StoredJob) -> Future[None]:
        try:
            envelope = Envelope.decode(bytes(row.body))
            left = max(0.0, (row.due_at - row.read_at).total_seconds())
            publish = self._backend.defer if row.front else self._backend.publish
            return publish(envelope, left)
        except Exception as error:  # noqa: BLE001 - no row may end the workers, one after another
            failed: Future[None] = Future()
            failed.set_exception(error)
            return failed

    def _give_back(
        self, failed: Iterable[tuple[StoredJob, BaseException]], *, reached: bool
    ) -> None:
        """Return rows that were not published; raise if the transport was not ``reached`` at all.

        Where others were published meanwhile, it is no outage but a fault of single queues.
        """
        outage: BaseException | None = None
        alike: dict[tuple[str, int], list[StoredJob]] = defaultdict(list)
        for row, error in failed:
            if isinstance(error, BackendUnavailable) and not reached:
                outage = error
            alike[str(error), row.failures].append(row)
        for (text, failures), group in alike.items():
            # An outage is waited out by the relay as a whole.
            pause = 0.0 if outage else _pause_after(failures)
            rows.give_back(group, text, pause, using=self._database)
            if outage is None:
                logger.warning(
                    "%s stored job(s) could not be published, again in %.0f s: %s",
                    len(group),
                    pause,
                    text,
                )
        if outage is not None:
            raise outage


def _pause_after(failures: int) -> float:
    return exponential_backoff(failures + 1, base=1.0, factor=2.0, longest=_LONGEST_PAUSE)


def _error_of(answer: Future[None]) -> BaseException | None:
    """Return why a job is not known to be published, or None if it is."""
    try:
        return answer.exception(0)
    except concurrent.futures.CancelledError as error:
        return error
    except TimeoutError:
        return BackendUnavailable("the transport did not confirm in time")
