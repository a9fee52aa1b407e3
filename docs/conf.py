"""Configure Sphinx; the build uses no network and any warning fails it."""

import logging

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

# A section of the contents may still be empty; the warning has no type that could be suppressed.
logging.getLogger("sphinx.sphinx.directives.other").addFilter(
    lambda record: "toctree glob pattern" not in str(record.msg)
)
