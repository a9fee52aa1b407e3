"""The worker inside a development server: the memory backend's jobs run where they are enqueued.

The first enqueue on a memory backend starts one worker thread for it, under DEBUG or with
``allow_in_production``. When the process ends it finishes what is due, and says what is lost. In a
test process nothing starts: tests run jobs when they choose to.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
import time

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

_workers: dict[MemoryBackend, EmbeddedWorkers] = {}
_lock = threading.Lock()


class EmbeddedWorkers:
    """Run the workers of one memory backend on daemon threads of this process."""

    def __init__(self, backend: MemoryBackend) -> None:
        self.served: set[str] = set()
        self._backend = backend
        self._running: list[tuple[Worker, threading.Thread]] = []
        # Before the interpreter refuses new threads, which async jobs need; atexit is after that.
        register = getattr(threading, "_register_atexit", atexit.register)
        register(self.finish)

    def serve(self, queues: set[str]) -> None:
        """Start one more worker, for queues that have none."""
        self.served |= queues
        worker = Worker(
            self._backend,
            queues=sorted(queues),
            concurrency=CONCURRENCY,
            shutdown_timeout=EXIT_TIMEOUT,
            in_process=True,
        )
        thread = threading.Thread(target=self._run, args=(worker,), name="jobq-worker", daemon=True)
        self._running.append((worker, thread))
        thread.start()

    def finish(self) -> None:
        """Let what is due end, within a few seconds, and say what is lost."""
        deadline = time.monotonic() + EXIT_TIMEOUT
        if self._is_busy():
            logger.info("Memory backend: waiting up to %.0f s for the jobs that run", EXIT_TIMEOUT)
        while self._is_busy() and time.monotonic() < deadline:
            time.sleep(0.02)
        for worker, _ in self._running:
            worker.shutdown()
        for _, thread in self._running:
            thread.join(max(1.0, deadline - time.monotonic()))
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

    def _is_busy(self) -> bool:
        left = self._backend.unfinished()
        alive = any(thread.is_alive() for _, thread in self._running)
        return alive and bool(left.ready or left.reserved)

    def _run(self, worker: Worker) -> None:
        try:
            asyncio.run(worker.run())
        except Exception:
            if not self._backend.is_closed:
                logger.exception(
                    "A worker inside this process ended; the next enqueue starts another"
                )
        finally:
            self.served -= {config.name for config in worker.configs}


def _forget_in_child() -> None:
    """Note that the workers' threads are the parent's alone."""
    global _lock
    _workers.clear()
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_in_child)


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
        if backend not in _workers:
            show_logs(verbosity=1)
            logger.info(
                "Memory backend: jobs run inside this process, on %s threads, and are lost with it",
                CONCURRENCY,
            )
            _workers[backend] = EmbeddedWorkers(backend)
        new = set(backend.queues) - _workers[backend].served
        if new:
            _workers[backend].serve(new)
