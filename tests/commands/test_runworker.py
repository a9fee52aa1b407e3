"""runworker as a process of its own: signals, exit status, options, reloading and what it says."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
DEADLINE = 30.0

PLAIN_LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"own": {"format": "OWN %(levelname)s %(name)s %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "own"}},
}


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie that its parent, not this process, has yet to collect has ended too.
    stat = Path(f"/proc/{pid}/stat")
    try:
        return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def until(condition: Callable[[], Any], what: str, seconds: float = DEADLINE) -> Any:
    give_up = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < give_up, f"{what} did not happen"
        time.sleep(0.01)
    return found


class WorkerProcess:
    """A worker command in a session of its own, and what it and its jobs wrote."""

    def __init__(
        self,
        tmp_path: Path,
        *args: str,
        seed: list[tuple[Any, ...]] = [],  # noqa: B006
        command: str = "runworker",
        project: Path = HERE,
        **environment: str,
    ) -> None:
        self.gate = tmp_path / "gate"
        self._trace = tmp_path / "trace"
        self._out, self._err = tmp_path / "out", tmp_path / "err"
        jobs = [
            {"job": job, "args": arguments, **extra} for job, arguments, extra in map(full, seed)
        ]
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "django", command, *args],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=tmp_path,
                start_new_session=True,
                env={
                    **os.environ,
                    "DJANGO_SETTINGS_MODULE": "project.settings",
                    "PYTHONPATH": os.pathsep.join([str(project), str(ROOT)]),
                    "PYTHONUNBUFFERED": "1",
                    "NO_COLOR": "1",
                    "PROJECT_TRACE": str(self._trace),
                    "PROJECT_SEED": json.dumps(jobs).replace("@gate", str(self.gate)),
                    **environment,
                },
            )

    @property
    def out(self) -> str:
        return self._out.read_text()

    @property
    def err(self) -> str:
        return self._err.read_text()

    def events(self, name: str | None = None) -> list[dict[str, Any]]:
        if not self._trace.exists():
            return []
        lines = self._trace.read_text().splitlines()
        return [e for e in map(json.loads, lines) if name is None or e["event"] == name]

    def until(self, name: str, count: int = 1) -> list[dict[str, Any]]:
        """Wait for events of a name."""

        def found() -> list[dict[str, Any]]:
            assert self.process.poll() is None or len(self.events(name)) >= count, self.err
            events = self.events(name)
            return events if len(events) >= count else []

        return until(found, f"{name} x {count}")

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = DEADLINE) -> int:
        """Return the exit status."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the worker does not end; it wrote:\n{self.out}\n{self.err}")

    def kill(self) -> None:
        """End what is left of the session that this test started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(DEADLINE)


def full(seed: tuple[Any, ...]) -> tuple[str, list[Any], dict[str, Any]]:
    name, *rest = seed
    return name, list(rest[0]) if rest else [], rest[1] if len(rest) > 1 else {}


Start = Callable[..., WorkerProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Return what starts worker processes; none outlives the test."""
    started: list[WorkerProcess] = []

    def begin(*args: str, **kwargs: Any) -> WorkerProcess:
        place = tmp_path / str(len(started))
        place.mkdir()
        started.append(WorkerProcess(place, *args, **kwargs))
        return started[-1]

    yield begin
    for process in started:
        process.kill()


WAITING = [("waits", ["@gate"]), ("waits_async", ["@gate"])]


# Signals


@pytest.mark.contract(64, 75)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("loop", ["unix", "without signal handlers"])
def test_signal_lets_running_jobs_end(start: Start, number: signal.Signals, loop: str) -> None:
    worker = start(
        "--concurrency=2",
        seed=[*WAITING, ("quick", [1])],
        PROJECT_NO_SIGNAL_HANDLERS="0" if loop == "unix" else "1",
    )
    worker.until("started", 2)
    worker.send(number)
    worker.until("released")
    assert worker.events("finished") == []
    assert worker.process.poll() is None
    worker.gate.touch()

    assert worker.wait() == 0
    assert len(worker.events("finished")) == 2
    assert sorted(event["job"] for event in worker.events("succeeded")) == [
        "project.jobs.waits",
        "project.jobs.waits_async",
    ]
    assert worker.events("ran") == []
    assert "Stopping: 2 running job(s) end first" in worker.err
    assert "Traceback" not in worker.err
    assert "2 succeeded, 0 retried, 0 deferred, 0 dead, 1 handed back" in worker.out


