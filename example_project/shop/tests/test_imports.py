"""An import fills in its report, and a second one gives the same products."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from django.test import Client
from django.urls import reverse

from shop.data.make_catalogue import build
from shop.imports import import_catalogue
from shop.models import ImportReport, Product
from shop.tests.worker import run_jobs

if TYPE_CHECKING:
    from pytest_django import DjangoCaptureOnCommitCallbacks

pytestmark = pytest.mark.django_db


@pytest.fixture
def report(
    client: Client, django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks
) -> ImportReport:
    """Ask for an import on its page and let it happen."""
    with django_capture_on_commit_callbacks(execute=True):
        client.post(reverse("imports"))
    run_jobs()
    return ImportReport.objects.get()


def test_the_report_accounts_for_every_line(report: ImportReport) -> None:
    built = build()
    assert report.finished_at
    assert (report.lines, report.header) == (built.lines, 1)
    assert (report.good, report.blank) == (built.good, built.blank)
    assert (report.bad, report.continued) == (len(built.broken), built.continued)
    parts = (report.header, report.good, report.bad, report.blank, report.continued)
    assert sum(parts) == report.lines
    assert {problem.line: problem.kind for problem in report.problems.all()} == built.broken
    assert Product.objects.count() == report.created == report.good


def test_a_second_import_gives_the_same_products(report: ImportReport) -> None:
    before = list(Product.objects.order_by("sku").values())
    again = ImportReport.objects.create(file_name=report.file_name)
    import_catalogue(again.pk, build().data)
    again.refresh_from_db()
    assert (again.good, again.created) == (report.good, 0)
    assert list(Product.objects.order_by("sku").values()) == before


def test_an_import_that_runs_twice_reports_once(report: ImportReport) -> None:
    import_catalogue(report.pk, build().data)
    assert report.problems.count() == report.bad


def test_the_page_shows_the_problems_and_one_kind_of_them(
    client: Client, report: ImportReport
) -> None:
    page = client.get(report.get_absolute_url()).text
    assert "no line is missing from the account" in page
    assert "the file ends in the middle of this line" in page
    dates = client.get(report.get_absolute_url(), {"kind": "date"}).text
    assert "is no date like 2024-05-31" in dates
    assert "the file ends in the middle of this line" not in dates
