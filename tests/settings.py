import os
import tempfile
from pathlib import Path

import django
import environ

env = environ.Env()
# The store's own database: a file, because databases in memory know no waiting, or what
# `python -m tests.databases` names.
FILE = Path(tempfile.gettempdir(), f"jobq-tests-{os.getpid()}.sqlite3")
STORED = env.db_url("JOBQ_TEST_DATABASE", default=f"sqlite:///{FILE}")
if STORED["ENGINE"].endswith("mysql"):
    import pymysql

    pymysql.version_info = (2, 2, 1, "final", 0)  # what Django asks of mysqlclient
    pymysql.install_as_MySQLdb()
SQLITE = STORED["ENGINE"].endswith("sqlite3")
STORED["TEST"] = {"NAME": str(FILE) if SQLITE else FILE.stem.replace("-", "_"), "DEPENDENCIES": []}

SECRET_KEY = "tests"
DEBUG = False
USE_TZ = True
INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "tests.app",
    # Last on purpose: an app's models may import its jobs before ours is ready.
    "django_jobq",
]
DATABASES = {
    "default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
    "other": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"},
    "stored": STORED,
}
ROOT_URLCONF = "tests.app.urls"
JOBQ = {"default": {"BACKEND": "django_jobq.backends.memory.MemoryBackend"}}
if django.VERSION >= (6, 1):
    MAILERS = {"default": {"BACKEND": "django.core.mail.backends.locmem.EmailBackend"}}
