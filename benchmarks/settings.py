"""The Django project of the benchmark, the same for every product."""

from __future__ import annotations

from benchmarks import common

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
JOBQ = {
    "default": {
        "BACKEND": "django_jobq.backends.rabbitmq.RabbitMQBackend",
        "URL": common.URL,
        "OPTIONS": {"prefix": common.PREFIX},
    }
}
if common.is_on(common.QUIET_VARIABLE):
    LOGGING = {
        "version": 1,
        "disable_existing_loggers": False,
        "loggers": {"django_jobq.jobs": {"level": "WARNING"}},
    }
