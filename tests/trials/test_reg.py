"""Trials of discovery and definition: what is wrong with a jobs module is said, at once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from django_jobq import Job, job
from tests.trials.project import Project

GOOD = "from django_jobq import job\n\n\n@job\ndef {name}():\n    pass\n"

BROKEN = {
    "missing name": ("from shop import nothing_there\n", "cannot import name 'nothing_there'"),
    "syntax": ("def broken(:\n", "SyntaxError"),
    "raises": ("raise ValueError('from the module')\n", "ValueError: from the module"),
    "import error": ("raise ImportError('by hand')\n", "ImportError: by hand"),
    "bad job": (
        "from django_jobq import job\n\n\n@job(retry=0)\ndef bad():\n    pass\n",
        "max_attempts 0 is no whole number",
    ),
}


@pytest.mark.parametrize("how", BROKEN)
def test_b133_an_error_in_a_jobs_module_stops_the_command(how: str, project: Project) -> None:
    """A jobs module that cannot be imported ends check and worker with its own traceback."""
    text, message = BROKEN[how]
    project.write("plain/__init__.py", "")
    project.settings(apps=["plain", "shop", "django_jobq"])
    project.write("shop/jobs.py", text)

    for command in ("check", "runworker") if how == "missing name" else ("check",):
        status, output = project.run(command)
        assert status == 1
        assert message in output
        assert "shop/jobs.py" in output
        assert "Traceback" in output


def test_b133_an_app_without_jobs_is_fine(project: Project) -> None:
    """Apps without a jobs module, and modules that only look like one, do no harm."""
    project.write("plain/__init__.py", "")
    project.write("plain/jobs_old.py", "raise ValueError\n")
    project.settings(apps=["plain", "shop", "django_jobq"])
    project.write("shop/jobs.py", GOOD.format(name="hello"))

    status, output = project.run("check")

    assert (status, "no issues" in output) == (0, True)


@pytest.mark.contract(54)
def test_b133_two_jobs_of_one_name_are_reported(project: Project) -> None:
    """Two functions under one name fail the check and the worker, which name both places."""
    for app in ("shop", "plain"):
        project.write(f"{app}/__init__.py", "")
        project.write(
            f"{app}/jobs.py",
            f"from django_jobq import job\n\n\n@job(name='same')\ndef of_{app}():\n    pass\n",
        )
    project.settings(apps=["plain", "shop", "django_jobq"])

    for command in ("check", "runworker"):
        status, output = project.run(command)
        assert status == 1
        assert "jobq.E003" in output
        assert "plain/jobs.py:4 (plain.jobs.of_plain)" in output
        assert "shop/jobs.py:4 (shop.jobs.of_shop)" in output


def function(first: int, *, second: str = "x") -> str:
    """Add things."""
    return f"{first}{second}"


async def coroutine_function(first: int) -> int:
    return first


FORMS: dict[str, Callable[[Any], Job[..., Any]]] = {
    "@job": lambda f: job(f),
    "@job()": lambda f: job()(f),
    "@job(queue)": lambda f: job(queue="default")(f),
    "job(f, queue)": lambda f: job(f, queue="default"),
    "@job(name)": lambda f: job(name=f"{f.__module__}.{f.__qualname__}")(f),
}


@pytest.mark.parametrize("form", FORMS)
def test_b135_every_form_of_the_decorator_makes_the_same_job(form: str) -> None:
    """The decorator works bare, with options and as a call, and keeps what the function is."""
    made = FORMS[form](function)
    asynchronous = FORMS[form](coroutine_function)

    assert isinstance(made, Job)
    assert (made.name, made.queue) == ("tests.trials.test_reg.function", "default")
    assert (made.__name__, made.__doc__, made.__module__) == (
        "function",
        "Add things.",
        "tests.trials.test_reg",
    )
    assert inspect.signature(made) == inspect.signature(function) == made.signature
    assert (made.is_async, asynchronous.is_async) == (False, True)
    assert made.call(1, second="y") == "1y"


async def test_b135_an_async_job_stays_async() -> None:
    """An async job can be awaited where it is, like the function itself."""
    assert await job(coroutine_function, name="trial.async").acall(3) == 3
    assert await job(function, name="trial.sync").acall(3) == "3x"


def test_b135_a_direct_call_says_what_to_write() -> None:
    """Calling a job is refused, with both ways of running it."""
    made = job(function, name="trial.called")

    with pytest.raises(TypeError, match=r"function\.enqueue\(\.\.\.\).*function\.call\(\.\.\.\)"):
        made(1)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("decorate", "message"),
    [
        (lambda: job("email"), "takes a function, not 'email'; options are keywords"),
        (lambda: job(object), "takes a function"),
        (lambda: job(lambda: None), "not at module level"),
        (lambda: job(staticmethod(function)), "takes a function"),
        (lambda: job(job(function, name="trial.twice")), "takes a function"),
        (lambda: job(function, name=5), "name"),
        (lambda: job(function, name=b"bytes"), "name"),
        (lambda: job(function, takes_context=True), "first parameter is 'context'"),
        (lambda: job(function, queue=None), "queue"),
        (lambda: job(function, retry="3"), "retry"),
        (lambda: job(function, timeout="0s"), "timeout"),
        (lambda: job(function, priority=True), "priority"),
        (lambda: job(function, fatal_on=["x"]), "fatal_on"),
    ],
)
def test_b135_a_definition_that_cannot_work_is_refused(
    decorate: Callable[[], Any], message: str
) -> None:
    """A definition that could never run is refused where it is written, naming the option."""
    with pytest.raises(Exception, match=message) as caught:
        decorate()

    assert type(caught.value).__name__ == "InvalidJob"


def test_b135_generators_are_refused() -> None:
    """A generator is refused, since its body would never run."""

    def generator():  # type: ignore[no-untyped-def]
        yield 1

    with pytest.raises(Exception, match="generator"):
        job(generator, name="trial.generator")


def test_b137_a_package_of_jobs_is_discovered_whole(project: Project) -> None:
    """Every module of a jobs package is found, however deep; the worker lists the jobs."""
    project.write("shop/jobs/__init__.py", "")
    project.write("shop/jobs/mail.py", GOOD.format(name="send"))
    project.write("shop/jobs/deep/__init__.py", GOOD.format(name="outer"))
    project.write("shop/jobs/deep/er.py", GOOD.format(name="inner"))

    status, output = project.run("runworker", "--burst")

    assert status == 0, output
    for name in ("shop.jobs.mail.send", "shop.jobs.deep.outer", "shop.jobs.deep.er.inner"):
        assert name in output


def test_b137_an_error_in_a_part_of_a_package_stops_the_command(project: Project) -> None:
    """A broken module inside a jobs package is not skipped."""
    project.write("shop/jobs/__init__.py", "")
    project.write("shop/jobs/deep/__init__.py", "import no_such_module_anywhere\n")

    status, output = project.run("check")

    assert status == 1
    assert "No module named 'no_such_module_anywhere'" in output


def test_b137_a_worker_without_jobs_gives_a_hint(project: Project) -> None:
    """A worker that found no jobs says where jobs are looked for."""
    status, output = project.run("runworker", "--burst")

    assert status == 0, output
    assert "none found; jobs are defined in the jobs.py of an installed app" in output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import sys\nsys.exit(2)\n", "importing shop.jobs ended with sys.exit(2)"),
        ("import sys\nsys.exit(0)\n", "importing shop.jobs ended with sys.exit(0)"),
        ("raise SystemExit\n", "importing shop.jobs ended with sys.exit(None)"),
        ("input()\n", "EOFError"),
    ],
)
def test_b139_a_module_that_exits_is_named(text: str, message: str, project: Project) -> None:
    """Exiting at import, with any status, ends the worker with status 1 and the module's name."""
    project.write("shop/jobs.py", text)

    status, output = project.run("runworker", "--burst")

    assert status == 1
    assert message in output
    assert "shop/jobs.py" in output


def test_b139_a_module_that_starts_a_thread_does_not_hold_the_worker(project: Project) -> None:
    """A daemon thread that a jobs module started does not keep the worker from ending."""
    project.write(
        "shop/jobs.py",
        "import threading\n\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        + GOOD.format(name="hello"),
    )

    status, output = project.run("runworker", "--burst")

    assert status == 0, output
    assert "shop.jobs.hello" in output
