"""Settings for the type checker alone: it reads the models of the tests and of the example."""

from tests.settings import *  # noqa: F403
from tests.settings import INSTALLED_APPS

INSTALLED_APPS = ["shop", *INSTALLED_APPS]
