"""Settings: JOBQ and the JOBQ_* settings, read lazily, with the defaults beside the names.

Whatever is wrong raises ImproperlyConfigured beginning with the path of the value, such as
``JOBQ['default']['QUEUES']['email']['prefetch']``; a URL is never part of a message.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit

from django.conf import settings
from django.core import mail
from django.core.exceptions import ImproperlyConfigured

from django_jobq import durations
from django_jobq.exceptions import InvalidDuration, JobqError
from django_jobq.queues import QueueConfig, parse_queues, suggest

RABBITMQ_BACKEND = "django_jobq.backends.rabbitmq.RabbitMQBackend"
MEMORY_BACKEND = "django_jobq.backends.memory.MemoryBackend"
DEFAULT_ALIAS = "default"

_DEFAULTS: Mapping[str, Any] = {
    "JOBQ": {DEFAULT_ALIAS: {"BACKEND": MEMORY_BACKEND}},
    "JOBQ_AUTODISCOVER": "jobs",
    "JOBQ_ON_DEAD_LETTER": None,
    "JOBQ_RETENTION": "30d",
}
# Settings often keep the variable that they pass to from_url() under its own name.
_OURS_TO_IGNORE = ("JOBQ_URL",)
_SCHEMES = {"memory": MEMORY_BACKEND, "amqp": RABBITMQ_BACKEND, "amqps": RABBITMQ_BACKEND}
_SHORT_NAMES = {**_SCHEMES, "rabbitmq": RABBITMQ_BACKEND}
_ALIAS_KEYS = (
    *("BACKEND", "DATABASE", "DECLARE", "HOLDS", "OPTIONS"),
    *("OUTBOX", "OUTBOX_DATABASES", "QUEUES", "URL"),
)
_CHOICES = {
    "DECLARE": ("auto", "check", "never"),
    "HOLDS": ("database", "broker"),
    "OUTBOX": ("always", "off"),
}

_NESTED = (
    "write JOBQ = {'default': {'BACKEND': ...}}, or JOBQ = {'default': from_url(...)} with from_url"
    " from django_jobq.conf"
)

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AliasSettings:
    """Hold what JOBQ says of one alias; ``queues`` None means every queue that a job names.

    ``outbox`` and ``holds`` have a meaning on transports that leave storing jobs to the database.
    """

    alias: str
    backend: str
    url: str | None = dataclasses.field(default=None, repr=False)
    queues: Mapping[str, QueueConfig] | None = None
    database: str = "default"
    outbox: str = "always"
    outbox_databases: tuple[str, ...] = ()
    holds: str = "database"
    declare: str = "auto"
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def path(self) -> str:
        """Return how the settings name this alias."""
        return f"JOBQ[{self.alias!r}]"


def setting(name: str) -> Any:
    """Return a project-wide setting of ours, or its default."""
    return getattr(settings, name, _DEFAULTS[name])


def retention() -> dt.timedelta | None:
    """Return for how long resolved dead letters are kept, or None if they are kept for good."""
    value = setting("JOBQ_RETENTION")
    if value is None:
        return None
    try:
        return dt.timedelta(seconds=durations.parse_setting(value))
    except InvalidDuration as error:
        raise ImproperlyConfigured(f"JOBQ_RETENTION: {error}") from error


def unknown_settings() -> dict[str, str]:
    """Return the JOBQ_* settings that nothing reads, each with a suggestion or the known names."""
    known = [*_DEFAULTS, *_OURS_TO_IGNORE]
    return {
        name: suggest(name, _DEFAULTS)
        for name in dir(settings)
        if name.startswith("JOBQ_") and name not in known
    }


def is_test_process() -> bool:
    """Return whether a test runner has set this process up, as Django's and pytest-django's do."""
    return hasattr(mail, "outbox")


def load_aliases() -> dict[str, AliasSettings]:
    """Return the settings of every alias of JOBQ."""
    value = setting("JOBQ")
    if isinstance(value, str):
        raise ImproperlyConfigured(f"JOBQ is text; {_NESTED}")
    if not isinstance(value, Mapping):
        raise ImproperlyConfigured(f"JOBQ is no dict of backends by alias; {_NESTED}")
    for key, entry in value.items():
        if key in _ALIAS_KEYS and not isinstance(entry, Mapping):
            raise ImproperlyConfigured(
                f"JOBQ has the key {key!r} where the name of an alias belongs; {_NESTED}"
            )
    return {alias: _load_alias(alias, entry) for alias, entry in value.items()}


def from_url(url: str) -> dict[str, Any]:
    """Return the JOBQ entry that a URL describes; its query string becomes OPTIONS.

    In the query, digits are a whole number and true or false a boolean: ``memory://?max_pending=9``.
    """
    try:
        parts = urlsplit(url)
        query = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        # Without its text, which may quote the URL.
        raise ImproperlyConfigured(
            "the job queue URL is malformed; write it as in memory://?max_pending=9"
        ) from None
    backend = _SCHEMES.get(parts.scheme)
    if backend is None:
        raise ImproperlyConfigured(
            f"the job queue URL has the scheme {parts.scheme!r}{suggest(parts.scheme, _SCHEMES)}"
        )
    entry: dict[str, Any] = {"BACKEND": backend}
    if backend == RABBITMQ_BACKEND:
        entry["URL"] = _SecretText(url.partition("?")[0])
    if parts.query:
        entry["OPTIONS"] = {key: _read_query_value(value) for key, value in query}
    return entry


class _SecretText(str):
    """Be a text that pages of settings, such as Django's for errors, do not show."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'********************'"


