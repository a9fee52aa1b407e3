"""Processes and what they cost: CPU seconds and peak memory, read from /proc where there is one."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn
from urllib.parse import urlsplit

from benchmarks import common

_PROC = Path("/proc")
_LOCAL = ("127.0.0.1", "::1", "localhost")
_STOP_PATIENCE = 30.0
_LOG_LINES = 30


def environment(**switches: bool) -> dict[str, str]:
    """Return the environment of a child; switches are named as the variables in common."""
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "benchmarks.settings",
        "PYTHONPATH": str(common.ROOT),
        **{name: "1" if on else "0" for name, on in switches.items()},
    }


@contextlib.contextmanager
def running(command: tuple[str, ...], env: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Run ``python -m command`` in the background and see to it that all of it ends.

    It has a session of its own, so that Ctrl-C reaches the benchmark alone, which then stops it.
    """
    with log_path().open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *command],
            cwd=common.ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            yield process
            stop(process)
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def stop(process: subprocess.Popen[bytes]) -> None:
    """Ask a worker to end, and wait until it has settled what it has."""
    process.terminate()
    try:
        process.wait(_STOP_PATIENCE)
    except subprocess.TimeoutExpired:
        fail(f"the worker did not stop within {_STOP_PATIENCE:g} s")


def fail(text: str) -> NoReturn:
    """End the benchmark with the last lines of the child's log."""
    lines = log_path().read_text(errors="replace").splitlines()[-_LOG_LINES:]
    raise SystemExit("\n".join([text, *lines]))


def log_path() -> Path:
    """Return the file that takes what the current child writes."""
    return common.directory() / "child.log"


def tree(pid: int) -> list[int]:
    """Return a process and its descendants."""
    children: dict[int, list[int]] = {}
    for path in _PROC.glob("[0-9]*"):
        fields = _stat(int(path.name))
        if fields:
            children.setdefault(int(fields[1]), []).append(int(path.name))
    found = [pid]
    for parent in found:
        found.extend(children.get(parent, []))
    return found


def cpu_seconds(pids: list[int]) -> float | None:
    """Return the user and system CPU time of some processes, or None where it is not known."""
    stats = [_stat(pid) for pid in pids]
    if not stats or not all(stats):
        return None
    ticks = sum(int(fields[11]) + int(fields[12]) for fields in stats)
    return ticks / os.sysconf("SC_CLK_TCK")


def peak_megabytes(pids: list[int]) -> float | None:
    """Return the sum of the peak resident sizes of some processes."""
    total = 0
    for pid in pids:
        try:
            lines = (_PROC / str(pid) / "status").read_text().splitlines()
        except OSError:
            return None
        total += sum(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return total / 1024


def broker_pids() -> list[int]:
    """Return the process of a broker on this machine, or nothing if it is elsewhere or unclear."""
    if urlsplit(common.URL).hostname not in _LOCAL:
        return []
    found = []
    for path in _PROC.glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (path / "cmdline").read_bytes().split(b"\0")
            # The command line tools are the same program with other arguments.
            if b"beam" in words[0] and (b"rabbit", b"boot") in itertools.pairwise(words):
                found.append(int(path.name))
    return found if len(found) == 1 else []


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/pid/stat behind the name, which may hold spaces."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return []
    return text.rpartition(")")[2].split()
