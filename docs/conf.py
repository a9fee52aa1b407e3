"""Configure Sphinx; the build uses no network and any warning fails it."""

import sys
from pathlib import Path

# The package beside the docs, whether it is installed or not.
sys.path.insert(0, str(Path(__file__).parent.parent))

from django_jobq import __version__

project = "django_jobq"
author = "django_jobq contributors"
copyright = author
version = release = __version__

extensions = ["myst_parser"]
exclude_patterns = ["_build"]

myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"django_jobq {version}"
html_copy_source = False
