"""Fill a product's queue, in a process of its own: python -m benchmarks.filling MODULE JOBS."""

from __future__ import annotations

import importlib
import sys

import django

if __name__ == "__main__":
    django.setup()
    importlib.import_module(sys.argv[1]).fill(range(int(sys.argv[2])))
