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
    ]