def option(default: Any, read: Callable[[object], Any]) -> Any:
    """Return a field of an options dataclass whose configured value passes through ``read``."""
    return dataclasses.field(default=default, metadata={"read": read})


def build_options(kind: type[T], alias: AliasSettings) -> T:
    """Return the typed OPTIONS of an alias; unknown keys and bad values are refused."""
    path = f"{alias.path}['OPTIONS']"
    fields = {field.name: field for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    values = {}
    for key, value in alias.options.items():
        if key not in fields:
            raise ImproperlyConfigured(f"{path}: unknown key {key!r}{suggest(key, fields)}")
        try:
            values[key] = fields[key].metadata["read"](value)
        except (JobqError, ValueError) as error:
            raise ImproperlyConfigured(f"{path}[{key!r}]: {error}") from error
    return kind(**values)


def read_bool(value: object) -> bool:
    """Return a boolean option."""
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither True nor False")
    return value


def read_positive_int(value: object) -> int:
    """Return a whole-number option of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{value!r} is no whole number from 1")
    return value


def _load_alias(alias: str, entry: object) -> AliasSettings:
    path = f"JOBQ[{alias!r}]"
    if not isinstance(entry, Mapping):
        raise ImproperlyConfigured(f"{path} is no dict; write from_url(...) or {{'BACKEND': ...}}")
    _check_alias(entry, path)
    try:
        queues = (
            None if "QUEUES" not in entry else parse_queues(entry["QUEUES"], f"{path}['QUEUES']")
        )
    except JobqError as error:
        raise ImproperlyConfigured(str(error)) from error
    return AliasSettings(
        alias=alias,
        backend=entry["BACKEND"],
        url=entry.get("URL"),
        queues=queues,
        database=entry.get("DATABASE", "default"),
        outbox=entry.get("OUTBOX", "always"),
        outbox_databases=tuple(entry.get("OUTBOX_DATABASES", ())),
        holds=entry.get("HOLDS", "database"),
        declare=entry.get("DECLARE", "auto"),
        options=entry.get("OPTIONS", {}),
    )


def _check_alias(entry: Mapping[Any, Any], path: str) -> None:
    """Refuse unknown keys, wrong types, and what is none of the choices."""
    for key in entry:
        if key not in _ALIAS_KEYS:
            raise ImproperlyConfigured(f"{path}: unknown key {key!r}{suggest(key, _ALIAS_KEYS)}")
    if "BACKEND" not in entry:
        raise ImproperlyConfigured(f"{path} has no 'BACKEND'")
    for key, kind in (("BACKEND", str), ("DATABASE", str), ("OPTIONS", Mapping), ("URL", str)):
        if key in entry and not isinstance(entry[key], kind):
            raise ImproperlyConfigured(f"{path}[{key!r}] is no {kind.__name__.lower()}")
    for key, choices in _CHOICES.items():
        if entry.get(key, choices[0]) not in choices:
            raise ImproperlyConfigured(
                f"{path}[{key!r}]: {entry[key]!r} is none of {', '.join(choices)}"
            )
    further = entry.get("OUTBOX_DATABASES", [])
    if not isinstance(further, list | tuple) or not all(isinstance(name, str) for name in further):
        raise ImproperlyConfigured(f"{path}['OUTBOX_DATABASES'] is no list of database aliases")
    _check_dotted_path(entry["BACKEND"], path)


def _check_dotted_path(name: str, path: str) -> None:
    if "://" in name:
        raise ImproperlyConfigured(
            f"{path}['BACKEND'] is a URL, not the dotted path of a class; write"
            " from_url(...), of django_jobq.conf, in place of the dict"
        )
    dotted = _SHORT_NAMES.get(name.lower())
    if dotted is not None:
        raise ImproperlyConfigured(
            f"{path}['BACKEND']: {name!r} is not the dotted path of a class; write {dotted!r}, or"
            " from_url(...) in place of the dict"
        )


def _read_query_value(text: str) -> Any:
    if text.isascii() and text.isdigit():
        return int(text)
    return {"true": True, "false": False}.get(text.lower(), text)
