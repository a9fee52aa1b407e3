"""The jobs a project has defined, by name, and the discovery of the modules that define them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.utils.module_loading import module_has_submodule

from django_jobq.exceptions import InvalidJob

if TYPE_CHECKING:
    from django_jobq.jobs import Job


class Registry:
    """Map names to jobs; a second function under a name is kept as a conflict, not an error.

    Raising at the decorator would depend on the order of imports; a check reports both places.
    """

    def __init__(self) -> None:
        self._jobs: dict[str, Job[..., Any]] = {}
        self._queue_names: dict[str, frozenset[str]] = {}
        self.conflicts: list[tuple[Job[..., Any], Job[..., Any]]] = []

    def register(self, job: Job[..., Any]) -> None:
        """Add a job; importing its module again replaces it."""
        first = self._jobs.get(job.name)
        if first is not None and place_of(first.func) != place_of(job.func):
            self.conflicts.append((first, job))
        self._jobs[job.name] = job
        self._queue_names.clear()

    def find(self, name: str) -> Job[..., Any] | None:
        """Return the job of this name, or None."""
        return self._jobs.get(name)

    def queue_names(self, alias: str) -> frozenset[str]:
        """Return the queues that the jobs of a backend alias name."""
        found = self._queue_names.get(alias)
        if found is None:
            found = frozenset(job.queue for job in self if job.backend == alias)
            self._queue_names[alias] = found
        return found

    def __iter__(self) -> Iterator[Job[..., Any]]:
        return iter(list(self._jobs.values()))

    def __len__(self) -> int:
        return len(self._jobs)


registry = Registry()


def place_of(func: Callable[..., Any]) -> str:
    """Return where a function is defined, as 'file:line (module.name)'."""
    code = func.__code__
    return f"{code.co_filename}:{code.co_firstlineno} ({func.__module__}.{func.__qualname__})"


def autodiscover(names: str | Iterable[str] | None) -> None:
    """Import the named module of every installed app, and the submodules if it is a package.

    An app without the module is skipped; an error inside a module propagates.
    """
    modules = [names] if isinstance(names, str) else list(names or ())
    for config in apps.get_app_configs():
        for name in modules:
            if config.module is not None and module_has_submodule(config.module, name):
                _import_tree(f"{config.name}.{name}")


def _import_tree(path: str) -> None:
    module = _import(path)
    for found in pkgutil.walk_packages(getattr(module, "__path__", []), f"{path}."):
        _import(found.name)


def _import(path: str) -> Any:
    try:
        return importlib.import_module(path)
    except SystemExit as error:
        raise InvalidJob(
            f"importing {path} ended with sys.exit({error.code!r}); a jobs module only defines jobs"
        ) from error
