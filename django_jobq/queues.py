"""What is known of one queue of a backend: its prefetch, priorities, retry policy and lifetime."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Iterable, Mapping
from typing import Any

from django_jobq import durations
from django_jobq.exceptions import InvalidDuration, InvalidJob
from django_jobq.retry import RetryPolicy

DEFAULT_QUEUE = "default"
DEFAULT_MAX_PRIORITY = 10


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class QueueConfig:
    """Configure one queue.

    ``prefetch`` None means twice the worker's concurrency and 0 no limit; ``max_priority`` is the
    level of what returns from a deferral, 0 means no levels; ``durable`` is True, since no backend
    keeps less than it can; ``message_ttl`` is seconds; raise
    ``revision`` to give the queue other arguments on a broker.
    """

    name: str
    prefetch: int | None = None
    max_priority: int = DEFAULT_MAX_PRIORITY
    retry: RetryPolicy | None = None
    durable: bool = True
    message_ttl: float | None = None
    revision: int = 1

    def __post_init__(self) -> None:
        _check_durable(self.durable, f"queue {self.name!r}")

    def level(self, priority: int, *, front: bool = False) -> int:
        """Return the level at which a job of this priority waits."""
        if front or not self.max_priority:
            return self.max_priority
        return min(priority, self.max_priority - 1)

    def check_priority(self, priority: int) -> None:
        """Refuse a job priority that the queue has no level for."""
        if self.max_priority and not 0 <= priority < self.max_priority:
            raise InvalidJob(
                f"priority {priority} does not fit queue {self.name!r}, whose priorities are 0 to"
                f" {self.max_priority - 1}"
            )


def parse_queues(value: object, path: str) -> dict[str, QueueConfig]:
    """Return the queues that a QUEUES setting names, by name; errors begin with ``path``."""
    if isinstance(value, Mapping):
        pairs: Iterable[tuple[object, object]] = value.items()
    elif isinstance(value, list | tuple):
        pairs = [(name, {}) for name in value]
    else:
        raise InvalidJob(f"{path}: {value!r} is neither a list of names nor a dict of options")
    found = {}
    for name, options in pairs:
        config = _parse_queue(name, options, f"{path}[{name!r}]")
        found[config.name] = config
    return found


def check_queue_name(name: object, path: str) -> str:
    """Return a queue name, or refuse one that is empty or holds a reserved character."""
    if not isinstance(name, str) or not name.strip():
        raise InvalidJob(f"{path}: a queue name is text that is not empty")
    if any(char in "*#" or not char.isprintable() for char in name):
        raise InvalidJob(f"{path}: a queue name holds neither *, # nor control characters")
    return name


def _parse_queue(name: object, options: object, path: str) -> QueueConfig:
    name = check_queue_name(name, path)
    if not isinstance(options, Mapping):
        raise InvalidJob(f"{path}: {options!r} is no dict of queue options")
    known = [field.name for field in dataclasses.fields(QueueConfig) if field.name != "name"]
    for key in options:
        if key not in known:
            raise InvalidJob(f"{path}: unknown key {key!r}{suggest(key, known)}")
    return QueueConfig(
        name=name,
        **{key: _PARSERS[key](value, f"{path}[{key!r}]") for key, value in options.items()},
    )


def suggest(wrong: object, known: Iterable[str]) -> str:
    """Return '; did you mean ...?' or the known names, to end an error text with."""
    names = sorted(known)
    by_folded = {name.casefold(): name for name in names}
    close = difflib.get_close_matches(str(wrong).casefold(), by_folded, n=1)
    if close:
        return f"; did you mean {by_folded[close[0]]!r}?"
    return f"; known: {', '.join(names) or 'none'}"


def _parse_prefetch(value: object, path: str) -> int | None:
    if value is None:
        return None
    return max(0, _whole_number(value, path))


def _parse_max_priority(value: object, path: str) -> int:
    level = 0 if value is None else _whole_number(value, path)
    if not 0 <= level <= 255:
        raise InvalidJob(f"{path}: {level} is not within 0 and 255")
    return level


def _parse_revision(value: object, path: str) -> int:
    revision = _whole_number(value, path)
    if revision < 1:
        raise InvalidJob(f"{path}: {revision} is no whole number from 1")
    return revision


def _parse_retry(value: Any, path: str) -> RetryPolicy | None:
    try:
        return None if value is None else RetryPolicy.parse(value)
    except InvalidJob as error:
        raise InvalidJob(f"{path}: {error}") from error


def _parse_ttl(value: object, path: str) -> float | None:
    try:
        return None if value is None else durations.parse_positive_setting(value)
    except InvalidDuration as error:
        raise InvalidJob(f"{path}: {error}") from error


def _check_durable(value: object, path: str) -> bool:
    """Return True; what a restart of the broker may take away is no place for jobs."""
    if value is not True:
        raise InvalidJob(
            f"{path}: {value!r} is refused, since jobs must survive a restart of their broker:"
            " leave 'durable' out; work that may be lost belongs to an alias with the memory"
            " backend"
        )
    return value


def _whole_number(value: object, path: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidJob(f"{path}: {value!r} is no whole number")
    return value


_PARSERS: Mapping[str, Any] = {
    "prefetch": _parse_prefetch,
    "max_priority": _parse_max_priority,
    "retry": _parse_retry,
    "durable": _check_durable,
    "message_ttl": _parse_ttl,
    "revision": _parse_revision,
}
