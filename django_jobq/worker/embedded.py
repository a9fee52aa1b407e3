"""The worker inside a development server: the memory backend's jobs run where they are enqueued.

The first enqueue on a memory backend starts one worker thread for it, under DEBUG or with
``allow_in_production``. When the process ends it finishes what is due, and says what is lost. In a
test process nothing starts: tests run jobs when they choose to.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import threading
import time
from collections.abc import Iterable

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from django_jobq import conf
from django_jobq.backends.base import Backend
from django_jobq.backends.memory import MemoryBackend
from django_jobq.worker.console import show_logs
from django_jobq.worker.worker import Worker

logger = logging.getLogger("django_jobq.worker")

CONCURRENCY = 4
EXIT_TIMEOUT = 5.0

_served: dict[MemoryBackend, set[str]] = {}
_lock = threading.Lock()


class EmbeddedWorker:
    """Run a worker on a daemon thread of this process."""

    def __init__(self, backend: MemoryBackend, queues: Iterable[str]) -> None:
        self._backend = backend
        self._worker = Worker(
            backend,
            queues=queues,
            concurrency=CONCURRENCY,
            shutdown_timeout=EXIT_TIMEOUT,
            in_process=True,
        )
        self._thread = threading.Thread(target=self._run, name="jobq-worker", daemon=True)

    def start(self) -> None:
        """Start the thread, and arrange the end."""
        self._thread.start()
        # Before the interpreter refuses new threads, which async jobs need; atexit is after that.
        register = getattr(threading, "_register_atexit", atexit.register)
        register(self.finish)

    def finish(self) -> None:
        """Let what is due end, within a few seconds, and say what is lost."""
        deadline = time.monotonic() + EXIT_TIMEOUT
        while self._thread.is_alive() and time.monotonic() < deadline:
            left = self._backend.unfinished()
            if not left.ready and not left.reserved:
                break
            time.sleep(0.02)
        self._worker.shutdown()
        self._thread.join(max(1.0, deadline - time.monotonic()))
        left = self._backend.unfinished()
        lost = (left.ready or 0) + (left.held or 0) + (left.reserved or 0)
        if lost and not self._backend.is_closed:
            logger.warning(
                "%s job(s) of the memory backend are lost with this process: %s ready, %s delayed,"
                " %s running",
                lost,
                left.ready,
                left.held,
                left.reserved,
            )
        self._backend.close()

    def _run(self) -> None:
        try:
            asyncio.run(self._worker.run())
        except Exception:
            if not self._backend.is_closed:
                logger.exception("The worker inside this process ended; no more jobs run here")
        finally:
            with _lock:
                _served.pop(self._backend, None)


def start_if_needed(backend: Backend) -> None:
    """Start the worker of a memory backend at its first enqueue, or refuse to lose its jobs."""
    if not isinstance(backend, MemoryBackend) or conf.is_test_process():
        return
    if not (settings.DEBUG or backend.options.allow_in_production):
        raise ImproperlyConfigured(
            f"JOBQ[{backend.alias!r}] is the memory backend and DEBUG is off, so nothing would run"
            " this job. Choose a backend that keeps jobs, or set OPTIONS['allow_in_production'] to"
            " True to run jobs inside this process."
        )
    with _lock:
        served = _served.setdefault(backend, set())
        new = set(backend.queues) - served
        if not new:
            return
        if not served:
            show_logs(verbosity=1)
            logger.info(
                "Memory backend: jobs run inside this process, on %s threads, and are lost with it",
                CONCURRENCY,
            )
        served |= new
        EmbeddedWorker(backend, new).start()
