"""The demo keeps its promises, and notices when one is broken."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest
from django.conf import settings

from config import queue_url
from shop.demo import verdict
from shop.demo.ledger import DEAD, Entry

MANAGE = [sys.executable, "-u", str(settings.BASE_DIR / "manage.py")]


def test_once_ends_well_and_prints_a_row_for_each_job() -> None:
    ended = subprocess.run(
        [*MANAGE, "demo", "--once"], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = re.findall(r"^\w+ +(?:order|import) \d+ .* s .* s", ended.stdout, re.MULTILINE)
    assert len(rows) == verdict.EXPECTED_JOBS
    assert "Every job ended as it should" in ended.stdout
    assert "Traceback" not in ended.stderr


def test_serving_goes_on_until_it_is_interrupted(tmp_path: Path) -> None:
    server = subprocess.Popen(
        [*MANAGE, "demo"],
        env={**os.environ, "SHOP_VAR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert server.stdout is not None
    with server, server.stdout as output:
        told = ""
        while "receipt for order 1       done" not in told:
            line = output.readline()
            assert line, told
            told += line
        address = re.search(r"http://127\.0\.0\.1:\d+/", told)
        assert address, told
        with urlopen(address[0] + "orders/1/", timeout=10) as response:
            assert "Order 1" in response.read().decode()
        server.send_signal(signal.SIGINT)
        told = output.read()
        assert server.wait(20) == 0, told
        assert "Traceback" not in told


@pytest.mark.parametrize("option", [[], ["--once"]])
@pytest.mark.parametrize(
    ("url", "shown", "reason"),
    [
        ("amq://me:s3cret@host/", "amq://me@host/", "has the scheme 'amq'; did you mean 'amqp'?"),
        ("amqp://me:s3cret@host:port/", "amqp://me@host:port/", "no readable port"),
        ("amqp://me:s3cret@127.0.0.1:1/", "amqp://me@127.0.0.1:1/", "no connection to"),
    ],
)
def test_a_queue_that_cannot_be_used_ends_the_demo_with_one_sentence(
    url: str, shown: str, reason: str, option: list[str], tmp_path: Path
) -> None:
    ended = subprocess.run(
        [*MANAGE, "demo", *option],
        env={**os.environ, "SHOP_VAR": str(tmp_path), "JOBQ_URL": url},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ended.returncode, ended.stdout) == (1, "")
    (line,) = ended.stderr.splitlines()
    assert f"JOBQ_URL ({shown}) cannot be used; correct it, start its broker" in line
    assert reason in line
    assert "s3cret" not in line


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("memory://?max_pending=9", "memory://?max_pending=9"),
        ("amqp://host:5672/shop?prefix=x", "amqp://host:5672/shop?prefix=x"),
        ("amqp://me:a@b:c/d@host/shop", "amqp://me@host/shop"),
        ("amqp://me:s3cret", "amqp://me:***"),
        ("amqp://me:s3cret/", "amqp://me:***/"),
        ("me:s3cret@host", "***@host"),
        ("", "empty"),
    ],
)
def test_the_queue_is_shown_without_its_password(
    url: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JOBQ_URL", url)
    assert queue_url.shown() == shown


@pytest.mark.django_db
def test_a_run_without_jobs_is_complained_about(tmp_path: Path) -> None:
    wrong = verdict.complaints([], tmp_path)
    assert "The receipt for order 1 was never enqueued." in wrong
    assert "No receipt was sent after a retry." in wrong
    assert "No stock was synced after a deferral." in wrong
    assert "The receipt for order 6 was sent 0 times." in wrong
    assert "There is no import report." in wrong


@pytest.mark.django_db
def test_a_job_that_ended_otherwise_is_complained_about(tmp_path: Path) -> None:
    entry = Entry(title="receipt", about="order 1", outcome=DEAD, cause="exhausted", attempts=4)
    wrong = verdict.complaints([entry], tmp_path)
    assert wrong[0] == (
        "The receipt for order 1 should be done after 1 attempt,"
        " but is given up (exhausted) after 4 attempts."
    )
