"""``manage.py runworker``: run jobs until told to stop.

Exit status: 0 after a graceful stop, 1 after an error, 75 when a job that does not return made the
worker end so that its supervisor starts a new one, 130 after a second signal.
"""

from __future__ import annotations

import argparse
import asyncio
import atexit
import contextlib
import logging
import os
import signal
import sys
import threading
from typing import Any

from asgiref.sync import async_to_sync
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import autoreload

import django_jobq
from django_jobq import conf, durations
from django_jobq.backends.base import Backend
from django_jobq.backends.handler import backends
from django_jobq.exceptions import JobqError
from django_jobq.management.queue_names import add_queue_option, read_queue_names
from django_jobq.registry import registry
from django_jobq.worker.console import show_logs
from django_jobq.worker.databases import keep_connections
from django_jobq.worker.stats import WorkerStats
from django_jobq.worker.worker import DEFAULT_CONCURRENCY, Worker

EXIT_RECYCLED = 75
EXIT_SECOND_SIGNAL = 130
_RELOAD_PATIENCE = 5.0

logger = logging.getLogger("django_jobq.worker")


class Command(BaseCommand):
    """Run the jobs of one backend."""

    help = "Runs background jobs until it is stopped."
    # Checked in handle(), once and in the process that works, as runserver does.
    requires_system_checks: list[str] = []
    own_process = False

    def add_arguments(self, parser: CommandParser) -> None:
        """Define the options."""
        add_queue_option(parser, "consume")
        parser.add_argument(
            "-b",
            "--backend",
            default=conf.DEFAULT_ALIAS,
            help="alias of the JOBQ setting (default: %(default)s)",
        )
        parser.add_argument(
            "-c",
            "--concurrency",
            type=int,
            default=DEFAULT_CONCURRENCY,
            help="how many jobs run at once (default: %(default)s)",
        )
        self._add_ends(parser)

    def _add_ends(self, parser: CommandParser) -> None:
        """Define the options that say when the worker ends, and how."""
        parser.add_argument(
            "--burst", action="store_true", help="run what is due, then print the counts and exit"
        )
        parser.add_argument(
            "--max-jobs", type=int, metavar="N", help="exit after N attempts; the rest stays queued"
        )
        parser.add_argument(
            "--shutdown-timeout",
            default="25s",
            metavar="DURATION",
            help="how long running jobs may take to end after a stop signal (default: %(default)s)",
        )
        parser.add_argument(
            "--reload",
            action=argparse.BooleanOptionalAction,
            default=None,
            help="restart when code changes (default: while DEBUG is on)",
        )

    def run_from_argv(self, argv: list[str]) -> None:
        """Note that the process is the worker's own, unlike in call_command()."""
        self.own_process = True
        super().run_from_argv(argv)

    def handle(self, *args: Any, **options: Any) -> None:
        """Work in this process, or in a child that is restarted when code changes."""
        worker = self._make_worker(options)
        if not self.own_process:
            self._work(worker, options)
            return
        show_logs(options["verbosity"])
        self.check()
        self._explain_if_pointless(worker.backend, burst=options["burst"])
        wants_reload = settings.DEBUG if options["reload"] is None else options["reload"]
        if wants_reload and not options["burst"]:
            autoreload.run_with_reloader(self._work_beside_reloader, worker, options)
        else:
            self._work(worker, options)

    def _work_beside_reloader(self, worker: Worker, options: dict[str, Any]) -> None:
        """Work in the reloader's thread, and end the process with the worker."""
        try:
            self._work(worker, options)
        except CommandError as error:
            self.stderr.write(f"CommandError: {error}", self.style.ERROR)
            _leave_now(1)

    def _work(self, worker: Worker, options: dict[str, Any]) -> None:
        try:
            if self.own_process:
                self._say_hello(worker, options)
                stats = self._run_own_process(worker, options["verbosity"])
            else:
                stats = async_to_sync(worker.run)()
        except JobqError as error:
            raise CommandError(str(error)) from error
        if options["verbosity"] > 0:
            self.stdout.write(_summary(stats))

    def _make_worker(self, options: dict[str, Any]) -> Worker:
        names = read_queue_names(options["queues"])
        if options["max_jobs"] is not None and options["max_jobs"] < 1:
            raise CommandError("--max-jobs is a whole number from 1")
        try:
            return Worker(
                backends[options["backend"]],
                queues=names,
                concurrency=options["concurrency"],
                burst=options["burst"],
                max_jobs=options["max_jobs"],
                shutdown_timeout=durations.parse_setting(options["shutdown_timeout"]),
                on_caller=not self.own_process,
            )
        except (JobqError, ImproperlyConfigured) as error:
            raise CommandError(str(error)) from error

    def _explain_if_pointless(self, backend: Backend, *, burst: bool) -> None:
        if backend.shared or burst:
            return
        raise CommandError(
            f"JOBQ[{backend.alias!r}] is the {backend.driver} backend, which keeps jobs inside the"
            " process that enqueues them: a worker of its own would never see one. While DEBUG is"
            " on, runserver runs them by itself and there is nothing to start. For a separate"
            " worker, set JOBQ to a backend that processes share."
        )

    def _say_hello(self, worker: Worker, options: dict[str, Any]) -> None:
        if options["verbosity"] < 1:
            return
        queues = ", ".join(config.name for config in worker.configs) or "none"
        self.stdout.write(
            f"django_jobq {django_jobq.__version__}, backend {worker.backend.alias}"
            f" ({worker.backend.driver}), pid {os.getpid()}\n"
            f"  queues       {queues}\n"
            f"  concurrency  {worker.concurrency}\n"
            f"  jobs         {_job_list(worker.backend.alias)}\n"
            "Stop with Ctrl-C: running jobs end first; twice ends at once."
        )
        if settings.DEBUG and not options["burst"]:
            self.stdout.write(
                "DEBUG is on: code is reloaded, and the worker is not for production."
            )
        self.stdout.flush()

    def _run_own_process(self, worker: Worker, verbosity: int) -> WorkerStats:
        keep_connections()
        if threading.current_thread() is threading.main_thread():
            return asyncio.run(self._run_until_signalled(worker, verbosity))
        done = threading.Event()

        def drain(**_: Any) -> None:
            """Drain before the reloader, in the main thread, ends this process."""
            worker.shutdown()
            done.wait(_RELOAD_PATIENCE)

        autoreload.file_changed.connect(drain, weak=False)
        atexit.register(drain)
        try:
            return asyncio.run(self._run_to_the_end(worker, verbosity))
        finally:
            done.set()
            atexit.unregister(drain)

    async def _run_until_signalled(self, worker: Worker, verbosity: int) -> WorkerStats:
        _stop_on_signals(worker)
        return await self._run_to_the_end(worker, verbosity)

    async def _run_to_the_end(self, worker: Worker, verbosity: int) -> WorkerStats:
        try:
            return await worker.run()
        finally:
            # Jobs that do not end would keep the loop, or the interpreter, from ending.
            if worker.recycled or worker.abandoned:
                if verbosity > 0:
                    self.stdout.write(_summary(worker.stats))
                _leave_now(EXIT_RECYCLED if worker.recycled else 0)


