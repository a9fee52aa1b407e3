"""jobq_enqueue: what it takes, what it refuses, and what it writes."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction

from django_jobq import JobContext, job
from django_jobq.backends.memory import ManualClock, MemoryBackend
from django_jobq.envelope import Envelope

HERE = Path(__file__).parent


@pytest.fixture
def ship() -> Any:
    """Return a job that takes a number, and perhaps a word and a flag."""

    @job(name="shop.jobs.ship", priority=2, takes_context=True)
    def ship(context: JobContext, number: int, word: str = "", *, gift: bool = False) -> None: ...

    @job(name="shop.jobs.bill", queue="billing")
    def bill() -> None: ...

    return ship


def enqueue(*arguments: str) -> None:
    call_command("jobq_enqueue", *arguments)


def only(memory: MemoryBackend, queue: str = "default") -> Envelope:
    (envelope,) = memory.pending(queue)
    return envelope


@pytest.mark.usefixtures("ship")
def test_the_job_is_as_if_enqueued_in_code(
    memory: MemoryBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    enqueue("shop.jobs.ship", "--args", '[7, "x"]', "--kwargs", '{"gift": true}')
    envelope = only(memory)
    assert (envelope.job, envelope.queue, envelope.priority) == ("shop.jobs.ship", "default", 2)
    assert (envelope.args, envelope.kwargs) == ([7, "x"], {"gift": True})
    written = capsys.readouterr()
    assert written.out == f"{envelope.job_id}\n"
    assert written.err == "Enqueued shop.jobs.ship on queue default\n"


@pytest.mark.usefixtures("ship")
def test_without_arguments_the_job_gets_none(memory: MemoryBackend) -> None:
    enqueue("shop.jobs.bill")
    assert only(memory, "billing").args == []


@pytest.mark.usefixtures("ship")
def test_options_of_the_call(memory: MemoryBackend) -> None:
    enqueue("shop.jobs.ship", "--args=[1]", "--queue=billing", "--priority=0")
    enqueue("shop.jobs.ship", "--args=[2]", "--correlation-id=order-7", "-q", "billing", "--front")
    front, back = memory.pending("billing")
    assert (front.args, front.priority, front.correlation_id) == ([2], 2, "order-7")
    assert (back.args, back.priority, back.correlation_id) == ([1], 0, None)


@pytest.mark.usefixtures("ship")
def test_a_delay(clocked: MemoryBackend, clock: ManualClock) -> None:
    enqueue("shop.jobs.ship", "--args=[1]", "--delay=5m")
    clock.advance(299)
    assert clocked.counts("default").held == 1
    clock.advance(2)
    assert clocked.counts("default").ready == 1


@pytest.mark.usefixtures("ship")
def test_verbosity_0_writes_nothing(
    memory: MemoryBackend, capsys: pytest.CaptureFixture[str]
) -> None:
    enqueue("shop.jobs.bill", "--verbosity=0")
    only(memory, "billing")
    written = capsys.readouterr()
    assert (written.out, written.err) == ("", "")


@pytest.mark.usefixtures("ship")
@pytest.mark.django_db(transaction=True)
def test_in_a_transaction_of_the_caller_it_waits_for_the_commit(memory: MemoryBackend) -> None:
    with transaction.atomic():
        enqueue("shop.jobs.bill")
        assert memory.pending("billing") == []
    only(memory, "billing")


@pytest.mark.usefixtures("ship")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["shop.jobs.shop"], ["'shop.jobs.shop'", "did you mean 'shop.jobs.ship'?"]),
        (["Nothing.Like.It"], ["known: shop.jobs.bill, shop.jobs.ship"]),
        (["shop.jobs.ship", "--args", "[1"], ["--args is not JSON", """'[1, "x"]'"""]),
        (["shop.jobs.ship", "--args", "7"], ["--args is 7", "a list"]),
        (["shop.jobs.ship", "--args", "[" * 100_000], ["--args is not JSON"]),
        (["shop.jobs.ship", "--kwargs", "[]"], ["--kwargs is []", """'{"a": 1}'"""]),
        (["shop.jobs.ship", "--args", "[1, 2, 3]"], ["shop.jobs.ship", "too many"]),
        (["shop.jobs.ship"], ["missing a required argument: 'number'"]),
        (["shop.jobs.ship", "--kwargs", '{"numbr": 1}'], ["number"]),
        (["shop.jobs.ship", "--args", "[NaN]"], ["argument number is nan"]),
        (["shop.jobs.bill", "--queue", "nowhere"], ["'nowhere'", "known: billing, default"]),
        (["shop.jobs.bill", "--priority", "10"], ["priority 10", "0 to 9"]),
        (["shop.jobs.bill", "--priority", "-1"], ["priority -1"]),
        (["shop.jobs.bill", "--delay", "soon"], ["delay: 'soon'"]),
    ],
)
def test_what_is_refused_is_one_sentence(
    memory: MemoryBackend, arguments: list[str], words: list[str]
) -> None:
    with pytest.raises(CommandError) as refusal:
        enqueue(*arguments)
    assert refusal.value.returncode == 1
    for word in words:
        assert word in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert memory.counts("default").ready == memory.counts("billing").ready == 0


@pytest.mark.usefixtures("ship")
def test_wrong_settings_are_told(settings: Any) -> None:
    settings.JOBQ = {"default": {"BACKEND": "nowhere.Backend"}}
    with pytest.raises(CommandError, match=r"JOBQ\['default'\]\['BACKEND'\]"):
        enqueue("shop.jobs.bill")


def test_the_transport_s_own_refusal_is_told(settings: Any) -> None:
    settings.JOBQ = {
        "default": {
            "BACKEND": "django_jobq.backends.memory.MemoryBackend",
            "OPTIONS": {"max_pending": 1},
        }
    }
    job(name="shop.jobs.bill")(lambda: None)
    enqueue("shop.jobs.bill")
    with pytest.raises(CommandError, match="is full"):
        enqueue("shop.jobs.bill")


# As a process


def manage(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "django", *arguments],
        env={
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "project.settings",
            "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent.parent)]),
            "NO_COLOR": "1",
            **environment,
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_a_process_ends_with_1_and_one_line() -> None:
    done = manage("jobq_enqueue", "project.jobs.quik")
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("CommandError: ")
    assert line.endswith("did you mean 'project.jobs.quick'?")


def test_a_backend_inside_the_process_is_refused_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "private.py").write_text(
        "from project.settings import *\n"
        "JOBQ = {'default': {'BACKEND': 'django_jobq.backends.memory.MemoryBackend'}}\n"
    )
    path = os.pathsep.join([str(tmp_path), str(HERE), str(HERE.parent.parent)])
    done = manage(
        *("jobq_enqueue", "project.jobs.quick", "--args=[1]"),
        DJANGO_SETTINGS_MODULE="private",
        PYTHONPATH=path,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert "JOBQ['default'] is the memory backend" in line
    assert "Set JOBQ to a backend that processes share." in line
