"""Settings of the example project; everything a machine may want to change is in the environment.

DEBUG         true: this is an example, not a deployment
SHOP_VAR      the folder for the database and the sent mail
SUPPLIER_URL  where `supplier.py` listens; the `demo` command starts it and sets this by itself
JOBQ_URL      where jobs go; memory:// runs them inside this process
"""

from __future__ import annotations

from pathlib import Path

import django

from django_jobq.environ import Env

BASE_DIR = Path(__file__).resolve().parent.parent

env = Env()

DEBUG = env.bool("DEBUG", default=True)
SECRET_KEY = env.str("SECRET_KEY", default="an-example-needs-no-secret-" + "0123456789" * 3)
ALLOWED_HOSTS = ["localhost", "127.0.0.1"]

VAR = Path(env.str("SHOP_VAR", default=str(BASE_DIR / "var")))
VAR.mkdir(parents=True, exist_ok=True)

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_jobq",
    "shop",
]

JOBQ = {"default": env.jobq_url(default="memory://")}

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": VAR / "shop.sqlite3",
        # The server's threads and the jobs write to one file: a writer takes its lock at once and
        # waits for its turn, instead of failing half-way with "database is locked".
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        },
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

MAIL_FOLDER = VAR / "mail"
if django.VERSION >= (6, 1):
    MAILERS = {"default": {"BACKEND": "shop.mail.FlakyEmailBackend"}}
else:
    EMAIL_BACKEND = "shop.mail.FlakyEmailBackend"
DEFAULT_FROM_EMAIL = "The Small Shop <orders@shop.example>"

SUPPLIER_URL = env.str("SUPPLIER_URL", default="http://127.0.0.1:8100")

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "config.urls"

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

STATIC_URL = "static/"
LANGUAGE_CODE = "en-gb"
TIME_ZONE = "UTC"
USE_TZ = True

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "line": {
            "format": "{asctime}  {levelname:<7}  {message}",
            "datefmt": "%H:%M:%S",
            "style": "{",
        },
    },
    "handlers": {
        "jobs": {"class": "logging.StreamHandler", "formatter": "line"},
    },
    "loggers": {
        "django_jobq": {"handlers": ["jobs"], "level": "INFO", "propagate": False},
    },
}
