#!/usr/bin/env python
"""Run Django's commands for the example project."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured
from django.core.management import execute_from_command_line

from config import queue_url


def main() -> None:
    """Run the command named on the command line."""
    # django_jobq is used from the checkout around this folder, unless it is installed.
    sys.path.append(str(Path(__file__).resolve().parent.parent))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    _check_queue_url()
    execute_from_command_line(sys.argv)


def _check_queue_url() -> None:
    """End with one sentence instead of a traceback through the settings."""
    # Found only now that the checkout is on the path.
    from django_jobq.conf import from_url

    try:
        from_url(os.environ.get("JOBQ_URL", "memory://"))
    except ImproperlyConfigured as error:
        sys.exit(queue_url.complaint(error))


if __name__ == "__main__":
    main()
