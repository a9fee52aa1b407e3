"""The settings of worker processes that tests start; JOBQ comes as JSON in the environment."""

import json
import os

from tests.settings import *  # noqa: F403

INSTALLED_APPS = ["tests.backends.rabbitmq", "django_jobq"]
if "JOBQ_TEST_STORED" in os.environ:
    DATABASES["stored"] |= json.loads(os.environ["JOBQ_TEST_STORED"])  # noqa: F405
JOBQ = json.loads(os.environ["JOBQ_TEST_SETTING"])
JOBQ_ON_DEAD_LETTER = os.environ.get("JOBQ_TEST_HOOK")
LOGGING = {
    "version": 1,
    "handlers": {"stderr": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["stderr"], "level": os.environ.get("JOBQ_TEST_LEVEL", "INFO")},
}
