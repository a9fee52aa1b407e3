"""The documentation: its snippets run, and it names everything that the code offers.

A fenced ``python`` block runs as it stands. If its first line is a path such as ``# shop/jobs.py``,
it is (a further part of) that module; otherwise it belongs to the page. ``python settings`` blocks
are settings, whose values must be accepted. Tests in ``tests`` modules run.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import json
import logging.config
import re
import sys
import types
import unittest
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import BaseCommand
from django.db import transaction
from django.dispatch import Signal
from django.test import SimpleTestCase, override_settings

import django_jobq
from django_jobq import (
    Defer,
    EnqueuedJob,
    Fatal,
    Job,
    JobContext,
    conf,
    control,
    exceptions,
    job,
    serialization,
    signals,
)
from django_jobq.backends.base import BackendOptions
from django_jobq.backends.handler import backends, build
from django_jobq.backends.memory import MemoryBackend, MemoryDeadLetter, MemoryOptions
from django_jobq.call_options import CallOptions
from django_jobq.envelope import Envelope
from django_jobq.management.commands import (
    jobq_discard,
    jobq_enqueue,
    jobq_prune,
    jobq_requeue,
    jobq_status,
    runworker,
)
from django_jobq.models import DeadLetter
from django_jobq.queues import QueueConfig
from django_jobq.registry import registry
from django_jobq.retry import RetryPolicy
from django_jobq.status import BackendStatus, QueueStatus

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PACKAGE = ROOT / "django_jobq"

FENCE = re.compile(r"^```(?P<info>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
MODULE = re.compile(r"# ([\w/]+)\.py\n")

# The pages that one reader follows in this order, in one project.
COURSE = ("quickstart", "how-to/testing", "reference/jobs")


def page(name: str) -> str:
    return (DOCS / f"{name}.md").read_text(encoding="utf-8")


def blocks(name: str, *infos: str) -> list[tuple[int, str, str]]:
    """Return line number, info and body of the fenced blocks of a page."""
    text = page(name)
    found = [
        (text.count("\n", 0, match.start("body")), match["info"], match["body"])
        for match in FENCE.finditer(text)
    ]
    return [block for block in found if block[1] in infos]


PAGES = sorted(
    str(path.relative_to(DOCS).with_suffix(""))
    for path in DOCS.rglob("*.md")
    if "```python" in path.read_text(encoding="utf-8")
)


# Snippets


class Project:
    """A Django project that consists of the snippets of pages."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.modules: dict[str, types.ModuleType] = {}

    def run(self, name: str) -> None:
        """Run the blocks of a page in order."""
        own = self._module(f"page_{re.sub(r'[^a-z]', '_', name)}")
        for line, info, body in blocks(name, "python", "python settings"):
            code = compile("\n" * line + body, str(DOCS / f"{name}.md"), "exec")
            if info == "python settings":
                self._run_settings(code)
                continue
            first = MODULE.match(body)
            module = self._module(first[1].replace("/", ".")) if first else own
            exec(code, vars(module))
        # A page may define a job of another page anew, but not one of its own.
        for first, second in registry.conflicts:
            assert first.func.__code__.co_filename != second.func.__code__.co_filename
        registry.conflicts.clear()

    def _module(self, path: str) -> types.ModuleType:
        if path not in self.modules:
            module = self.modules[path] = types.ModuleType(path)
            self._monkeypatch.setitem(sys.modules, path, module)
            parent, _, child = path.rpartition(".")
            if parent:
                package = self._module(parent)
                package.__path__ = []
                setattr(package, child, module)
        return self.modules[path]

    def _run_settings(self, code: types.CodeType) -> None:
        namespace: dict[str, Any] = {}
        exec(code, namespace)
        values = {key: value for key, value in namespace.items() if key.isupper()}
        assert values
        ours = {key: value for key, value in values.items() if key.startswith("JOBQ")}
        assert ours.keys() <= conf._DEFAULTS.keys()
        with override_settings(**ours):
            for alias in conf.load_aliases().values():
                build(alias)
        if "LOGGING" in values:
            check_logging(values["LOGGING"])

    def test_modules(self) -> Iterator[types.ModuleType]:
        return (module for path, module in self.modules.items() if ".tests." in path)


