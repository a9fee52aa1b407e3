"""What the shop remembers: products, orders, what became of an order's jobs, and imports."""

from __future__ import annotations

from decimal import Decimal
from typing import ClassVar

from django.db import models
from django.urls import reverse


class Packing(models.TextChoices):
    """How an article takes being packed."""

    BOX = "box", "fits into a box"
    TOO_BIG = "too_big", "is too big for any box"
    SLIPPERY = "slippery", "slips out of every hand"


class Product(models.Model):
    """An article of the catalogue."""

    sku = models.CharField("SKU", max_length=20, unique=True)
    name = models.CharField(max_length=120)
    price = models.DecimalField(max_digits=8, decimal_places=2)
    stock = models.PositiveIntegerField(default=0)
    released = models.DateField()
    packing = models.CharField(max_length=10, choices=Packing.choices, default=Packing.BOX)
    featured = models.BooleanField("on the front page", default=False)

    class Meta:
        ordering: ClassVar = ["-featured", "name", "sku"]

    def __str__(self) -> str:
        return f"{self.name} ({self.sku})"


class Order(models.Model):
    """What a customer ordered, and when each of the order's jobs had its effect."""

    customer = models.CharField(max_length=80)
    email = models.EmailField()
    placed_at = models.DateTimeField(auto_now_add=True)
    receipt_sent_at = models.DateTimeField(null=True, blank=True, editable=False)
    stock_synced_at = models.DateTimeField(null=True, blank=True, editable=False)
    packed_at = models.DateTimeField(null=True, blank=True, editable=False)

    class Meta:
        ordering: ClassVar = ["-pk"]

    def __str__(self) -> str:
        return f"order {self.pk}"

    def get_absolute_url(self) -> str:
        """Return the address of the order's page."""
        return reverse("order", args=[self.pk])

    @property
    def total(self) -> Decimal:
        """Return what the order costs."""
        return sum((line.total for line in self.lines.all()), Decimal())


class OrderLine(models.Model):
    """One article of an order at the price of that day."""

    order = models.ForeignKey(Order, on_delete=models.CASCADE, related_name="lines")
    product = models.ForeignKey(Product, on_delete=models.PROTECT, related_name="order_lines")
    quantity = models.PositiveSmallIntegerField()
    unit_price = models.DecimalField(max_digits=8, decimal_places=2)

    class Meta:
        ordering: ClassVar = ["pk"]

    def __str__(self) -> str:
        return f"{self.quantity} × {self.product.name}"

    @property
    def total(self) -> Decimal:
        """Return the price of all pieces of the line."""
        return self.quantity * self.unit_price


class JobState(models.TextChoices):
    """Where one of an order's jobs stands."""

    WAITING = "waiting", "waiting"
    RUNNING = "running", "running"
    RETRYING = "retrying", "failed, will be tried again"
    DEFERRED = "deferred", "put off"
    DONE = "done", "done"
    DEAD = "dead", "given up"


class OrderJob(models.Model):
    """One job of an order as the customer service sees it; `tracking` keeps it up to date."""

    order = models.ForeignKey(Order, on_delete=models.CASCADE, related_name="jobs")
    title = models.CharField(max_length=40)
    job_id = models.UUIDField("job id", unique=True)
    state = models.CharField(max_length=10, choices=JobState.choices, default=JobState.WAITING)
    attempt = models.PositiveIntegerField(default=0)
    deferrals = models.PositiveIntegerField(default=0)
    note = models.CharField(max_length=300, blank=True)
    changed_at = models.DateTimeField(auto_now=True)

    class Meta:
        ordering: ClassVar = ["pk"]

    def __str__(self) -> str:
        return f"{self.title} for order {self.order_id}"

    @property
    def has_ended(self) -> bool:
        """Tell whether nothing more will happen by itself."""
        return self.state in {JobState.DONE, JobState.DEAD}


class ImportReport(models.Model):
    """The account of one catalogue import: every line of the file is in one of its numbers."""

    file_name = models.CharField(max_length=200)
    requested_at = models.DateTimeField(auto_now_add=True)
    finished_at = models.DateTimeField(null=True, blank=True, editable=False)
    lines = models.PositiveIntegerField(default=0)
    header = models.PositiveIntegerField(default=0)
    good = models.PositiveIntegerField(default=0)
    bad = models.PositiveIntegerField(default=0)
    blank = models.PositiveIntegerField(default=0)
    continued = models.PositiveIntegerField(
        default=0, help_text="lines that go on inside a quoted field of the line before"
    )
    created = models.PositiveIntegerField("new products", default=0)

    class Meta:
        ordering: ClassVar = ["-pk"]

    def __str__(self) -> str:
        return f"import {self.pk} of {self.file_name}"

    def get_absolute_url(self) -> str:
        """Return the address of the report's page."""
        return reverse("import", args=[self.pk])

    @property
    def updated(self) -> int:
        """Return how many good lines were about a product that was there already."""
        return self.good - self.created


class ProblemKind(models.TextChoices):
    """What can be wrong with a line."""

    COLUMNS = "columns", "columns"
    QUOTES = "quotes", "quotes"
    ENCODING = "encoding", "encoding"
    CONTROL = "control", "control characters"
    SKU = "sku", "SKU"
    DUPLICATE = "duplicate", "duplicates"
    NAME = "name", "name"
    TOO_LONG = "too_long", "too long"
    FORMULA = "formula", "formulas"
    PRICE = "price", "price"
    STOCK = "stock", "stock"
    DATE = "date", "date"


class ImportProblem(models.Model):
    """A line that was not imported: where it is, what is wrong with it, and what was read."""

    report = models.ForeignKey(ImportReport, on_delete=models.CASCADE, related_name="problems")
    line = models.PositiveIntegerField()
    kind = models.CharField(max_length=10, choices=ProblemKind.choices)
    what = models.CharField("what is wrong", max_length=200)
    read = models.TextField("what was read")

    class Meta:
        ordering: ClassVar = ["line", "pk"]

    def __str__(self) -> str:
        return f"line {self.line}: {self.what}"