@pytest.mark.contract(75)
@pytest.mark.parametrize(
    ("first", "second", "loop"),
    [
        (signal.SIGTERM, signal.SIGTERM, "unix"),
        (signal.SIGINT, signal.SIGINT, "unix"),
        (signal.SIGTERM, signal.SIGINT, "without signal handlers"),
    ],
)
def test_second_signal_ends_at_once(
    start: Start, first: signal.Signals, second: signal.Signals, loop: str
) -> None:
    worker = start(seed=WAITING, PROJECT_NO_SIGNAL_HANDLERS="0" if loop == "unix" else "1")
    worker.until("started", 2)
    worker.send(first)
    until(lambda: "Stopping" in worker.err, "the first signal")
    worker.send(second)

    assert worker.wait() == 130
    assert worker.events("finished") == []


@pytest.mark.contract(67, 75)
def test_idle_worker_ends_soon(start: Start) -> None:
    worker = start()
    worker.until("consumes", 3)
    started = time.monotonic()
    worker.send(signal.SIGTERM)

    assert worker.wait() == 0
    # A second for the worker, and time for the interpreter to end on a busy machine.
    assert time.monotonic() - started < 5


@pytest.mark.contract(65)
@pytest.mark.parametrize("job", ["waits", "waits_async"])
def test_job_that_outlives_the_shutdown_timeout_is_handed_back(start: Start, job: str) -> None:
    worker = start("--shutdown-timeout=200ms", seed=[(job, ["@gate"])])
    worker.until("started")
    worker.send(signal.SIGTERM)

    assert worker.wait() == 0
    assert [(event["job"], event["attempt"]) for event in worker.events("released")] == [
        (f"project.jobs.{job}", 1)
    ]
    assert worker.events("finished") == []
    assert "handed back" in worker.out


@pytest.mark.contract(65, 75)
@pytest.mark.parametrize("job", ["endless_async", "endless_thread", "endless_to_thread"])
def test_async_job_that_resists_does_not_keep_the_process(start: Start, job: str) -> None:
    worker = start("--shutdown-timeout=200ms", seed=[(job,)])
    worker.until("started")
    worker.send(signal.SIGTERM)
    worker.until("released")

    assert worker.wait(8) == 0


# Jobs that do not return


@pytest.mark.contract(61)
@pytest.mark.parametrize("job", ["stuck", "stuck_async", "stuck_thread"])
def test_job_that_never_returns_makes_the_worker_exit_75(start: Start, job: str) -> None:
    worker = start(
        "--concurrency=1", seed=[(job,), ("quick", [1]), ("quick", [2])], PROJECT_GRACE="0.3"
    )
    worker.until("started")

    assert worker.wait(10) == 75
    (settled,) = worker.events("retried")
    assert (settled["job"], settled["attempt"]) == (f"project.jobs.{job}", 1)
    assert worker.events("ran") == []
    assert worker.events()[-1] == settled, "it was not the last act"
    assert "did not return after its timeout" in worker.err


@pytest.mark.contract(61)
def test_job_beside_one_that_never_returns_ends_normally(start: Start) -> None:
    worker = start("--concurrency=2", seed=[("stuck",), ("waits", ["@gate"])], PROJECT_GRACE="0.3")
    until(lambda: "did not return" in worker.err, "the timeout")
    worker.gate.touch()

    assert worker.wait() == 75
    assert [event["event"] for event in worker.events() if event.get("attempt")] == [
        "succeeded",
        "retried",
    ]


# Options


@pytest.mark.contract(72)
def test_burst_prints_counts(start: Start) -> None:
    seed = [("quick", [1]), ("quick_async", [2]), ("fails",), ("defers",), ("unknown",)]
    worker = start("--burst", seed=seed)

    assert worker.wait() == 0
    assert sorted(event["number"] for event in worker.events("ran")) == [1, 2]
    assert worker.out.splitlines()[-1] == "2 succeeded, 1 retried, 1 deferred, 1 dead"
    assert "ValueError: out of stock" in worker.err


@pytest.mark.contract(73)
def test_max_jobs(start: Start) -> None:
    worker = start("--max-jobs=2", "--concurrency=1", seed=[("quick", [n]) for n in range(5)])

    assert worker.wait() == 0
    assert [event["number"] for event in worker.events("ran")] == [0, 1]
    assert "2 succeeded" in worker.out


