"""The backends of this process: one instance an alias, made at first use and remade with JOBQ."""

from __future__ import annotations

import os
import threading
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from django_jobq import conf
from django_jobq.backends.base import Backend
from django_jobq.conf import AliasSettings
from django_jobq.exceptions import UnknownBackend


class BackendHandler:
    """Give the backend of an alias: ``backends["default"]``.

    It is shared by all threads, unlike Django's connection handlers, since a backend's connection
    belongs to the process.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._backends: dict[str, Backend] = {}

    def __getitem__(self, alias: str) -> Backend:
        found = self._backends.get(alias)
        return found if found is not None else self._make(alias)

    def opened(self) -> list[Backend]:
        """Return the backends that were used so far."""
        with self._lock:
            return list(self._backends.values())

    def reset(self) -> None:
        """Close every backend; the next use reads the settings again."""
        with self._lock:
            old, self._backends = self._backends, {}
        for backend in old.values():
            backend.close()

    def _make(self, alias: str) -> Backend:
        with self._lock:
            if alias not in self._backends:
                settings = conf.load_aliases()
                if alias not in settings:
                    raise UnknownBackend(alias, settings)
                self._backends[alias] = build(settings[alias])
            return self._backends[alias]


def build(settings: AliasSettings) -> Backend:
    """Return a new backend, or raise ImproperlyConfigured naming the setting that is wrong."""
    path = f"{settings.path}['BACKEND']"
    try:
        kind = import_string(settings.backend)
    except ImportError as error:
        remedy = ""
        if settings.backend == conf.RABBITMQ_BACKEND:
            remedy = '; run pip install "django-jobq[rabbitmq]"'
        raise ImproperlyConfigured(
            f"{path}: cannot import {settings.backend!r}: {error}{remedy}"
        ) from error
    if not (isinstance(kind, type) and issubclass(kind, Backend)):
        raise ImproperlyConfigured(f"{path}: {settings.backend!r} is no Backend class")
    return kind(settings)


backends = BackendHandler()


def _forget_in_child() -> None:
    """Start anew in a forked process: connections and waiting jobs are the parent's."""
    backends.__init__()  # type: ignore[misc]


os.register_at_fork(after_in_child=_forget_in_child)


def _reset_on_change(*, setting: str, **_: Any) -> None:
    if setting == "JOBQ":
        backends.reset()


setting_changed.connect(_reset_on_change, dispatch_uid="django_jobq.backends")
