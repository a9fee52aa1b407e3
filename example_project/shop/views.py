"""The pages of the shop."""

from __future__ import annotations

from django.core.paginator import Paginator
from django.db import transaction
from django.db.models import Count, Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_http_methods, require_safe

from shop import jobs
from shop.forms import CustomerForm, ItemFormSet
from shop.imports import SHIPPED
from shop.models import ImportReport, Order, ProblemKind, Product
from shop.orders import OutOfStockError, place_order

PAGE = 24


@require_safe
def products(request: HttpRequest) -> HttpResponse:
    """Show the products, those of the front page first."""
    words = request.GET.get("q", "").strip()
    found = Product.objects.filter(Q(name__icontains=words) | Q(sku__icontains=words))
    page = Paginator(found, PAGE).get_page(request.GET.get("page"))
    return render(request, "shop/products.html", {"page": page, "words": words})


@require_http_methods(["GET", "HEAD", "POST"])
def new_order(request: HttpRequest) -> HttpResponse:
    """Show the order form, or place the order that was filled in."""
    customer = CustomerForm(request.POST or None, label_suffix="")
    items = ItemFormSet(
        request.POST or None,
        initial=_wanted(request),
        prefix="items",
        form_kwargs={"label_suffix": ""},
    )
    if request.method == "POST" and customer.is_valid() and items.is_valid():
        try:
            order = place_order(**customer.cleaned_data, items=items.items())
        except OutOfStockError as error:
            customer.add_error(None, str(error))
        else:
            return redirect(order)
    context = {
        "customer": customer,
        "items": items,
        "articles": Product.objects.filter(featured=True),
    }
    return render(request, "shop/new_order.html", context)


def _wanted(request: HttpRequest) -> list[dict[str, str]]:
    return [{"sku": request.GET["sku"]}] if "sku" in request.GET else []


@require_safe
def orders(request: HttpRequest) -> HttpResponse:
    """Show the latest orders and where their jobs stand."""
    found = Order.objects.prefetch_related("jobs", "lines__product")
    page = Paginator(found, PAGE).get_page(request.GET.get("page"))
    return render(request, "shop/orders.html", {"page": page})


@require_safe
def order(request: HttpRequest, pk: int) -> HttpResponse:
    """Show an order and what became of its jobs."""
    found = get_object_or_404(Order.objects.prefetch_related("jobs", "lines__product"), pk=pk)
    pending = any(not job.has_ended for job in found.jobs.all())
    return render(request, "shop/order.html", {"order": found, "pending": pending})


@require_http_methods(["GET", "HEAD", "POST"])
def imports(request: HttpRequest) -> HttpResponse:
    """Show the imports so far, or ask for another one."""
    if request.method == "POST":
        return redirect(_request_import())
    return render(request, "shop/imports.html", {"reports": ImportReport.objects.all()[:PAGE]})


@transaction.atomic
def _request_import() -> ImportReport:
    report = ImportReport.objects.create(file_name=SHIPPED.name)
    about = f"import {report.pk}"
    jobs.import_catalogue.using(correlation_id=about).enqueue(report.pk)
    return report


@require_safe
def import_report(request: HttpRequest, pk: int) -> HttpResponse:
    """Show the account of an import: its numbers, and each line that was not imported."""
    report = get_object_or_404(ImportReport, pk=pk)
    kind = request.GET.get("kind", "")
    problems = report.problems.filter(kind=kind) if kind else report.problems.all()
    counts = report.problems.order_by().values("kind").annotate(count=Count("pk"))
    context = {
        "report": report,
        "problems": problems,
        "kind": kind,
        "counts": sorted(
            ((row["kind"], ProblemKind(row["kind"]).label, row["count"]) for row in counts),
            key=lambda row: (-row[2], row[1]),
        ),
    }
    return render(request, "shop/import.html", context)