@pytest.mark.contract(55)
def test_queue_is_repeatable_and_a_comma_list(start: Start) -> None:
    queues = ["default", "email", "bulk"]
    seed = [("quick", [n], {"queue": queue}) for n, queue in enumerate(queues)]
    workers = [
        start(*args, "--burst", seed=seed)
        for args in (
            ["--queue", "email", "--queue", "bulk"],
            ["--queue", "email,bulk"],
            ["-q", " email , bulk ", "-q", "email"],
            ["--queue=email,,bulk"],
        )
    ]

    for worker in workers:
        assert worker.wait() == 0
        assert sorted(event["number"] for event in worker.events("ran")) == [1, 2]
        assert [event["queue"] for event in worker.events("consumes")] == ["email", "bulk"]
        assert "queues       email, bulk\n" in worker.out


@pytest.mark.contract(55)
def test_wrong_option_is_one_clear_line(start: Start) -> None:
    workers = [
        (start("--queue", "emial"), ["'emial'", "email"]),
        (start("--backend", "defualt"), ["'defualt'", "default"]),
        (start("--shutdown-timeout", "soon"), ["'soon'"]),
        (start("--max-jobs=0"), ["--max-jobs", "from 1"]),
    ]

    for worker, words in workers:
        assert worker.wait() == 1
        (line,) = worker.err.splitlines()
        assert line.startswith("CommandError: ")
        for word in words:
            assert word in line
        assert worker.out == ""


def test_queue_without_a_name_is_refused(start: Start) -> None:
    """An empty variable in a deployment must not make a worker that serves nothing."""
    worker = start("--queue", "", "--burst", seed=[("quick", [1])])

    assert worker.wait() == 1
    assert worker.err.startswith("CommandError: ")


def test_the_other_name_is_the_same_command(start: Start) -> None:
    helps = [start("--help", command=name) for name in ("runworker", "jobq_worker")]
    assert [worker.wait() for worker in helps] == [0, 0]
    assert helps[1].out.replace("jobq_worker", "runworker").split() == helps[0].out.split()

    worker = start("--burst", command="jobq_worker", seed=[("quick", [1])])
    assert worker.wait() == 0
    assert worker.out.endswith("1 succeeded, 0 retried, 0 deferred, 0 dead\n")


# What it says


def test_banner_tells_what_is_served(start: Start) -> None:
    worker = start("--burst", "--concurrency=3")

    assert worker.wait() == 0
    banner = worker.out
    assert re.match(r"django_jobq \S+, backend default \(memory\), pid \d+\n", banner)
    assert "  queues       default, email, bulk\n" in banner
    assert "  concurrency  3\n" in banner
    listed = re.findall(r"project\.jobs\.\w+", banner)
    assert "project.jobs.quick" in listed
    assert "project.jobs.waits_async" in listed
    assert listed == sorted(listed)
    assert "DEBUG" not in banner


def test_memory_backend_explains_itself(start: Start) -> None:
    plain = start("--backend=memory", "--no-reload", PROJECT_MEMORY="1", PROJECT_DEBUG="1")
    reloading = start("--backend=memory", PROJECT_MEMORY="1", PROJECT_DEBUG="1")

    assert plain.wait() == 1
    # The reloader stays, to wait for a correction.
    until(lambda: "memory" in reloading.err, "the explanation")
    reloading.send(signal.SIGTERM)
    reloading.wait()
    for worker in (plain, reloading):
        assert "JOBQ['memory'] is the memory backend" in worker.err
        assert "runserver" in worker.err
    (line,) = plain.err.splitlines()
    assert line.startswith("CommandError: ")


def test_memory_backend_without_debug_is_a_check_error(start: Start) -> None:
    worker = start("--backend=memory", PROJECT_MEMORY="1")

    assert worker.wait() == 1
    assert "jobq.E005" in worker.err
    assert "DEBUG is off" in worker.err
    assert worker.out == ""


# LOGGING


def test_lines_go_to_standard_error_when_logging_says_nothing(start: Start) -> None:
    worker = start("--burst", seed=[("quick", [1])])

    assert worker.wait() == 0
    (line,) = [line for line in worker.err.splitlines() if "succeeded" in line]
    assert re.fullmatch(r"\d\d:\d\d:\d\d INFO    Job project\.jobs\.quick succeeded in .+", line)
    assert "of the project" not in worker.err


