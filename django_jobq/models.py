"""The tables: every job that the database must remember, and every job that was given up.

Payloads are bytes, never JSON columns: a database may refuse what a broker carried. All moments are
of the database's clock. What may be done to a row, and by whom, is written in store/.
"""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

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
        GONE = "gone", _("published or cancelled")

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


class DeadLetter(models.Model):
    """A job that was given up, or a body that is none, until an operator resolves it.

    The body is what came, byte for byte. What stands beside it was read from it, is for queries and
    for people, and may be cut or escaped.
    """

    class Cause(models.TextChoices):
        """Tell why a job was given up."""

        NO_HANDLER = "no_handler", _("no such job in the worker")
        DECODE = "decode", _("cannot be read")
        FATAL = "fatal", _("gave up at once")
        EXHAUSTED = "exhausted", _("last attempt failed")
        DELIVERY_LIMIT = "delivery_limit", _("started too often")
        EXPIRED = "expired", _("waited too long")
        REJECTED = "rejected", _("refused by the broker")
        NO_QUEUE = "no_queue", _("no such queue")

    class Resolution(models.TextChoices):
        """Tell what an operator did to a dead letter."""

        OPEN = "open", _("open")
        REQUEUED = "requeued", _("requeued")
        DISCARDED = "discarded", _("discarded")

    alias = models.CharField(_("backend"), max_length=100)
    job_id = models.UUIDField(_("job id"), null=True, blank=True)
    queue = models.CharField(_("queue"), max_length=255)
    job = models.CharField(_("job"), max_length=255, blank=True)
    cause = models.CharField(_("cause"), max_length=20, choices=Cause.choices)
    reason = models.TextField(_("reason"), blank=True)
    exception = models.CharField(_("exception"), max_length=255, blank=True)
    traceback = models.TextField(_("traceback"), blank=True)
    fingerprint = models.CharField(_("fingerprint"), max_length=64)
    attempts = models.PositiveBigIntegerField(_("attempts"), default=0)
    deferrals = models.PositiveBigIntegerField(_("deferrals"), default=0)
    errors = models.TextField(_("last errors"), blank=True)
    correlation_id = models.CharField(_("correlation id"), max_length=255, blank=True)
    body = models.BinaryField()
    enqueued_at = models.DateTimeField(_("enqueued"), null=True, blank=True)
    died_at = models.DateTimeField(_("died"))
    filed_at = models.DateTimeField(_("filed"))
    filing_key = models.CharField(max_length=64, editable=False)
    resolution = models.CharField(
        _("resolution"), max_length=10, choices=Resolution.choices, default=Resolution.OPEN
    )
    resolved_at = models.DateTimeField(_("resolved"), null=True, blank=True)
    token = models.CharField(max_length=32, blank=True, editable=False)

    class Meta:
        verbose_name = _("dead letter")
        verbose_name_plural = _("dead letters")
        default_permissions = ("view",)
        constraints = [
            models.UniqueConstraint(fields=["filing_key"], name="jobq_deadletter_once"),
        ]
        indexes = [
            models.Index(fields=["resolution", "alias", "id"], name="jobq_deadletter_open"),
            models.Index(fields=["job", "resolution", "id"], name="jobq_deadletter_job"),
            models.Index(fields=["queue", "resolution", "id"], name="jobq_deadletter_queue"),
            models.Index(fields=["fingerprint", "resolution", "id"], name="jobq_deadletter_alike"),
            models.Index(fields=["job_id"], name="jobq_deadletter_job_id"),
            models.Index(fields=["resolved_at"], name="jobq_deadletter_resolved"),
        ]

    def __str__(self) -> str:
        return f"{self.job or self.queue} ({self.job_id or self.cause})"

    @property
    def history(self) -> list[dict[str, Any]]:
        """Return the last errors, oldest first: ``attempt``, ``at``, ``type``, ``message``."""
        return json.loads(self.errors) if self.errors else []
