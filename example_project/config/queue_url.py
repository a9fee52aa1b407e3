"""Where jobs go, JOBQ_URL, and what to say if it cannot be used."""

from __future__ import annotations

import os
import re

# What looks like host:port and is none, such as a login without a host.
_NO_PORT = re.compile(r"(://[^/?#:]*):(?!\d*(?:[/?#]|$))[^/?#]*")


def shown() -> str:
    """Return JOBQ_URL without its password, also if it is malformed."""
    url = os.environ.get("JOBQ_URL", "memory://") or "empty"
    login, at, rest = url.rpartition("@")
    if not at:
        return _NO_PORT.sub(r"\1:***", url)
    scheme, slashes, user = login.partition("://")
    return f"{scheme}://{user.partition(':')[0]}@{rest}" if slashes else f"***@{rest}"


def complaint(error: Exception) -> str:
    """Return the sentence that says why JOBQ_URL cannot be used, and what to do."""
    return (
        f"JOBQ_URL ({shown()}) cannot be used; correct it, start its broker, or leave it out to"
        f" keep the jobs in this process: {error}"
    )
