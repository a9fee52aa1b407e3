"""The tables: every job that the database must remember.

Payloads are bytes, never JSON columns: a database may refuse what a broker carried. All moments are
of the database's clock. What may be done to a row, and by whom, is written in store/.
"""

from __future__ import annotations

import datetime as dt

from django.db import models
from django.utils.translation import gettext_lazy as _


class StoredJob(models.Model):
    """An envelope with the time at which it is due; one row per job and alias.

    The body alone is published. What stands beside it is for queries and for people to read, and
    may be cut or escaped.
    """

    class Kind(models.TextChoices):
        """Tell why a job is stored."""

        FRESH = "fresh", _("just enqueued")
        OUTBOX = "outbox", _("undelivered")
        HOLD = "hold", _("waiting")

    alias = models.CharField(_("backend"), max_length=100)
    job_id = models.UUIDField(_("job id"))
    kind = models.CharField(max_length=10, choices=Kind.choices)
    queue = models.CharField(_("queue"), max_length=255)
    job = models.CharField(_("job"), max_length=255)
    priority = models.PositiveSmallIntegerField(default=0)
    front = models.BooleanField(default=False)
    attempt = models.PositiveBigIntegerField(default=1)
    deferrals = models.PositiveBigIntegerField(default=0)
    body = models.BinaryField()
    reason = models.TextField(_("reason"), blank=True)
    due_at = models.DateTimeField(_("due"))
    created_at = models.DateTimeField(_("stored"))
    token = models.CharField(max_length=32, editable=False)
    claimable_at = models.DateTimeField(editable=False)
    leased_by = models.CharField(max_length=255, blank=True, editable=False)
    failures = models.PositiveIntegerField(default=0, editable=False)
    last_error = models.TextField(blank=True, editable=False)
    read_at: dt.datetime
    """The time of the database when the row was claimed; no column."""

    class Meta:
        verbose_name = _("stored job")
        verbose_name_plural = _("stored jobs")
        default_permissions = ("view",)
        constraints = [
            models.UniqueConstraint(fields=["job_id", "alias"], name="jobq_storedjob_once"),
        ]
        indexes = [
            models.Index(
                fields=["kind", "alias", "claimable_at", "id"], name="jobq_storedjob_next"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.job} ({self.job_id})"


class JobStart(models.Model):
    """How often a job was started that was delivered again, without any outcome so far."""

    alias = models.CharField(_("backend"), max_length=100)
    job_id = models.UUIDField(_("job id"))
    starts = models.PositiveIntegerField(_("starts"))
    started_at = models.DateTimeField(_("last started"))

    class Meta:
        verbose_name = _("start without outcome")
        verbose_name_plural = _("starts without outcome")
        default_permissions = ("view",)
        constraints = [
            models.UniqueConstraint(fields=["job_id", "alias"], name="jobq_jobstart_once"),
        ]
        indexes = [models.Index(fields=["started_at"], name="jobq_jobstart_age")]

    def __str__(self) -> str:
        return f"{self.job_id}: {self.starts}"
