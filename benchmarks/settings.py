"""The Django project of the benchmark, the same for every product."""

from __future__ import annotations

import os

from benchmarks import common
from django_jobq.environ import Env

SECRET_KEY = "benchmarks"
DEBUG = False
USE_TZ = True
INSTALLED_APPS = ["benchmarks", "django_jobq"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": common.directory() / "db.sqlite3",
    }
}
if common.DATABASE_VARIABLE in os.environ:
    DATABASES = {"default": Env().db_url(common.DATABASE_VARIABLE)}
_ON_THE_BROKER = {
    "BACKEND": "django_jobq.backends.rabbitmq.RabbitMQBackend",
    "URL": common.URL,
    "OPTIONS": {"prefix": common.PREFIX},
}
JOBQ = {
    # The peers store nothing in the database.
    "default": {**_ON_THE_BROKER, "OUTBOX": "off", "HOLDS": "broker"},
    "stored": _ON_THE_BROKER,
}
if common.is_on(common.QUIET_VARIABLE):
    LOGGING = {
        "version": 1,
        "disable_existing_loggers": False,
        "loggers": {"django_jobq.jobs": {"level": "WARNING"}},
    }
