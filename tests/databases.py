"""Run the tests of stored jobs on each database: python -m tests.databases [name ...] [-- options]

SQLite needs nothing. For PostgreSQL and MariaDB it takes, in this order: the URL in
JOBQ_TEST_POSTGRESQL or JOBQ_TEST_MARIADB; the server on this machine that lets us in without a
password; a private server of the binaries that are here; the same after installing the Debian
package, as root. Without any of them it stops with one sentence: no database is left out silently.
"""

import contextlib
import dataclasses
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import environ
import psycopg
import pymysql

from tests import packages
from tests.broker import free_ports

ROOT = Path(__file__).parent.parent
# What is asked of each database.
TESTS = ("tests/store", "tests/stored", "tests/backends/rabbitmq/stored")
PATIENCE = 60.0
# The server ends with its input, which ends with the tests, even killed ones; it leaves nothing.
_GUARD = '"$@" </dev/null & cat >/dev/null; kill -"$SIGNAL" $!; wait; rm -rf "$HOME"'


@dataclasses.dataclass(frozen=True, kw_only=True)
class Server:
    """Say how to find a server of a database, and how to make one."""

    name: str
    variable: str
    local_urls: tuple[str, ...]
    private_url: str
    package: str
    binaries: tuple[str, str]
    users: tuple[str, ...]
    stop: signal.Signals
    commands: Callable[[list[str], Path, int], tuple[list[str], list[str]]]


def _postgresql(binaries: list[str], folder: Path, port: int) -> tuple[list[str], list[str]]:
    initdb, postgres = binaries
    data = str(folder / "data")
    return (
        [initdb, "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8"],
        [postgres, "-D", data, "-h", "127.0.0.1", "-p", str(port), "-k", str(folder)],
    )


def _mariadb(binaries: list[str], folder: Path, port: int) -> tuple[list[str], list[str]]:
    install, server = binaries
    data = f"--datadir={folder / 'data'}"
    return (
        [install, "--no-defaults", data, "--auth-root-authentication-method=normal"],
        [
            *(server, "--no-defaults", data, "--bind-address=127.0.0.1", f"--port={port}"),
            *(f"--socket={folder / 'socket'}", f"--pid-file={folder / 'pid'}"),
            *("--character-set-server=utf8mb4", "--skip-name-resolve"),
        ],
    )


SERVERS = (
    Server(
        name="postgresql",
        variable="JOBQ_TEST_POSTGRESQL",
        local_urls=("postgres:///test", "postgres://postgres@127.0.0.1/test"),
        private_url="postgres://postgres@127.0.0.1:{port}/postgres",
        package="postgresql",
        binaries=("initdb", "postgres"),
        users=("postgres", "nobody"),
        stop=signal.SIGINT,
        commands=_postgresql,
    ),
    Server(
        name="mariadb",
        variable="JOBQ_TEST_MARIADB",
        local_urls=("mysql://root@127.0.0.1/test",),
        private_url="mysql://root@127.0.0.1:{port}/mysql",
        package="mariadb-server",
        binaries=("mariadb-install-db", "mariadbd"),
        users=("mysql", "nobody"),
        stop=signal.SIGTERM,
        commands=_mariadb,
    ),
)


def answers(url: str) -> bool:
    """Return whether a database lets us in."""
    config = environ.Env.db_url_config(url)
    try:
        if config["ENGINE"].endswith("mysql"):
            names = {"user": config["USER"], "database": config["NAME"]}
            port = int(config["PORT"] or 3306)
            pymysql.connect(host=config["HOST"], port=port, **names).close()
        else:
            psycopg.connect(url, connect_timeout=5).close()
    except (OSError, psycopg.Error, pymysql.Error):
        return False
    return True


@contextlib.contextmanager
def database_url(server: Server) -> Iterator[str]:
    """Give the URL of a database whose server may make further ones for the tests."""
    if url := os.environ.get(server.variable) or next(filter(answers, server.local_urls), None):
        yield url
        return
    if not _binaries(server) and packages.may_install():
        packages.install(server.package, server.package)
    if not _binaries(server):
        sys.exit(
            f"The tests of the store need {server.name}: set {server.variable} to its URL, start it"
            f" on 127.0.0.1 for a user without a password, or install {server.package}."
        )
    with private_server(server) as url:
        yield url


@contextlib.contextmanager
def private_server(server: Server) -> Iterator[str]:
    """Run a server of our own: loopback only, its data in a temporary folder."""
    print(f"Starting a private {server.name}", file=sys.stderr)
    folder = Path(tempfile.mkdtemp(prefix="jobq-database-"))
    # No such server runs as root.
    user = next(filter(_exists, server.users)) if os.geteuid() == 0 else None
    if user:
        shutil.chown(folder, user)
    (port,) = free_ports(1)
    prepare, serve = server.commands(_binaries(server), folder, port)
    env = {**os.environ, "HOME": str(folder), "SIGNAL": server.stop.name.removeprefix("SIG")}
    try:
        with (folder / "log").open("ab") as log:
            options = {"cwd": folder, "env": env, "user": user, "stdout": log, "stderr": log}
            subprocess.run(prepare, check=False, **options)
            process = subprocess.Popen(
                ["/bin/sh", "-c", _GUARD, "guard", *serve],
                **options,
                stdin=subprocess.PIPE,
                start_new_session=True,
            )
        with process:
            url = server.private_url.format(port=port)
            _wait_for(url, folder / "log")
            yield url
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _wait_for(url: str, log: Path) -> None:
    give_up = time.monotonic() + PATIENCE
    while not answers(url):
        if time.monotonic() > give_up:
            sys.exit(
                f"the private server did not start:\n{log.read_text(errors='replace')[-2000:]}"
            )
        time.sleep(0.1)


def _binaries(server: Server) -> list[str]:
    """Return the paths of the server's programs, or nothing if one is missing."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", *map(str, debian)])
    found = [shutil.which(name, path=path) for name in server.binaries]
    return [name for name in found if name] if all(found) else []


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


@contextlib.contextmanager
def running(name: str, options: list[str]) -> Iterator[Callable[[], int]]:
    """Run the tests on one database meanwhile; give what waits for their exit code."""
    with contextlib.ExitStack() as stack:
        env = dict(os.environ)
        env.pop("JOBQ_TEST_DATABASE", None)
        for server in SERVERS:
            if server.name == name:
                env["JOBQ_TEST_DATABASE"] = stack.enter_context(database_url(server))
        output = stack.enter_context(tempfile.TemporaryFile())
        command = [sys.executable, "-m", "pytest", *TESTS, *options]
        streams = {"stdout": output, "stderr": subprocess.STDOUT}
        process = stack.enter_context(subprocess.Popen(command, cwd=ROOT, env=env, **streams))

        def finish() -> int:
            status = process.wait()
            output.seek(0)
            print(f"Stored jobs on {name}:\n{output.read().decode(errors='replace')}", flush=True)
            return status

        yield finish


def main(arguments: list[str]) -> int:
    known = ["sqlite", *(server.name for server in SERVERS)]
    split = arguments.index("--") if "--" in arguments else len(arguments)
    names, options = arguments[:split] or known, arguments[split + 1 :]
    if unknown := set(names) - set(known):
        sys.exit(f"no such database: {', '.join(unknown)}; there are {', '.join(known)}")
    print(f"Testing stored jobs on {' and '.join(names)}, side by side", flush=True)
    with contextlib.ExitStack() as stack:
        runs = [stack.enter_context(running(name, options)) for name in names]
        return max([finish() for finish in runs])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
