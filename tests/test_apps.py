"""The app: what may be imported when, and what ready() does."""

import subprocess
import sys
from pathlib import Path

import pytest
from django.apps import apps
from django.core.checks.registry import registry as check_registry

from django_jobq import producer
from django_jobq.backends.handler import backends
from django_jobq.checks import check_jobq
from django_jobq.registry import registry
from django_jobq.worker import embedded

ROOT = Path(__file__).parent.parent

PROJECT = {
    "settings.py": """
from django_jobq.conf import from_url

SECRET_KEY = "x"
INSTALLED_APPS = ["shop", "django_jobq"]
JOBQ = {"default": from_url("memory://?max_pending=9")}
""",
    "shop/__init__.py": "",
    "shop/models.py": """
from django.db import models

from shop.jobs import send_receipt


class Order(models.Model):
    def place(self):
        return send_receipt.enqueue(self.pk)
""",
    "shop/jobs.py": """
from django_jobq import Defer, RetryPolicy, job


@job(queue="email", retry=RetryPolicy.exponential(5))
def send_receipt(order_id: int) -> None:
    from shop.models import Order
""",
    "shop/late/__init__.py": "",
    "shop/late/jobs.py": "",
}


def run(code: str, *, path: Path = ROOT, **environment: str) -> list[str]:
    """Run code in a Python of its own in which warnings are errors; return the lines it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=path,
        env={"PYTHONPATH": str(ROOT), "PYTHONWARNDEFAULTENCODING": "1", **environment},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a project whose settings, models and jobs all import this library."""
    for path, text in PROJECT.items():
        file = tmp_path / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path


def test_it_is_imported_without_settings_and_without_a_client_library() -> None:
    code = """
import sys
import django_jobq
import django_jobq.store.holds, django_jobq.store.outbox
from django.apps import apps
from django.conf import settings

@django_jobq.job(retry=3, timeout="5s", name="a")
def a(pk): ...

a.using(delay="5m", priority=3).prepare(1)
print(settings.configured, apps.ready)
print(sorted({"aio_pika", "environ", "pika"} & set(sys.modules)))
late = ("django_jobq.models", "django_jobq.worker")
print([name for name in sys.modules if name.startswith(late)])
"""
    assert run(code) == ["False False", "[]", "[]"]


def test_settings_may_import_the_settings_module_of_ours(project: Path) -> None:
    code = """
import settings
print(settings.JOBQ)
from django.conf import settings as django_settings
print(django_settings.configured)
"""
    assert run(code, path=project) == [
        "{'default': {'BACKEND': 'django_jobq.backends.memory.MemoryBackend',"
        " 'OPTIONS': {'max_pending': 9}}}",
        "False",
    ]


def test_models_may_import_jobs_while_our_app_is_listed_last(project: Path) -> None:
    code = """
import django
django.setup()
from django.core.checks import run_checks
from django_jobq.backends.handler import backends
from django_jobq.registry import registry
from shop.models import Order, send_receipt
print(sorted(job.name for job in registry))
print(registry.find("shop.jobs.send_receipt") is send_receipt)
print(backends.opened())
print([message.id for message in run_checks(tags=["jobq"])])
"""
    assert run(code, path=project, DJANGO_SETTINGS_MODULE="settings") == [
        "['shop.jobs.send_receipt']",
        "True",
        "[]",
        # A memory backend outside of development.
        "['jobq.E005']",
    ]


def test_the_app_goes_by_the_label_of_its_tables() -> None:
    config = apps.get_app_config("jobq")
    assert (config.name, config.label, str(config.verbose_name)) == (
        "django_jobq",
        "jobq",
        "Job queue",
    )
    assert config.default_auto_field == "django.db.models.BigAutoField"


def test_ready_registers_the_check_and_the_worker_of_a_development_server() -> None:
    assert check_jobq in check_registry.registered_checks
    assert embedded.start_if_needed in producer._observers


def test_ready_may_be_called_again() -> None:
    apps.get_app_config("jobq").ready()
    assert producer._observers.count(embedded.start_if_needed) == 1
    assert registry.conflicts == []


@pytest.mark.contract(45)
def test_ready_opens_no_backend() -> None:
    apps.get_app_config("jobq").ready()
    assert backends.opened() == []


@pytest.mark.parametrize(("names", "imported"), [(None, False), ("jobs", True), ("late", True)])
def test_what_ready_discovers_is_a_setting(names, imported: bool, project: Path) -> None:
    with (project / "settings.py").open("a") as file:
        file.write(f"JOBQ_AUTODISCOVER = {names!r}\n")
    # Models that do not import the jobs, so that only the discovery does.
    (project / "shop" / "models.py").write_text("")
    module = f"shop.{names or 'jobs'}"
    code = f"""
import sys, django
django.setup()
print({module!r} in sys.modules)
"""
    assert run(code, path=project, DJANGO_SETTINGS_MODULE="settings") == [str(imported)]
