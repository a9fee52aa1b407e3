"""What every test module shares: a clean registry and clean backends, and the contract record."""

import asyncio
import json
import os
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.management import call_command
from django.db import connections

from django_jobq.backends.handler import backends
from django_jobq.backends.memory import ManualClock, MemoryBackend
from django_jobq.conf import AliasSettings
from django_jobq.queues import QueueConfig
from django_jobq.registry import registry
from django_jobq.worker.stats import WorkerStats
from django_jobq.worker.worker import Worker
from tests.remote import Told

# The run on each database has a record of its own; the map reads all of them.
_DATABASE: str = settings.DATABASES["stored"]["ENGINE"].rpartition(".")[2]
_SUFFIX = f"-{_DATABASE}" if "JOBQ_TEST_DATABASE" in os.environ else ""
RECORD = Path(__file__).parent.parent / "build" / f"contract{_SUFFIX}.json"


@pytest.fixture(autouse=True)
def _clean_state() -> Iterator[None]:
    """Forget the jobs and backends that a test made."""
    jobs, conflicts = dict(registry._jobs), list(registry.conflicts)
    yield
    registry._jobs, registry.conflicts = jobs, conflicts
    registry._queue_names.clear()
    backends.reset()


@pytest.fixture
def memory() -> MemoryBackend:
    """Return the backend of the alias default, as the settings make it."""
    backend = backends["default"]
    assert isinstance(backend, MemoryBackend)
    return backend


@pytest.fixture(autouse=True)
def _close_loop_connections(request: pytest.FixtureRequest) -> Iterator[None]:
    """Close what the thread that serves event loops has opened; a server counts its sessions."""
    yield
    mark = request.node.get_closest_marker("django_db")
    if mark and "stored" in (mark.kwargs.get("databases") or ()):
        asyncio.run(sync_to_async(connections.close_all)())


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def clocked(clock: ManualClock) -> MemoryBackend:
    """Return the backend of the alias default on a clock that the test moves."""
    settings = AliasSettings(alias="default", backend="memory")
    backend = backends._backends["default"] = MemoryBackend(settings, clock=clock)
    return backend


@pytest.fixture
def told() -> Iterator[Told]:
    """Return what the signals of the producer tell."""
    told = Told()
    with told.listening():
        yield told


@pytest.fixture
def make_memory() -> Callable[..., MemoryBackend]:
    """Return a factory of memory backends of their own, by queue configurations."""

    def make(*queues: QueueConfig | str, **kwargs: Any) -> MemoryBackend:
        configs = [QueueConfig(name=q) if isinstance(q, str) else q for q in queues]
        settings = AliasSettings(
            alias="default",
            backend="memory",
            queues={config.name: config for config in configs or [QueueConfig(name="default")]},
            options=kwargs.pop("options", {}),
        )
        return MemoryBackend(settings, **kwargs)

    return make


@pytest.fixture
def drain() -> Callable[..., None]:
    """Run what is due on the calling thread, as a project's own test would."""

    def run(**options: Any) -> None:
        call_command("runworker", **{"burst": True, "verbosity": 0, **options})

    return run


@pytest.fixture
def work() -> Callable[..., WorkerStats]:
    """Run a worker with lanes of its own on the default backend until nothing is due."""

    def run(**options: Any) -> WorkerStats:
        worker = Worker(backends["default"], **{"burst": True, **options})
        return asyncio.run(worker.run())

    return run


# The contract record: which lines each test checks, on which backend, and how it ended. Tests may
# run in several processes, whose reports all reach the one that writes it.


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    if call.when == "call" or call.excinfo is not None:
        lines = [line for mark in item.iter_markers("contract") for line in mark.args]
        if lines:
            entry = {"lines": lines, "backend": _backend(item), "passed": call.excinfo is None}
            item.user_properties.append(("contract", entry))
    report = yield
    # Captured text travels between processes as UTF-8, which has no lone surrogates.
    report.sections = [
        (name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections
    ]
    return report


def _backend(item: pytest.Item) -> str:
    name: str | None = getattr(getattr(item, "cls", None), "backend_name", None)
    if name is not None:
        return name
    mark = item.get_closest_marker("django_db")
    return _DATABASE if mark and "stored" in (mark.kwargs.get("databases") or ()) else "core"


class Record:
    """Collect the entries of all reports, and write them at the end."""

    def __init__(self) -> None:
        self.entries: dict[str, Any] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == "contract":
                self.entries[report.nodeid] = value

    def pytest_sessionfinish(self) -> None:
        if self.entries:
            RECORD.parent.mkdir(exist_ok=True)
            RECORD.write_text(json.dumps(self.entries, indent=1))


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Record())
