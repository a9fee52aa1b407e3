"""A RabbitMQ broker for the tests: the one there is, or a private node.

`broker_url()` answers, in this order: a private node of the version that `tests.lane` wants; the
environment's AMQP_URL; a broker on 127.0.0.1:5672 that lets guest in; a private node of the
installed rabbitmq-server; the same after installing the Debian package, as root. Without any of
them it stops with one sentence: broker tests never skip silently.

Whatever disturbs its broker (restart, alarm, users, policies) runs on a `PrivateNode`.
"""

import atexit
import contextlib
import functools
import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import quote

import pika
import pytest
from pika.exceptions import AMQPError

from tests import lane, packages

ROOT = Path(__file__).parent.parent
LOCAL_URL = "amqp://guest:guest@127.0.0.1:5672/"
# Debian's commands in PATH change to the user rabbitmq; these scripts run as whoever calls them.
DEBIAN_SCRIPTS = Path("/usr/lib/rabbitmq/bin")
START_PATIENCE = 90.0
# The node ends with its input, which ends with the tests, even killed ones; it leaves nothing.
_GUARD = """
(trap : TERM; "$@" </dev/null; kill -TERM 0) &
cat >/dev/null
trap '' TERM
kill -TERM 0
wait
$ENTER epmd -kill >/dev/null 2>&1
rm -rf "$HOME"
"""


@functools.cache
def broker_url() -> str:
    """Return the URL of a broker for tests that leave it in peace."""
    version = lane.wanted_version()
    if not version:
        if url := os.environ.get("AMQP_URL"):
            return url
        if answers(LOCAL_URL):
            return LOCAL_URL
        print("No broker at 127.0.0.1:5672: starting a private one", file=sys.stderr)
    node = PrivateNode()
    atexit.register(node.close)
    node.start()
    return node.url


def answers(url: str) -> bool:
    """Return whether a broker lets us in."""
    try:
        pika.BlockingConnection(pika.URLParameters(url)).close()
    except (AMQPError, OSError):
        return False
    return True


