"""Show what the jobs of a small shop do, live in the terminal or once with a verdict."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from django.conf import settings
from django.contrib.auth import get_user_model
from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.core.exceptions import ImproperlyConfigured
from django.core.handlers.wsgi import WSGIHandler
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.core.servers.basehttp import run
from django.db import connections
from django.test import override_settings

from config import queue_url
from django_jobq.backends.handler import backends
from django_jobq.exceptions import JobqError
from django_jobq.worker.worker import Worker
from shop.demo import scenario, verdict
from shop.demo.ledger import Ledger
from shop.demo.narrator import Narrator
from shop.models import ImportReport
from supplier import Supplier

DEADLINE = 60.0
PAUSE = 0.4
INTERRUPTED = 130


class Command(BaseCommand):
    """Run the demo."""

    # Made in handle(), behind the check of the queue, which tells more in a sentence.
    requires_system_checks: list[str] = []
    help = "Starts the shop with its supplier, places a few orders, and shows what their jobs do."

    def add_arguments(self, parser: CommandParser) -> None:
        """Declare the options."""
        parser.add_argument("--port", type=int, default=8000, help="The next free one is taken.")
        parser.add_argument(
            "--once",
            action="store_true",
            help="Run without a server on a fresh database, print a table, and fail with status 1"
            " if any job did not end as it should.",
        )
        parser.add_argument("--in-fresh-folder", action="store_true", help="Internal to --once.")

    def handle(self, *args: Any, **options: Any) -> None:
        """Run the demo in the way that was asked for."""
        _check_queue()
        self.check()
        try:
            if options["in_fresh_folder"]:
                self._judge()
            elif options["once"]:
                self._run_in_fresh_folder()
            else:
                self._serve(_free_port(options["port"]))
        except KeyboardInterrupt:
            sys.exit(INTERRUPTED)

    def _serve(self, port: int) -> None:
        """Serve the shop until Ctrl-C while a visitor places orders."""
        address = f"http://127.0.0.1:{port}/"
        with self._prepared():
            _create_admin()
            self.stdout.write(f"The shop is at {self.style.HTTP_INFO(address)}")
            self.stdout.write("Its admin takes the name demo with the password demo.")
            self.stdout.write("Ctrl-C ends it.\n\n")
            visitor = threading.Thread(target=self._visit, args=(address,), daemon=True)
            visitor.start()
            # What the jobs do is the news here, not which style sheet was asked for.
            logging.getLogger("django.server").setLevel(logging.WARNING)
            with suppress(KeyboardInterrupt):
                run("127.0.0.1", port, StaticFilesHandler(WSGIHandler()), threading=True)

    def _visit(self, address: str) -> None:
        try:
            _wait_for(address)
            client = scenario.visitor()
            scenario.place_orders(client, PAUSE)
            scenario.request_import(client)
        except Exception as error:
            self.stderr.write(f"The visitor gave up: {error!r}")
            raise
        finally:
            connections.close_all()

    def _tell(self, line: str) -> None:
        self.stdout.write(line)
        # Live means now, also into a pipe.
        self.stdout.flush()

    def _run_in_fresh_folder(self) -> None:
        """Run this command again, in a process whose database and mail are in a new folder."""
        command = [sys.executable, str(settings.BASE_DIR / "manage.py"), "demo"]
        with tempfile.TemporaryDirectory(prefix="shop-") as folder:
            queue = os.environ.get("JOBQ_URL") or "memory://"
            fresh = {"SHOP_VAR": folder, "JOBQ_URL": queue, "DEBUG": "true"}
            ended = subprocess.run(
                [*command, "--in-fresh-folder"], env={**os.environ, **fresh}, check=False
            )
        if ended.returncode:
            sys.exit(ended.returncode)

    def _judge(self) -> None:
        """Run the scenario, wait for its jobs, and say whether each ended as it should."""
        ledger = Ledger()
        started = time.monotonic()
        with self._prepared(), ledger.listening():
            client = scenario.visitor()
            scenario.place_orders(client)
            scenario.request_import(client)
            in_time = ledger.wait_until_ended(verdict.EXPECTED_JOBS, DEADLINE)
        entries = ledger.entries()
        self._print_account(verdict.table(entries))
        wrong = verdict.complaints(entries, Path(settings.MAIL_FOLDER))
        if not in_time:
            wrong.insert(0, f"Not every job ended within {DEADLINE:.0f} s.")
        if wrong:
            raise CommandError("\n".join(wrong))
        taken = time.monotonic() - started
        self.stdout.write(self.style.SUCCESS(f"Every job ended as it should, in {taken:.1f} s."))

    def _print_account(self, table: list[str]) -> None:
        self.stdout.write("")
        for line in table:
            self.stdout.write(line)
        self.stdout.write("")
        for report in ImportReport.objects.all():
            self.stdout.write(
                f"{report}: {report.lines} lines = {report.header} header + {report.good} good"
                f" + {report.bad} bad + {report.blank} blank + {report.continued} inside a quoted"
                f" field; {report.created} new products"
            )

    @contextmanager
    def _prepared(self) -> Iterator[None]:
        """Have the tables, the products, the supplier and someone who tells what happens."""
        call_command("migrate", verbosity=0)
        scenario.seed()
        with ExitStack() as stack:
            supplier = stack.enter_context(Supplier())
            stack.enter_context(override_settings(SUPPLIER_URL=supplier.url))
            stack.enter_context(Narrator(self._tell, self.style).talking())
            if backends["default"].shared:
                stack.enter_context(_worker())
            yield


def _check_queue() -> None:
    """Say in one sentence if jobs cannot go where JOBQ_URL says, before anything is started."""
    logging.disable()
    try:
        backend = backends["default"]
        backend.declare(backend.queues.values())
    except (ImproperlyConfigured, JobqError) as error:
        raise CommandError(queue_url.complaint(error)) from error
    finally:
        logging.disable(logging.NOTSET)


@contextmanager
def _worker() -> Iterator[None]:
    """Run a worker in this process, where the demo hears its signals, on empty queues."""
    backend = backends["default"]
    for queue in backend.queues:
        backend.clear(queue)
    worker = Worker(backend, in_process=True)
    thread = threading.Thread(target=lambda: asyncio.run(worker.run()), daemon=True)
    thread.start()
    try:
        yield
    finally:
        worker.shutdown()
        thread.join(DEADLINE)


def _create_admin() -> None:
    users = get_user_model()._default_manager
    if not users.filter(username="demo").exists():
        users.create_superuser("demo", "demo@shop.example", "demo")


def _free_port(first: int) -> int:
    for port in range(first, first + 100):
        with socket.socket() as probe:
            # As the server does, so that a port in TIME_WAIT is not taken for an occupied one.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise CommandError(f"None of the ports {first} to {first + 99} is free.")


def _wait_for(address: str) -> None:
    deadline = time.monotonic() + DEADLINE
    while True:
        try:
            urlopen(address, timeout=5).close()
            return
        except URLError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
