from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True

    dependencies = []

    operations = [
        migrations.CreateModel(
            name="StoredJob",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("alias", models.CharField(max_length=100, verbose_name="backend")),
                ("job_id", models.UUIDField(verbose_name="job id")),
                (
                    "kind",
                    models.CharField(
                        choices=[
                            ("fresh", "just enqueued"),
                            ("outbox", "undelivered"),
                            ("hold", "waiting"),
                            ("gone", "published or cancelled"),
                        ],
                        max_length=10,
                    ),
                ),
                ("queue", models.CharField(max_length=255, verbose_name="queue")),
                ("job", models.CharField(max_length=255, verbose_name="job")),
                ("priority", models.PositiveSmallIntegerField(default=0)),
                ("front", models.BooleanField(default=False)),
                ("attempt", models.PositiveBigIntegerField(default=1)),
                ("deferrals", models.PositiveBigIntegerField(default=0)),
                ("body", models.BinaryField()),
                ("reason", models.TextField(blank=True, verbose_name="reason")),
                ("due_at", models.DateTimeField(verbose_name="due")),
                ("created_at", models.DateTimeField(verbose_name="stored")),
                ("token", models.CharField(editable=False, max_length=32)),
                ("claimable_at", models.DateTimeField(editable=False)),
                ("leased_by", models.CharField(blank=True, editable=False, max_length=255)),
                ("failures", models.PositiveIntegerField(default=0, editable=False)),
                ("last_error", models.TextField(blank=True, editable=False)),
            ],
            options={
                "verbose_name": "stored job",
                "verbose_name_plural": "stored jobs",
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(
                        fields=["kind", "alias", "claimable_at", "id"], name="jobq_storedjob_next"
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("job_id", "alias"), name="jobq_storedjob_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="JobStart",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("alias", models.CharField(max_length=100, verbose_name="backend")),
                ("job_id", models.UUIDField(verbose_name="job id")),
                ("starts", models.PositiveIntegerField(verbose_name="starts")),
                ("started_at", models.DateTimeField(verbose_name="last started")),
            ],
            options={
                "verbose_name": "start without outcome",
                "verbose_name_plural": "starts without outcome",
                "default_permissions": ("view",),
                "indexes": [models.Index(fields=["started_at"], name="jobq_jobstart_age")],
                "constraints": [
                    models.UniqueConstraint(fields=("job_id", "alias"), name="jobq_jobstart_once")
                ],
            },
        ),
        migrations.CreateModel(
            name="DeadLetter",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("alias", models.CharField(max_length=100, verbose_name="backend")),
                ("job_id", models.UUIDField(blank=True, null=True, verbose_name="job id")),
                ("queue", models.CharField(max_length=255, verbose_name="queue")),
                ("job", models.CharField(blank=True, max_length=255, verbose_name="job")),
                (
                    "cause",
                    models.CharField(
                        choices=[
                            ("no_handler", "no such job in the worker"),
                            ("decode", "cannot be read"),
                            ("fatal", "gave up at once"),
                            ("exhausted", "last attempt failed"),
                            ("delivery_limit", "started too often"),
                            ("expired", "waited too long"),
                            ("rejected", "refused by the broker"),
                            ("no_queue", "no such queue"),
                        ],
                        max_length=20,
                        verbose_name="cause",
                    ),
                ),
                ("reason", models.TextField(blank=True, verbose_name="reason")),
                (
                    "exception",
                    models.CharField(blank=True, max_length=255, verbose_name="exception"),
                ),
                ("traceback", models.TextField(blank=True, verbose_name="traceback")),
                ("fingerprint", models.CharField(max_length=64, verbose_name="fingerprint")),
                ("attempts", models.PositiveBigIntegerField(default=0, verbose_name="attempts")),
                ("deferrals", models.PositiveBigIntegerField(default=0, verbose_name="deferrals")),
                ("errors", models.TextField(blank=True, verbose_name="last errors")),
                (
                    "correlation_id",
                    models.CharField(blank=True, max_length=255, verbose_name="correlation id"),
                ),
                ("body", models.BinaryField()),
                (
                    "enqueued_at",
                    models.DateTimeField(blank=True, null=True, verbose_name="enqueued"),
                ),
                ("died_at", models.DateTimeField(verbose_name="died")),
                ("filed_at", models.DateTimeField(verbose_name="filed")),
                ("filing_key", models.CharField(editable=False, max_length=64)),
                (
                    "resolution",
                    models.CharField(
                        choices=[
                            ("open", "open"),
                            ("requeued", "requeued"),
                            ("discarded", "discarded"),
                        ],
                        default="open",
                        max_length=10,
                        verbose_name="resolution",
                    ),
                ),
                (
                    "resolved_at",
                    models.DateTimeField(blank=True, null=True, verbose_name="resolved"),
                ),
                ("token", models.CharField(blank=True, editable=False, max_length=32)),
            ],
            options={
                "verbose_name": "dead letter",
                "verbose_name_plural": "dead letters",
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(fields=["resolution", "alias", "id"], name="jobq_deadletter_open"),
                    models.Index(fields=["job", "resolution", "id"], name="jobq_deadletter_job"),
                    models.Index(
                        fields=["queue", "resolution", "id"], name="jobq_deadletter_queue"
                    ),
                    models.Index(
                        fields=["fingerprint", "resolution", "id"], name="jobq_deadletter_alike"
                    ),
                    models.Index(fields=["job_id"], name="jobq_deadletter_job_id"),
                    models.Index(fields=["resolved_at"], name="jobq_deadletter_resolved"),
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("filing_key",), name="jobq_deadletter_once")
                ],
            },
        ),
    ]
