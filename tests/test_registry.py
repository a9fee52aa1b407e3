"""The registry of jobs, and the discovery of the modules that define them."""

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from django.test import override_settings

from django_jobq import job
from django_jobq.exceptions import InvalidJob
from django_jobq.registry import Registry, autodiscover, place_of, registry
from tests.app.jobs import note

MakeApp = Callable[[dict[str, str]], str]


def first() -> None: ...


def second() -> None: ...


@pytest.fixture
def make_app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeApp]:
    """Return a factory of installed apps, from their files; it returns the name of the app."""
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)

    def make(files: dict[str, str]) -> str:
        for path, text in {"__init__.py": "", **files}.items():
            file = tmp_path / "discovered" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        importlib.invalidate_caches()
        return "discovered"

    yield make
    for name in set(sys.modules) - before:
        if name.startswith("discovered"):
            del sys.modules[name]


def test_a_job_is_found_by_its_name() -> None:
    assert registry.find("tests.app.jobs.note") is note
    assert registry.find("tests.app.jobs.missing") is None
    assert note in list(registry)


def test_the_registry_counts_and_may_grow_while_it_is_walked() -> None:
    before = len(registry)
    for number, _ in enumerate(registry):
        job(name=f"grown-{number}")(first)
    assert len(registry) == 2 * before


def test_queue_names_are_those_of_one_alias() -> None:
    own = Registry()
    for name, queue, backend in [
        ("a", "email", "default"),
        ("b", "email", "default"),
        ("c", "bulk", "default"),
        ("d", "far", "other"),
    ]:
        own.register(job(name=name, queue=queue, backend=backend)(first))
    assert own.queue_names("default") == {"email", "bulk"}
    assert own.queue_names("other") == {"far"}
    assert own.queue_names("missing") == set()


@pytest.mark.contract(54)
def test_two_functions_under_one_name_are_a_conflict_and_the_last_one_stays() -> None:
    own = Registry()
    one, two = job(name="same")(first), job(name="same")(second)
    own.register(one)
    own.register(two)
    assert own.conflicts == [(one, two)]
    assert own.find("same") is two


@pytest.mark.contract(54)
def test_the_same_function_again_is_none() -> None:
    own = Registry()
    one, two = job(name="same")(first), job(name="same", queue="email")(first)
    own.register(one)
    own.register(two)
    assert own.conflicts == []
    assert own.find("same") is two
    assert len(own) == 1


@pytest.mark.contract(54)
def test_importing_a_module_again_replaces_its_jobs(make_app: MakeApp) -> None:
    make_app({"jobs.py": "from django_jobq import job\n@job\ndef send() -> None: ...\n"})
    module = importlib.import_module("discovered.jobs")
    before = module.send
    importlib.reload(module)
    assert registry.conflicts == []
    assert registry.find("discovered.jobs.send") is module.send
    assert module.send is not before


def test_a_place_names_file_line_and_function() -> None:
    line = first.__code__.co_firstlineno
    assert place_of(first) == f"{__file__}:{line} ({__name__}.first)"


def test_the_jobs_of_every_app_are_imported(make_app: MakeApp) -> None:
    app = make_app(
        {"jobs.py": "from django_jobq import job\n@job\ndef send(pk: int) -> None: ...\n"}
    )
    with override_settings(INSTALLED_APPS=[app]):
        autodiscover("jobs")
    assert registry.find("discovered.jobs.send") is not None


def test_installing_an_app_imports_its_jobs(make_app: MakeApp) -> None:
    app = make_app({"jobs.py": "from django_jobq import job\n@job\ndef send() -> None: ...\n"})
    with override_settings(INSTALLED_APPS=["django_jobq", app]):
        assert registry.find("discovered.jobs.send") is not None


def test_a_package_is_imported_with_all_that_is_in_it(make_app: MakeApp) -> None:
    text = "from django_jobq import job\n@job\ndef send() -> None: ...\n"
    app = make_app(
        {
            "jobs/__init__.py": "",
            "jobs/mail.py": text,
            "jobs/orders/__init__.py": text,
            "jobs/orders/late.py": text,
        }
    )
    with override_settings(INSTALLED_APPS=[app]):
        autodiscover("jobs")
    assert sorted(found.name for found in registry if found.name.startswith("discovered")) == [
        "discovered.jobs.mail.send",
        "discovered.jobs.orders.late.send",
        "discovered.jobs.orders.send",
    ]


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (None, []),
        ([], []),
        ("", []),
        ("jobs", ["discovered.jobs.a"]),
        (["jobs"], ["discovered.jobs.a"]),
        (("tasks", "jobs"), ["discovered.jobs.a", "discovered.tasks.b"]),
        ("missing", []),
    ],
)
def test_the_names_of_the_modules_are_a_setting(names, found, make_app: MakeApp) -> None:
    app = make_app(
        {
            "jobs.py": "from django_jobq import job\n@job\ndef a() -> None: ...\n",
            "tasks.py": "from django_jobq import job\n@job\ndef b() -> None: ...\n",
        }
    )
    with override_settings(INSTALLED_APPS=[app]):
        autodiscover(names)
    assert sorted(item.name for item in registry if item.name.startswith("discovered")) == found


def test_an_app_without_jobs_is_skipped(make_app: MakeApp) -> None:
    app = make_app({})
    with override_settings(INSTALLED_APPS=[app]):
        autodiscover("jobs")
    assert "discovered.jobs" not in sys.modules


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"jobs.py": "import a_module_that_is_missing"}, "a_module_that_is_missing"),
        (
            {"jobs/__init__.py": "", "jobs/mail.py": "import a_module_that_is_missing"},
            "a_module_that_is_missing",
        ),
        (
            {
                "jobs/__init__.py": "",
                "jobs/sub/__init__.py": "import a_module_that_is_missing",
            },
            "a_module_that_is_missing",
        ),
    ],
)
def test_an_error_inside_a_module_is_not_hidden(
    files: dict[str, str], message: str, make_app: MakeApp
) -> None:
    app = make_app(files)
    with override_settings(INSTALLED_APPS=[app]), pytest.raises(ImportError, match=message):
        autodiscover("jobs")


@pytest.mark.parametrize("path", ["jobs.py", "jobs/mail.py"])
def test_a_module_that_exits_is_named(path: str, make_app: MakeApp) -> None:
    app = make_app(
        {"jobs/__init__.py": "", path: "import sys; sys.exit(3)"}
        if "/" in path
        else {path: "import sys; sys.exit(3)"}
    )
    module = f"discovered.{path.removesuffix('.py').replace('/', '.')}"
    with override_settings(INSTALLED_APPS=[app]), pytest.raises(InvalidJob) as caught:
        autodiscover("jobs")
    assert str(caught.value) == (
        f"importing {module} ended with sys.exit(3); a jobs module only defines jobs"
    )
