"""The settings of web processes that tests start; database and broker come from the environment."""

import json
import os

from tests.settings import *  # noqa: F403

DATABASES = {"default": json.loads(os.environ["JOBQ_TEST_WEB_DATABASE"])}
INSTALLED_APPS = ["tests.app", "tests.web", "django_jobq"]
JOBQ = json.loads(os.environ["JOBQ_TEST_SETTING"])
ROOT_URLCONF = "tests.web.urls"
LOGGING = {
    "version": 1,
    "handlers": {"stderr": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["stderr"], "level": "INFO"},
}