def check_logging(config: dict[str, Any]) -> None:
    """Build what a LOGGING dict describes without installing it."""
    builder = logging.config.DictConfigurator(config)
    for filter_config in config.get("filters", {}).values():
        builder.configure_filter(filter_config)
    for formatter in config.get("formatters", {}).values():
        builder.configure_formatter(formatter)
    assert set(config.get("loggers", {})) <= our_loggers()


@pytest.fixture
def project(
    monkeypatch: pytest.MonkeyPatch, transactional_db: None, settings: Any
) -> Iterator[Project]:
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    receivers = {name: list(signal.receivers) for name, signal in our_signals().items()}
    yield Project(monkeypatch)
    for name, signal in our_signals().items():
        signal.receivers = receivers[name]
        signal.sender_receivers_cache.clear()


def run_django_test(case: type[SimpleTestCase]) -> None:
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    assert result.testsRun
    assert [text for _, text in result.errors + result.failures] == []


def run_pytest_test(test: Callable[..., None], request: pytest.FixtureRequest) -> None:
    """Call a test function with its fixtures, in a transaction as the mark django_db has it."""
    with transaction.atomic():
        test(**{name: request.getfixturevalue(name) for name in inspect.signature(test).parameters})
        transaction.set_rollback(True)


def test_the_course_runs_from_beginning_to_end(
    project: Project, request: pytest.FixtureRequest, settings: Any, mailoutbox: list[Any]
) -> None:
    for name in COURSE:
        project.run(name)
        settings.ROOT_URLCONF = "config.urls"
        call_command("runworker", burst=True, verbosity=0)
    ran = 0
    for module in list(project.test_modules()):
        for item in list(vars(module).values()):
            if getattr(item, "__module__", None) != module.__name__:
                continue
            mailoutbox.clear()
            if isinstance(item, type) and issubclass(item, SimpleTestCase):
                run_django_test(item)
                ran += 1
            elif inspect.isfunction(item) and item.__name__.startswith("test_"):
                run_pytest_test(item, request)
                ran += 1
    assert ran == 5


@pytest.mark.parametrize("name", [name for name in PAGES if name not in COURSE])
@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_the_snippets_of_a_page_run(project: Project, name: str) -> None:
    project.run("quickstart")
    project.run(name)
    call_command("runworker", burst=True, verbosity=0)
    memory = backends["default"]
    assert isinstance(memory, MemoryBackend)
    assert [
        letter.reason for queue in memory.queue_names() for letter in memory.dead_letters(queue)
    ] == []


def test_every_python_block_is_run() -> None:
    infos = {match["info"] for name in PAGES for match in FENCE.finditer(page(name))}
    assert {info for info in infos if info.startswith("py")} == {"python", "python settings"}


def test_the_jobs_of_the_quickstart_run(
    project: Project, capsys: pytest.CaptureFixture[str], client: Any, settings: Any
) -> None:
    project.run("quickstart")
    settings.ROOT_URLCONF = "config.urls"
    capsys.readouterr()
    assert client.get("/order/7/").content.startswith(b"Thank you.")
    call_command("runworker", burst=True)
    printed = capsys.readouterr().out
    assert "Receipt for order 7 sent" in printed
    # order 8 is the one that the page enqueues in a transaction
    assert "2 succeeded, 0 retried, 0 deferred, 0 dead" in printed


# The code, as its reference must describe it


def fields(kind: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


def keywords(func: Any) -> set[str]:
    parameters = inspect.signature(func).parameters.values()
    return {item.name for item in parameters if item.kind is inspect.Parameter.KEYWORD_ONLY}


def public(kind: type) -> set[str]:
    """Return the public methods and properties that a class defines."""
    return {
        name
        for name, value in vars(kind).items()
        if not name.startswith("_") and (callable(value) or isinstance(value, property))
    }


def classes_of(module: types.ModuleType, base: type = BaseException) -> dict[str, type]:
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, base)
        and value.__module__ == module.__name__
    }


def our_exceptions() -> dict[str, type]:
    return classes_of(exceptions) | classes_of(control)


def our_signals() -> dict[str, Signal]:
    return {name: value for name, value in vars(signals).items() if isinstance(value, Signal)}


def sources() -> Iterator[str]:
    return (path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))


def found_in_sources(pattern: str) -> set[str]:
    return {name for source in sources() for name in re.findall(pattern, source)}


