"""The demo of the example project on a real broker."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest

from tests.backends.rabbitmq.support import wait_until
from tests.broker import PrivateNode

MANAGE = Path(__file__).parents[3] / "example_project" / "manage.py"
PATIENCE = 60.0


class TestDemo:
    backend_name = "rabbitmq"

    @pytest.fixture
    def interruptible(self) -> Iterator[None]:
        """Let processes be interrupted, even if a shell that runs the tests behind & forbids it."""
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        yield
        signal.signal(signal.SIGINT, before)

    def test_it_serves_and_works_until_it_is_interrupted(
        self, node: PrivateNode, tmp_path: Path, interruptible: None
    ) -> None:
        environment = {**os.environ, "SHOP_VAR": str(tmp_path), "JOBQ_URL": node.url}
        # Not those of the tests.
        environment.pop("DJANGO_SETTINGS_MODULE", None)
        demo = subprocess.Popen(
            [sys.executable, "-u", str(MANAGE), "demo"],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert demo.stdout is not None
        # Or a demo that does not end is waited for without end.
        watchdog = threading.Timer(2 * PATIENCE, demo.kill)
        watchdog.start()
        with demo, demo.stdout as output:
            told = ""
            while not re.search(r"receipt for order 1 +done", told):
                line = output.readline()
                assert line, told
                told += line
            address = re.search(r"http://127\.0\.0\.1:\d+/", told)
            assert address, told
            urlopen(address[0], timeout=10).close()
            assert "publisher" in _connections(node)
            demo.send_signal(signal.SIGINT)
            told += output.read()
            assert demo.wait(PATIENCE) == 0, told
        watchdog.cancel()
        assert "Traceback" not in told
        wait_until(lambda: _connections(node) == "")


def _connections(node: PrivateNode) -> str:
    return node.ctl("list_connections", "client_properties", "--no-table-headers").strip()