def _speaks_amqp(port: int) -> bool:
    """Return whether somebody answers the protocol's greeting; a client would log each failure."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
            connection.sendall(b"AMQP\0\0\x09\x01")
            return bool(connection.recv(1))
    except OSError:
        return False


class PrivateNode:
    """Run a RabbitMQ node of our own: loopback only, data in a temporary folder, kept on restart.

    ``config`` are further lines of rabbitmq.conf.
    """

    def __init__(self, config: Iterable[str] = ()) -> None:
        self._enter = lane.enter()
        self._scripts = DEBIAN_SCRIPTS if self._enter else _find_scripts()
        self._folder = Path(tempfile.mkdtemp(prefix="jobq-broker-"))
        self._process: subprocess.Popen[bytes] | None = None
        self.port, distribution, self._epmd_port = free_ports(3)
        self.name = f"jobq-{os.getpid()}-{self.port}@localhost"
        lines = [f"listeners.tcp.1 = 127.0.0.1:{self.port}", "loopback_users = none", *config]
        (self._folder / "rabbitmq.conf").write_text("\n".join(lines) + "\n")
        (self._folder / "plugins").write_text("[].\n")
        self._env = {
            **{key: value for key, value in os.environ.items() if not key.startswith("RABBITMQ_")},
            "HOME": str(self._folder),
            "LC_ALL": "C.UTF-8",
            "ENTER": " ".join(self._enter),
            "ERL_EPMD_PORT": str(self._epmd_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": self.name,
            "RABBITMQ_DIST_PORT": str(distribution),
            "RABBITMQ_CONF_ENV_FILE": str(self._folder / "no-env.conf"),
            "RABBITMQ_CONFIG_FILE": str(self._folder / "rabbitmq.conf"),
            "RABBITMQ_CONFIG_FILES": str(self._folder / "no-conf.d"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(self._folder / "no-advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(self._folder / "plugins"),
            "RABBITMQ_MNESIA_BASE": str(self._folder / "data"),
            "RABBITMQ_LOG_BASE": str(self._folder / "log"),
            "RABBITMQ_PID_FILE": str(self._folder / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": (
                "-kernel inet_dist_use_interface {127,0,0,1} +S 2:2"
            ),
        }

    @property
    def url(self) -> str:
        """Return the URL of the vhost / for guest."""
        return self.url_for()

    def url_for(
        self,
        user: str = "guest",
        password: str = "guest",
        vhost: str = "/",
        port: int | None = None,
    ) -> str:
        """Return a URL with every part percent-encoded; ``port`` may be that of a proxy."""
        user, password, vhost = (quote(part, safe="") for part in (user, password, vhost))
        return f"amqp://{user}:{password}@127.0.0.1:{port or self.port}/{vhost}"

    def start(self) -> None:
        """Start the node and wait until it answers."""
        if self._process is not None:
            return
        with (self._folder / "startup.log").open("ab") as log:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _GUARD, "guard", *self._command("rabbitmq-server")],
                cwd=ROOT,
                env=self._env,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        give_up = time.monotonic() + START_PATIENCE
        while not (_speaks_amqp(self.port) and answers(self.url)):
            if self._process.poll() is not None or time.monotonic() > give_up:
                pytest.exit(f"the private RabbitMQ node did not start:\n{self._last_words()}", 1)
            time.sleep(0.1)

    def stop(self) -> None:
        """End the node as a shutdown does."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the node as a power cut does: kill -9."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop and start; durable queues and persistent messages are there again."""
        self.stop()
        self.start()

    def ctl(self, *arguments: str) -> str:
        """Run rabbitmqctl and return what it prints; it takes about a second."""
        done = subprocess.run(
            [*self._command("rabbitmqctl"), "--quiet", *arguments],
            check=False,
            cwd=ROOT,
            env=self._env,
            capture_output=True,
            text=True,
            timeout=60,
        )
        if done.returncode:
            raise RuntimeError(f"rabbitmqctl {arguments}: {done.stdout}{done.stderr}")
        return done.stdout

    def eval(self, expression: str) -> str:
        """Evaluate Erlang inside the node."""
        return self.ctl("eval", expression)

    def close(self) -> None:
        """End the node and remove all traces of it."""
        self.kill()
        if self._enter or shutil.which("epmd"):
            command = [*self._enter, "epmd", "-kill"]
            subprocess.run(command, check=False, cwd=ROOT, env=self._env, capture_output=True)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _command(self, name: str) -> list[str]:
        return [*self._enter, str(self._scripts / name)]

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        process.wait(60)
        assert process.stdin is not None
        process.stdin.close()
        # The script may be gone before the node that it started.
        give_up = time.monotonic() + 60
        while _group_lives(process.pid):
            if time.monotonic() > give_up:
                raise RuntimeError(f"the node {self.name} did not end")
            time.sleep(0.05)

    def _last_words(self) -> str:
        logs = [self._folder / "startup.log", *(self._folder / "log").glob("*.log")]
        return "\n".join(log.read_text(errors="replace")[-2000:] for log in logs if log.exists())


@contextlib.contextmanager
def private_node(config: Iterable[str] = ()) -> Iterator[PrivateNode]:
    """Start a node and remove it at the end."""
    node = PrivateNode(config)
    try:
        node.start()
        yield node
    finally:
        node.close()


def free_ports(number: int) -> list[int]:
    """Return ports that nobody listens on.

    They are below those that clients get from the system, apart for each process of a parallel run,
    and given once, for what listens there may start much later.
    """
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = 20_000 + 1_500 * (worker % 8)
    candidates = random.SystemRandom().sample(range(first, first + 1_500), 1_500)
    free = (port for port in candidates if port not in _given and _is_free(port))
    found = list(itertools.islice(free, number))
    _given.update(found)
    return found


_given: set[int] = set()


def _is_free(port: int) -> bool:
    with socket.socket() as candidate:
        try:
            candidate.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def _find_scripts() -> Path:
    found = _installed()
    if found is None and packages.may_install():
        packages.install("rabbitmq-server", "rabbitmq-server")
        found = _installed()
    if found is None:
        pytest.exit(
            "The RabbitMQ tests need a broker: set AMQP_URL, start one on 127.0.0.1:5672, or"
            " install rabbitmq-server.",
            1,
        )
    return found


def _installed() -> Path | None:
    if (DEBIAN_SCRIPTS / "rabbitmq-server").exists():
        return DEBIAN_SCRIPTS
    server = shutil.which("rabbitmq-server", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    return Path(server).resolve().parent if server else None
