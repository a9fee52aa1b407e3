"""Throw-away Django projects and the processes that tests start in them."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar, cast

T = TypeVar("T")

ROOT = Path(__file__).parents[2]

# A memory backend that a worker process accepts; its first jobs are what the project's first_jobs()
# returns, since no other process can send it any.
TRANSPORT = """
from django_jobq.backends.memory import MemoryBackend


class SharedMemory(MemoryBackend):
    shared = True
    filled = False

    def declare(self, queues):
        super().declare(queues)
        if not self.filled:
            self.filled = True
            from shop.first import first_jobs

            for prepared in first_jobs():
                self.publish(prepared.publication().envelope)
"""

SETTINGS = """
SECRET_KEY = "trial"
DEBUG = False
USE_TZ = True
INSTALLED_APPS = {apps!r}
DATABASES = {{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}}}
JOBQ = {{"default": {{"BACKEND": "transport.SharedMemory"}}}}
"""


class Process:
    """One running process of a project, whose output can be waited for."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def sees(self, text: str, timeout: float) -> bool:
        """Return whether the text appears in time."""
        with self._changed:
            return self._changed.wait_for(lambda: text in self.output, timeout)

    def wait_for(self, text: str, timeout: float = 30.0) -> None:
        assert self.sees(text, timeout), f"{text!r} did not appear in:\n{self.output}"

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def signal_group(self, number: int) -> None:
        """Signal the process and those it has started, as a terminal does."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def has_group(self) -> bool:
        """Return whether a process of the group, orphans included, still runs."""
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return False
        return True

    def wait(self, timeout: float = 30.0) -> int:
        code = self.process.wait(timeout)
        self._reader.join(timeout)
        return code

    def join_reader(self) -> None:
        assert self.process.stdout is not None
        self._reader.join(10)
        if not self._reader.is_alive():
            self.process.stdout.close()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(line)
                self._changed.notify_all()


class Project:
    """A Django project in a folder of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._apps = ["shop", "django_jobq"]
        self._running: list[Process] = []
        self.write("transport.py", TRANSPORT)
        self.write("shop/__init__.py", "")
        self.write("shop/first.py", "def first_jobs():\n    return []\n")
        self.settings()

    def write(self, name: str, text: str) -> None:
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text))

    def settings(self, text: str = "", apps: list[str] | None = None) -> None:
        self._apps = apps or self._apps
        self.write("settings.py", SETTINGS.format(apps=self._apps) + textwrap.dedent(text))

    def start(self, *args: str, **environment: str) -> Process:
        process = subprocess.Popen(
            [sys.executable, *args],
            cwd=self.path,
            env={
                **{key: value for key, value in os.environ.items() if not key.startswith("COV")},
                "DJANGO_SETTINGS_MODULE": "settings",
                "PYTHONPATH": f"{self.path}{os.pathsep}{ROOT}",
                "PYTHONUNBUFFERED": "1",
                "PYTHONDONTWRITEBYTECODE": "1",
                **environment,
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        running = Process(process)
        self._running.append(running)
        return running

    def django(self, *args: str, **environment: str) -> Process:
        return self.start("-m", "django", *args, **environment)

    def run(self, *args: str, timeout: float = 30.0, **environment: str) -> tuple[int, str]:
        """Run a management command to its end and return its status and output."""
        process = self.django(*args, **environment)
        return process.wait(timeout), process.output

    def close(self) -> None:
        for running in self._running:
            running.signal_group(signal.SIGKILL)
            running.process.wait(10)
            running.join_reader()


def wait_until(condition: Callable[[], object], timeout: float = 20.0) -> None:
    """Look until the condition holds; fail at the deadline."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "the expected state was not reached in time"
        time.sleep(0.005)


def within(seconds: float, func: Callable[[], T]) -> T:
    """Return what ``func`` returns on a thread of its own; fail, rather than hang, at the end."""
    done: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            done.put((func(), None))
        except BaseException as error:  # noqa: BLE001 - raised again on the thread of the test
            done.put((None, error))

    threading.Thread(target=run, daemon=True).start()
    try:
        result, error = done.get(timeout=seconds)
    except queue.Empty:
        raise AssertionError(f"it still runs after {seconds} s") from None
    if error is not None:
        raise error
    return cast(T, result)
