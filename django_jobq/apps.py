"""The Django app: discover jobs, register checks, arm the in-process worker."""

from __future__ import annotations

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _

from django_jobq import checks, conf, producer, registry
from django_jobq.worker import embedded


class JobqConfig(AppConfig):
    """Configure the app; its label is the prefix of tables, permissions and check ids."""

    name = "django_jobq"
    label = "jobq"
    verbose_name = _("Job queue")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Import every app's jobs; nothing connects here."""
        checks.register()
        producer.before_publish(embedded.start_if_needed)
        registry.autodiscover(conf.setting("JOBQ_AUTODISCOVER"))
