"""Store a catalogue: its articles as products, and the account of its lines as a report."""

from __future__ import annotations

from pathlib import Path

from django.db import transaction
from django.utils import timezone

from shop.catalogue import Article, Catalogue, read_catalogue
from shop.models import ImportProblem, ImportReport, Product

SHIPPED = Path(__file__).resolve().parent / "data" / "catalogue.csv"
BATCH = 500


def import_catalogue(report_id: int, data: bytes) -> None:
    """Import a file and fill in its report; running again for the same report changes nothing."""
    catalogue = read_catalogue(data)
    with transaction.atomic():
        report = ImportReport.objects.select_for_update().get(pk=report_id)
        if report.finished_at:
            return
        report.created = _store(catalogue.articles)
        _fill_in(report, catalogue)


def _store(articles: list[Article]) -> int:
    """Insert or update the products by their SKU and return how many are new."""
    before = Product.objects.count()
    Product.objects.bulk_create(
        (
            Product(
                sku=article.sku,
                name=article.name,
                price=article.price,
                stock=article.stock,
                released=article.released,
            )
            for article in articles
        ),
        batch_size=BATCH,
        update_conflicts=True,
        unique_fields=["sku"],
        update_fields=["name", "price", "stock", "released"],
    )
    return Product.objects.count() - before


def _fill_in(report: ImportReport, catalogue: Catalogue) -> None:
    report.lines = catalogue.lines
    report.header = catalogue.header
    report.good = len(catalogue.articles)
    report.bad = len(catalogue.problems)
    report.blank = catalogue.blank
    report.continued = catalogue.continued
    report.finished_at = timezone.now()
    report.save()
    ImportProblem.objects.bulk_create(
        ImportProblem(
            report=report,
            line=problem.line,
            kind=problem.kind,
            what=problem.what,
            read=problem.read,
        )
        for problem in catalogue.problems
    )