def our_loggers() -> set[str]:
    return found_in_sources(r'getLogger\("(django_jobq\.\w+)"\)')


def command_options(module: types.ModuleType) -> set[str]:
    def options(command: BaseCommand) -> set[str]:
        parser = command.create_parser("manage.py", "command")
        return {text for action in parser._actions for text in action.option_strings}

    return options(module.Command()) - options(BaseCommand())


def exit_statuses() -> set[str]:
    return {str(value) for name, value in vars(runworker).items() if name.startswith("EXIT_")}


def headers() -> set[str]:
    read = found_in_sources(r'headers\.get\("(\w+)"')
    written = found_in_sources(r'headers\["(\w+)"\]') | found_in_sources(r"with_headers\((\w+)=")
    return read | written


def section(name: str, heading: str) -> str:
    """Return the text under a heading, without code, to the next one of its rank or above."""
    rank = heading.index(" ")
    _, found, rest = FENCE.sub("", page(name)).partition(f"\n{heading}\n")
    assert found, f"{name}.md has no heading {heading!r}"
    return re.split(rf"^#{{1,{rank}}} ", rest, maxsplit=1, flags=re.MULTILINE)[0]


def rows(text: str) -> dict[str, str]:
    """Return the table rows by each name in the code style of their first column."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        if line.startswith("| `"):
            first = line.split("|")[1]
            for name in re.findall(r"`([^`(]+)[^`]*`", first):
                found[name.strip()] = line
    return found


SETTINGS, JOBS, COMMANDS = "reference/settings", "reference/jobs", "reference/commands"


@pytest.mark.parametrize(
    ("name", "heading", "expected"),
    [
        (SETTINGS, "## Project", set(conf._DEFAULTS)),
        (SETTINGS, "## Alias", {*conf._ALIAS_KEYS, *fields(QueueConfig), *fields(RetryPolicy)}),
        (SETTINGS, "### Queue keys", fields(QueueConfig)),
        (SETTINGS, "### Retry keys", fields(RetryPolicy)),
        (SETTINGS, "## Options of the memory backend", fields(MemoryOptions)),
        (JOBS, "## `@job`", keywords(job)),
        (JOBS, "## `Job`", (fields(Job) | public(Job))),
        (JOBS, "## `using()`", keywords(Job.using)),
        (JOBS, "## `EnqueuedJob`", fields(EnqueuedJob)),
        (JOBS, "## `JobContext`", fields(JobContext) | public(JobContext)),
        ("reference/signals", "# Signals", set(our_signals())),
        ("reference/exceptions", "## What the library raises", set(classes_of(exceptions))),
        ("reference/exceptions", "## What a job raises", set(classes_of(control))),
        (COMMANDS, "## `runworker`", command_options(runworker)),
        (COMMANDS, "## `jobq_enqueue`", command_options(jobq_enqueue)),
        (COMMANDS, "## `jobq_status`", command_options(jobq_status)),
        (COMMANDS, "## `jobq_requeue`", command_options(jobq_requeue)),
        (COMMANDS, "## `jobq_prune`", command_options(jobq_prune)),
        (COMMANDS, "### Keys of a backend", fields(BackendStatus) - {"alias"} | {"status"}),
        (COMMANDS, "### Keys of a queue", fields(QueueStatus) - {"name"}),
        ("reference/wire_format", "## Fields", fields(Envelope) | {"version"}),
        ("reference/wire_format", "## Headers", headers()),
        ("reference/wire_format", "## Tagged types", set(serialization._READERS)),
        ("how-to/logging", "# Logging", our_loggers()),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_tables_have_a_row_for_each_name(name: str, heading: str, expected: set[str]) -> None:
    text = section(name, heading) if heading.startswith("##") else page(name)
    expected = expected - ({"name"} if "Queue" in heading or heading == "## Alias" else set())
    found = set(rows(text))
    if heading == "# Signals":  # where a second table has the arguments
        found = {item for item in found if item.startswith("job_")}
    assert found == expected


def test_the_tags_that_are_written_are_those_that_are_read() -> None:
    assert {tag for _, tag, _ in serialization._TAGGED} | {"dict"} == set(serialization._READERS)


def test_the_options_of_call_and_using_agree() -> None:
    assert fields(CallOptions) == keywords(Job.using)


def test_the_options_of_every_backend_are_named_as_such() -> None:
    text = section(SETTINGS, "## Options of the memory backend")
    sentence = next(line for line in text.splitlines() if "every backend" in line)
    assert set(re.findall(r"`(\w+)`", sentence)) == fields(BackendOptions)


@pytest.mark.parametrize(
    ("name", "heading", "kind", "spelled"),
    [
        (SETTINGS, "### Queue keys", QueueConfig, {"retry": "none", "message_ttl": "none"}),
        (
            SETTINGS,
            "### Retry keys",
            RetryPolicy,
            {"delay": "required", "base": '`"1s"`', "max": '`"5m"`'},
        ),
        (
            SETTINGS,
            "## Options of the memory backend",
            MemoryOptions,
            {
                "max_payload": "131072",
                "max_pending": "no limit",
                "publish_timeout": '`"5s"`',
                "unknown_job_grace": '`"5m"`',
            },
        ),
        (JOBS, "## `JobContext`", JobContext, {"job_id": "a new one", "queue": '`"default"`'}),
    ],
)
def test_the_tables_tell_the_defaults(
    name: str, heading: str, kind: Any, spelled: dict[str, str]
) -> None:
    table = rows(section(name, heading))
    for field in dataclasses.fields(kind):
        if field.default is dataclasses.MISSING and field.name not in spelled:
            continue
        cell = table[field.name].split("|")[3].strip()
        if field.name in spelled:
            assert cell.startswith(spelled[field.name])
        else:
            assert cell.split(":")[0] in {
                str(field.default),
                f"`{field.default!r}`",
                *_quoted(field),
            }


def _quoted(field: dataclasses.Field[Any]) -> Iterable[str]:
    return [f'`"{field.default}"`'] if isinstance(field.default, str) else []


def test_the_defaults_that_pages_spell_out_are_right() -> None:
    assert (RetryPolicy().base, RetryPolicy().max) == (1.0, 300.0)
    options = MemoryOptions()
    assert (options.max_payload, options.publish_timeout) == (131072, 5.0)
    assert options.unknown_job_grace == 300.0
    assert rows(section("reference/commands", "## `runworker`"))["--concurrency"].split("|")[
        2
    ].strip() == str(runworker.DEFAULT_CONCURRENCY)


def test_both_commands_that_resolve_dead_letters_have_the_options_of_one() -> None:
    assert command_options(jobq_discard) == command_options(jobq_requeue)


def test_the_fields_of_a_dead_letter_are_listed() -> None:
    columns = {field.name for field in DeadLetter._meta.get_fields()}
    shown = columns - {"id", "filing_key", "token", "errors"} | {"history"}
    assert set(rows(section("how-to/dead_letters", "## What is on file"))) >= shown


def test_the_schemes_of_urls_are_named() -> None:
    text = section(SETTINGS, "## From a URL")
    assert all(f"`{scheme}`" in text for scheme in conf._SCHEMES)


def test_every_public_name_is_introduced() -> None:
    introduction = page(JOBS).split("\n## ")[0]
    assert set(re.findall(r"`(\w+)`", introduction)) == {"django_jobq", *django_jobq.__all__}


def test_every_constructor_of_a_policy_is_named() -> None:
    text = section(JOBS, "## `RetryPolicy`")
    made = {
        name
        for name, value in vars(RetryPolicy).items()
        if isinstance(value, classmethod) and not name.endswith("_json")
    }
    assert made == set(re.findall(r"`RetryPolicy\.(\w+)\(\)`", text))


def test_the_exception_trees_are_the_real_ones() -> None:
    drawn: dict[str, str] = {}
    for _, _, body in blocks("reference/exceptions", "text"):
        above: list[str] = []
        for line in body.splitlines():
            match = re.match(r"([│├└─ ]*)(\w+)", line)
            assert match
            above[len(match[1]) // 3 :] = [match[2]]
            if len(above) > 1:
                drawn[match[2]] = above[-2]
    real = {name: kind.__bases__[0].__name__ for name, kind in our_exceptions().items()}
    assert drawn == {name: base for name, base in real.items() if name != "JobqError"}


def test_the_attributes_of_exceptions_are_listed() -> None:
    table = rows(page("reference/exceptions"))
    for name, kind in our_exceptions().items():
        if "__init__" in vars(kind):
            stored = set(re.findall(r"self\.(\w+)", inspect.getsource(kind.__init__))) - {"args"}
            assert stored <= set(re.findall(r"`(\w+)`", table[name].split("|")[3])), name


def test_every_check_has_a_heading() -> None:
    ids = {f"jobq.{number}" for number in found_in_sources(r'"(E\d{3})"')}
    assert len(ids) >= 7
    headings = re.findall(r"^## (jobq\.E\d{3}): .+$", page("reference/checks"), re.MULTILINE)
    assert headings == sorted(ids)
    for check in ids:
        [text] = re.findall(
            rf"^## {check}: .+?(?=^## |\Z)", page("reference/checks"), re.MULTILINE | re.DOTALL
        )
        assert "**Cause.**" in text
        assert "**Remedy.**" in text


@pytest.mark.parametrize("name", ["reference/commands", "explanation/shutdown"])
def test_the_exit_statuses_are_listed(name: str) -> None:
    found = re.findall(r"^\| (\d+) \|", section(name, _exit_heading(name)), re.MULTILINE)
    assert set(found) == {"0", "1", *exit_statuses()}


def test_the_exit_status_of_the_status_command_is_told() -> None:
    text = section(COMMANDS, "### When something cannot be read")
    assert f"**{jobq_status.EXIT_UNAVAILABLE}**" in text


def _exit_heading(name: str) -> str:
    return "### Exit status" if name == "reference/commands" else "## Exit status"


def test_the_columns_of_a_dead_letter_are_named() -> None:
    row = rows(section("how-to/testing", "## What became of it"))["dead_letters"]
    assert set(re.findall(r"`(\w+)`", row)) == fields(MemoryDeadLetter)


# Behaviour that the reference promises


def provoke_every_signal(settings: Any) -> None:
    """Let jobs succeed, fail, be deferred, die, and not be published."""
    settings.JOBQ = {"default": {"BACKEND": conf.MEMORY_BACKEND, "OPTIONS": {"max_pending": 5}}}

    @job(name="docs.behave", retry={"max_attempts": 2, "backoff": "none"}, takes_context=True)
    def behave(context: JobContext, how: str) -> None:
        if how == "fail":
            raise ValueError(how)
        if how == "give up":
            raise Fatal
        if how == "defer" and not context.deferrals:
            raise Defer("0s")

    with transaction.atomic():
        for how in ("succeed", "fail", "give up", "defer", "succeed", "one too many"):
            behave.enqueue(how)
    call_command("runworker", burst=True, verbosity=0)


@pytest.mark.django_db(transaction=True)
def test_the_arguments_of_signals_are_listed(settings: Any) -> None:
    sent: dict[str, set[str]] = {}

    def receiver(name: str) -> Callable[..., None]:
        def note(sender: Any, signal: Signal, **kwargs: Any) -> None:
            sent[name] = set(kwargs)

        return note

    receivers = {name: receiver(name) for name in our_signals()}
    for name, signal in our_signals().items():
        signal.connect(receivers[name])
    try:
        provoke_every_signal(settings)
    finally:
        for name, signal in our_signals().items():
            signal.disconnect(receivers[name])
    table = rows(page("reference/signals"))
    listed = {
        name: set(re.findall(r"`(\w+)`", table[name].split("|")[3])) for name in our_signals()
    }
    assert sent == listed
    assert set().union(*sent.values()) <= set(table)


def test_the_example_of_the_wire_format_is_an_envelope() -> None:
    [(_, _, body)] = blocks("reference/wire_format", "json")
    envelope = Envelope.decode(body.encode())
    assert json.loads(envelope.encode()) == json.loads(body)
    assert set(json.loads(body)) == fields(Envelope)
    assert RetryPolicy.from_json(envelope.headers["retry"]).to_json() == envelope.headers["retry"]


def test_the_examples_of_tagged_types_are_read() -> None:
    for tag, row in rows(section("reference/wire_format", "## Tagged types")).items():
        [example] = re.findall(r"`(\{.*\})`", row)
        tree = json.loads(example)
        assert tree["$t"] == tag
        assert serialization.dump(serialization.load(tree), "example") == tree


def test_importing_the_documented_modules_works() -> None:
    mentioned = {
        path for name in PAGES for path in re.findall(r"`(django_jobq\.[a-z_.]+)`", page(name))
    }
    for path in mentioned - our_loggers():
        importlib.import_module(path)