def test_verbosity_is_for_our_logger_only(start: Start) -> None:
    seed = [("quick", [1]), ("fails",)]
    workers = {level: start("--burst", "-v", level, seed=seed) for level in ("0", "1", "3")}

    for level, worker in workers.items():
        assert worker.wait() == 0
        assert ("concurrency" in worker.out) is (level != "0")
        assert ("quick succeeded" in worker.err) is (level != "0")
        assert "out of stock" in worker.err
        assert "of the project" not in worker.err
        assert "asyncio" not in worker.err


@pytest.mark.parametrize("handled", ["root", "django_jobq"])
def test_logging_of_the_project_is_untouched(start: Start, handled: str) -> None:
    own = {"handlers": ["console"], "level": "INFO"}
    logging = {
        **PLAIN_LOGGING,
        **({"root": own} if handled == "root" else {"loggers": {handled: own}}),
    }
    worker = start("--burst", "-v", "1", seed=[("quick", [1])], PROJECT_LOGGING=json.dumps(logging))

    assert worker.wait() == 0
    lines = [line for line in worker.err.splitlines() if "quick succeeded" in line]
    assert len(lines) == 1
    assert lines[0].startswith("OWN INFO django_jobq.jobs Job project.jobs.quick succeeded")
    assert all(line.startswith("OWN ") for line in worker.err.splitlines())
    assert worker.err.count("info of the project") == (1 if handled == "root" else 0)


def test_level_of_the_project_is_kept(start: Start) -> None:
    own = {"handlers": ["console"], "level": "ERROR"}
    logging = {**PLAIN_LOGGING, "loggers": {"django_jobq": own}}
    worker = start("--burst", "-v", "2", seed=[("quick", [1])], PROJECT_LOGGING=json.dumps(logging))

    assert worker.wait() == 0
    assert worker.err == ""


# Reloading


@pytest.fixture
def editable(tmp_path: Path) -> Path:
    """Return the parent of a copy of the project that a test may edit."""
    place = tmp_path / "editable"
    shutil.copytree(HERE / "project", place / "project", ignore=shutil.ignore_patterns("__pyc*"))
    return place


def edit(project: Path) -> None:
    with (project / "project" / "jobs.py").open("a") as file:
        file.write("\n")


@pytest.mark.slow
@pytest.mark.contract(64)
def test_edited_file_restarts_the_worker_after_its_running_job(
    start: Start, editable: Path
) -> None:
    worker = start(
        "--reload", "--concurrency=1", project=editable, seed=[("waits", ["@gate"]), ("quick", [1])]
    )
    first = worker.until("started")[0]["pid"]
    assert first != worker.process.pid

    def edit_until_noticed() -> bool:
        # The reloader compares with what it saw first, and says nothing of when that was.
        edit(editable)
        time.sleep(0.2)
        return bool(worker.events("released"))

    until(edit_until_noticed, "the edit was noticed")
    assert worker.events("succeeded") == []
    worker.gate.touch()
    second = worker.until("started", 2)[1]["pid"]

    order = [(event["event"], event["pid"]) for event in worker.events()]
    assert second not in (first, worker.process.pid)
    assert order.index(("succeeded", first)) < order.index(("consumes", second))
    assert not is_alive(first)
    worker.send(signal.SIGTERM)
    assert worker.wait() == 0


@pytest.mark.slow
@pytest.mark.contract(75)
@pytest.mark.parametrize("how", ["terminate", "control-c"])
def test_one_signal_stops_both_processes_under_reload(
    start: Start, editable: Path, how: str
) -> None:
    worker = start("--reload", project=editable, seed=[("quick", [1])])
    child = worker.until("succeeded")[0]["pid"]
    assert child != worker.process.pid

    if how == "terminate":
        worker.send(signal.SIGTERM)
    else:
        os.killpg(worker.process.pid, signal.SIGINT)  # as a terminal does

    assert worker.wait() == 0
    until(lambda: not is_alive(child), "the end of the child", 10)


@pytest.mark.slow
def test_debug_reloads_unless_told_not_to(start: Start) -> None:
    reloading = start(PROJECT_DEBUG="1")
    plain = start("--no-reload", PROJECT_DEBUG="1")
    for worker in (reloading, plain):
        worker.until("consumes")
    assert "DEBUG is on" in reloading.out

    assert reloading.events("consumes")[0]["pid"] != reloading.process.pid
    assert plain.events("consumes")[0]["pid"] == plain.process.pid
    for worker in (reloading, plain):
        worker.send(signal.SIGTERM)
        assert worker.wait() == 0
