"""The shop's tables in the admin."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from shop.models import ImportProblem, ImportReport, Order, OrderJob, OrderLine, Product


class _ReadOnlyInline(admin.TabularInline):  # type: ignore[type-arg]
    extra = 0
    can_delete = False

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class OrderLineInline(_ReadOnlyInline):
    """The lines of an order."""

    model = OrderLine


class OrderJobInline(_ReadOnlyInline):
    """The jobs of an order."""

    model = OrderJob


class ImportProblemInline(_ReadOnlyInline):
    """The lines that were not imported."""

    model = ImportProblem


@admin.register(Product)
class ProductAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Edit products."""

    list_display = ("sku", "name", "price", "stock", "released", "packing", "featured")
    list_filter = ("featured", "packing")
    search_fields = ("sku", "name")


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Look at orders, their lines and their jobs."""

    list_display = (
        "__str__",
        "customer",
        "placed_at",
        "receipt_sent_at",
        "stock_synced_at",
        "packed_at",
    )
    search_fields = ("customer", "email")
    readonly_fields = ("receipt_sent_at", "stock_synced_at", "packed_at")
    inlines = (OrderLineInline, OrderJobInline)


@admin.register(ImportReport)
class ImportReportAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Look at imports and their problems."""

    list_display = ("__str__", "requested_at", "finished_at", "lines", "good", "bad", "blank")
    inlines = (ImportProblemInline,)

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Say no: an import is asked for on the shop's page."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: ImportReport | None = None) -> bool:
        """Say no: a report is an account of what happened."""
        return False
