"""Trials of a first day: what a project tries before it has read the documentation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import pytest
from django.test import override_settings

from django_jobq import Job, enqueue_many, job
from django_jobq.backends.handler import backends
from django_jobq.exceptions import InvalidArguments, QueueFull
from tests.trials.project import Project

MEMORY = "django_jobq.backends.memory.MemoryBackend"


def list_default(a: int, tags: list[str] = [], *, seen: Any = {}) -> Any:  # noqa: B006
    return a, tags, seen


def dict_default(options: Any = {"a": 1}) -> Any:  # noqa: B006
    return options


def annotated(a: Annotated[int, {"help": "text"}] = 1) -> Any:
    return a


annotated.__annotations__["a"] = Annotated[int, {"help": "text"}]


@pytest.mark.parametrize("function", [list_default, dict_default, annotated])
def test_own_a_function_with_any_default_or_annotation_is_a_job(
    function: Callable[..., Any], work: Callable[..., Any]
) -> None:
    """Defaults and annotations that cannot be hashed do not keep a function from being a job."""
    made: Job[..., Any] = job(function, name="trial.defaults")

    made.enqueue(1)
    stats = work()

    assert stats.succeeded == 1


def test_own_keyword_arguments_may_have_any_name(work: Callable[..., Any]) -> None:
    """No name of a keyword argument collides with a parameter of the library."""
    names = ("self", "args", "kwargs", "func", "delay", "job", "context", "timeout", "signal")
    seen: list[dict[str, Any]] = []

    @job(name="trial.names")
    def named(**options: Any) -> None:
        seen.append(options)

    for name in names:
        named.enqueue(**{name: 1})
    named.enqueue_after("0s", **dict.fromkeys(names, 2))
    work(concurrency=1)

    assert seen == [{name: 1} for name in names] + [dict.fromkeys(names, 2)]


def test_own_an_enqueue_of_many_stores_none_if_a_check_refuses_one() -> None:
    """What can be known beforehand leaves nothing behind; what the transport refuses is told."""

    @job(name="trial.many")
    def many(item: Any) -> None: ...

    with override_settings(JOBQ={"default": {"BACKEND": MEMORY, "OPTIONS": {"max_pending": 2}}}):
        with pytest.raises(QueueFull):
            enqueue_many(many.prepare(number) for number in range(3))
        assert backends["default"].counts("default").ready == 2
    with pytest.raises(InvalidArguments):
        enqueue_many(many.prepare(item) for item in (1, object()))
    assert backends["default"].counts("default").ready == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda j: j.enqueue(), "missing a required argument: 'order'"),
        (lambda j: j.enqueue(1, 2), "too many positional arguments"),
        (lambda j: j.enqueue(1, oder=2), "unexpected keyword argument 'oder'"),
        (lambda j: j.enqueue_after("5m"), "missing a required argument: 'order'"),
        (lambda j: j.enqueue({1, 2}), "a set.*pass a sorted list"),
        (lambda j: j.enqueue(b"x"), "binary data.*base64"),
        (lambda j: j.enqueue(object), "a function or class"),
        (lambda j: j.enqueue("x" * 200_000), "200,.* bytes, more than the limit of 131,072"),
    ],
)
def test_own_wrong_arguments_are_refused_with_advice(
    call: Callable[[Any], Any], message: str
) -> None:
    """Arguments that do not fit are refused at the call, naming the job and what to do."""

    @job(name="trial.order")
    def send(order: Any) -> None: ...

    with pytest.raises(TypeError, match=message) as caught:
        call(send)

    assert "trial.order" in str(caught.value)
    assert backends["default"].counts("default").ready == 0


SCRIPT = """
import os, sys, time

import django

django.setup()
from shop.jobs import hello

{body}
"""
JOBS = """
import os, time

from django_jobq import job


@job
def hello(text):
    print(f"hello {text} in {os.getpid()}", flush=True)


@job
async def hello_async(text):
    print(f"hello {text} in {os.getpid()}", flush=True)


@job
def slow(text):
    time.sleep(0.3)
    print(f"slow {text}", flush=True)
"""
IN_PROCESS = f'DEBUG = True\nJOBQ = {{"default": {{"BACKEND": "{MEMORY}"}}}}\n'


def script(project: Project, body: str, settings: str = IN_PROCESS) -> tuple[int, str]:
    project.settings(settings)
    project.write("shop/jobs.py", JOBS)
    project.write("script.py", SCRIPT.format(body=body))
    process = project.start("script.py")
    return process.wait(20), process.output


def test_own_a_script_under_debug_runs_its_jobs_before_it_ends(project: Project) -> None:
    """Jobs enqueued by a script that ends at once run all the same, sync and async."""
    status, output = script(
        project,
        "from shop.jobs import hello_async, slow\n"
        "slow.enqueue('one')\nhello.enqueue('two')\nhello_async.enqueue('three')\n",
    )

    assert status == 0
    for text in ("slow one", "hello two", "hello three"):
        assert text in output
    assert "are lost with this process" not in output


def test_own_a_script_says_which_jobs_are_lost_with_it(project: Project) -> None:
    """A job that is not due when its process ends is counted as lost, not dropped in silence."""
    status, output = script(project, "hello.enqueue_after('1h', 'later')\n")

    assert status == 0
    assert "1 job(s) of the memory backend are lost with this process" in output
    assert "1 delayed" in output


def test_own_a_forked_process_runs_its_own_jobs(project: Project) -> None:
    """A child process forked after the first job runs the jobs that it enqueues itself."""
    status, output = script(
        project,
        "from django_jobq.backends.handler import backends\n"
        "def finish():\n"
        "    until = time.monotonic() + 5\n"
        "    while any(unfinished()) and time.monotonic() < until:\n"
        "        time.sleep(0.01)\n"
        "def unfinished():\n"
        "    counts = backends['default'].counts('default')\n"
        "    return counts.ready, counts.reserved\n"
        "hello.enqueue('parent')\n"
        "finish()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    hello.enqueue('child')\n"
        "    finish()\n"
        "    os._exit(0)\n"
        "os.waitpid(child, 0)\n",
    )

    assert status == 0
    assert "hello parent" in output
    assert "hello child" in output


def test_own_the_memory_backend_is_refused_in_production(project: Project) -> None:
    """Without DEBUG the memory backend refuses the enqueue and fails the check, with a way out."""
    status, output = script(
        project, "hello.enqueue('x')\n", IN_PROCESS.replace("DEBUG = True", "DEBUG = False")
    )
    assert status == 1
    assert "allow_in_production" in output
    assert "hello x" not in output

    status, output = project.run("check")
    assert status == 1
    assert "jobq.E005" in output


def test_own_a_separate_worker_for_the_memory_backend_is_explained(project: Project) -> None:
    """A worker process for jobs that live in another process says why it would see none."""
    project.settings(IN_PROCESS)

    status, output = project.run("runworker", "--no-reload")

    assert status == 1
    assert "a worker of its own would never see one" in output
