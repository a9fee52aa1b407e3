import asyncio
import json
import os
from typing import Any

SECRET_KEY = "project"
DEBUG = os.environ.get("PROJECT_DEBUG") == "1"
USE_TZ = True
INSTALLED_APPS = ["project", "django_jobq"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
JOBQ: dict[str, Any] = {
    "default": {
        "BACKEND": "project.backend.SeededMemoryBackend",
        "QUEUES": ["default", "email", "bulk"],
    }
}
if os.environ.get("PROJECT_MEMORY") == "1":
    JOBQ["memory"] = {"BACKEND": "django_jobq.backends.memory.MemoryBackend"}
if "PROJECT_LOGGING" in os.environ:
    LOGGING = json.loads(os.environ["PROJECT_LOGGING"])


def _refuse(*args: object) -> None:
    raise NotImplementedError


if os.environ.get("PROJECT_NO_SIGNAL_HANDLERS") == "1":
    # A loop as on Windows.
    asyncio.SelectorEventLoop.add_signal_handler = _refuse  # type: ignore[assignment]
