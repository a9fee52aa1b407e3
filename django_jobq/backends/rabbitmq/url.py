"""The broker's URL, read once for both clients, which would read it differently.

``amqp://user:password@host:port/vhost``: every part is percent-decoded once, a plus stays a plus.
No path and ``/`` both mean the vhost ``/``; a slash inside a vhost is written ``%2F``.
"""

from __future__ import annotations

import dataclasses
from urllib.parse import SplitResult, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured

_PORTS = {"amqp": 5672, "amqps": 5671}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BrokerAddress:
    """Hold where the broker is and who connects; the password is in no text about it."""

    host: str
    port: int
    user: str
    password: str = dataclasses.field(repr=False)
    vhost: str
    tls: bool

    def __str__(self) -> str:
        scheme = "amqps" if self.tls else "amqp"
        return f"{scheme}://{self.user}@{self.host}:{self.port}, vhost {self.vhost!r}"


def parse_url(url: str | None, path: str) -> BrokerAddress:
    """Return the address in a URL; errors begin with ``path`` and never show the URL."""
    if not url:
        raise ImproperlyConfigured(f"{path} is missing: write amqp://user:password@host/vhost")
    parts, port = _split(url, path)
    if parts.query or parts.fragment:
        raise ImproperlyConfigured(
            f"{path} has a query or fragment: what it sets belongs into OPTIONS, and in a password"
            " '?' and '#' are written percent-encoded"
        )
    return BrokerAddress(
        host=parts.hostname or "localhost",
        port=port or _PORTS[parts.scheme],
        user=unquote(parts.username) if parts.username else "guest",
        password=unquote(parts.password) if parts.password else "guest",
        vhost=_read_vhost(parts.path[1:], path),
        tls=parts.scheme == "amqps",
    )


def _split(url: str, path: str) -> tuple[SplitResult, int | None]:
    """Return the parts of a URL and its port, or raise without the text of what may quote it."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ImproperlyConfigured(
            f"{path} is no readable URL; in a user or password write other characters than letters"
            " and digits percent-encoded"
        ) from None
    if parts.scheme not in _PORTS:
        raise ImproperlyConfigured(f"{path} begins with {parts.scheme!r}, not with amqp or amqps")
    try:
        return parts, parts.port
    except ValueError:
        raise ImproperlyConfigured(
            f"{path} has no readable port; in a user or password write '/', '?', '#', '@' and ':'"
            " percent-encoded"
        ) from None


def _read_vhost(text: str, path: str) -> str:
    if "/" in text:
        raise ImproperlyConfigured(f"{path} has a second slash; inside a vhost it is written %2F")
    vhost = unquote(text) or "/"
    # The consuming client, aiormq, puts a slash in its place and would join another vhost.
    if "%2F" in vhost:
        raise ImproperlyConfigured(
            f"{path} names a vhost with '%2F' in its name, which cannot be consumed from: for a"
            " slash write %2F once, as in amqp://host/a%2Fb; otherwise give the vhost another name"
        )
    return vhost
