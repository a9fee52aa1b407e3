"""The tables of the shop."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    """Create them."""

    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="ImportReport",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("file_name", models.CharField(max_length=200)),
                ("requested_at", models.DateTimeField(auto_now_add=True)),
                ("finished_at", models.DateTimeField(blank=True, editable=False, null=True)),
                ("lines", models.PositiveIntegerField(default=0)),
                ("header", models.PositiveIntegerField(default=0)),
                ("good", models.PositiveIntegerField(default=0)),
                ("bad", models.PositiveIntegerField(default=0)),
                ("blank", models.PositiveIntegerField(default=0)),
                (
                    "continued",
                    models.PositiveIntegerField(
                        default=0,
                        help_text="lines that go on inside a quoted field of the line before",
                    ),
                ),
                ("created", models.PositiveIntegerField(default=0, verbose_name="new products")),
            ],
            options={
                "ordering": ["-pk"],
            },
        ),
        migrations.CreateModel(
            name="Order",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("customer", models.CharField(max_length=80)),
                ("email", models.EmailField(max_length=254)),
                ("placed_at", models.DateTimeField(auto_now_add=True)),
                ("receipt_sent_at", models.DateTimeField(blank=True, editable=False, null=True)),
                ("stock_synced_at", models.DateTimeField(blank=True, editable=False, null=True)),
                ("packed_at", models.DateTimeField(blank=True, editable=False, null=True)),
            ],
            options={
                "ordering": ["-pk"],
            },
        ),
        migrations.CreateModel(
            name="Product",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("sku", models.CharField(max_length=20, unique=True, verbose_name="SKU")),
                ("name", models.CharField(max_length=120)),
                ("price", models.DecimalField(decimal_places=2, max_digits=8)),
                ("stock", models.PositiveIntegerField(default=0)),
                ("released", models.DateField()),
                (
                    "packing",
                    models.CharField(
                        choices=[
                            ("box", "fits into a box"),
                            ("too_big", "is too big for any box"),
                            ("slippery", "slips out of every hand"),
                        ],
                        default="box",
                        max_length=10,
                    ),
                ),
                ("featured", models.BooleanField(default=False, verbose_name="on the front page")),
            ],
            options={
                "ordering": ["-featured", "name", "sku"],
            },
        ),
        migrations.CreateModel(
            name="ImportProblem",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("line", models.PositiveIntegerField()),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("columns", "columns"),
                            ("quotes", "quotes"),
                            ("encoding", "encoding"),
                            ("control", "control characters"),
                            ("sku", "SKU"),
                            ("duplicate", "duplicates"),
                            ("name", "name"),
                            ("too_long", "too long"),
                            ("formula", "formulas"),
                            ("price", "price"),
                            ("stock", "stock"),
                            ("date", "date"),
                        ],
                        max_length=10,
                    ),
                ),
                ("what", models.CharField(max_length=200, verbose_name="what is wrong")),
                ("read", models.TextField(verbose_name="what was read")),
                (
                    "report",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="problems",
                        to="shop.importreport",
                    ),
                ),
            ],
            options={
                "ordering": ["line", "pk"],
            },
        ),
        migrations.CreateModel(
            name="OrderJob",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("title", models.CharField(max_length=40)),
                ("job_id", models.UUIDField(unique=True, verbose_name="job id")),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("waiting", "waiting"),
                            ("running", "running"),
                            ("retrying", "failed, will be tried again"),
                            ("deferred", "put off"),
                            ("done", "done"),
                            ("dead", "given up"),
                        ],
                        default="waiting",
                        max_length=10,
                    ),
                ),
                ("attempt", models.PositiveIntegerField(default=0)),
                ("deferrals", models.PositiveIntegerField(default=0)),
                ("note", models.CharField(blank=True, max_length=300)),
                ("changed_at", models.DateTimeField(auto_now=True)),
                (
                    "order",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="jobs",
                        to="shop.order",
                    ),
                ),
            ],
            options={
                "ordering": ["pk"],
            },
        ),
        migrations.CreateModel(
            name="OrderLine",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("quantity", models.PositiveSmallIntegerField()),
                ("unit_price", models.DecimalField(decimal_places=2, max_digits=8)),
                (
                    "order",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="lines",
                        to="shop.order",
                    ),
                ),
                (
                    "product",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="order_lines",
                        to="shop.product",
                    ),
                ),
            ],
            options={
                "ordering": ["pk"],
            },
        ),
    ]
