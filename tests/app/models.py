from django.db import models

# An app whose models need its jobs imports them before the app registry is ready.
from tests.app import jobs  # noqa: F401


class Row(models.Model):
    """Something a job may read and write."""

    name = models.CharField(max_length=100)

    class Meta:
        app_label = "testapp"

    def __str__(self) -> str:
        return self.name