def _stop_on_signals(worker: Worker) -> None:
    """Stop gracefully on the first SIGINT or SIGTERM and end at once on the second."""
    received = 0

    def stop() -> None:
        nonlocal received
        received += 1
        if received > 1:
            logger.warning("Second signal: ending at once")
            _leave_now(EXIT_SECOND_SIGNAL)
        logger.info("Stopping: %s running job(s) end first", worker.running)
        worker.shutdown()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        try:
            loop.add_signal_handler(number, stop)
        except NotImplementedError:  # loops without signal support, as on Windows
            signal.signal(number, lambda *_: loop.call_soon_threadsafe(stop))
            _keep_awake(loop)


def _keep_awake(loop: asyncio.AbstractEventLoop) -> None:
    """Let an idle loop look up now and then: a signal just before it sleeps does not wake it."""
    loop.call_later(0.5, _keep_awake, loop)


def _leave_now(status: int) -> None:
    """End the process without waiting for threads that do not return."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _job_list(alias: str) -> str:
    names = sorted(job.name for job in registry if job.backend == alias)
    if not names:
        return "none found; jobs are defined in the jobs.py of an installed app"
    return "\n               ".join(names)


def _summary(stats: WorkerStats) -> str:
    text = (
        f"{stats.succeeded} succeeded, {stats.retried} retried, {stats.deferred} deferred,"
        f" {stats.dead_lettered} dead"
    )
    if stats.handed_back:
        text += f", {stats.handed_back} handed back"
    if stats.settle_failures:
        text += f", {stats.settle_failures} failed to settle"
    return text
