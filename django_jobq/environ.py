"""The job queue URL from the environment, in the manner of django-environ."""

from __future__ import annotations

from typing import Any

import environ

from django_jobq.conf import from_url


class Env(environ.Env):  # type: ignore[misc]  # django-environ is not typed
    """Extend django-environ's Env by `jobq_url()`."""

    def jobq_url(self, var: str = "JOBQ_URL", default: Any = environ.Env.NOTSET) -> dict[str, Any]:
        """Return the JOBQ entry that the URL in ``var`` describes."""
        return from_url(self.str(var, default=default))
