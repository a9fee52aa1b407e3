"""Job arguments as JSON and back: plain JSON values and a closed set of tagged types.

`dump()` turns Python values into a JSON tree of its own, so a later change of a list by the caller
does not reach the job; `load()` builds fresh values from such a tree, so what a job changes does
not reach its next attempt.

- Text, bool, int, finite float, None, list and dict with text keys are themselves; a tuple
  becomes a list.
- datetime, date, time, timedelta, Decimal and UUID become ``{"$t": kind, "v": value}`` and come
  back equal. An aware datetime keeps its offset, not the name of its zone.
- A dict of the user that has the key ``$t`` becomes ``{"$t": "dict", "v": {...}}``.
- A lazy string becomes text in the language that is active at the call.
- Everything else is refused, with the path of the value and what to pass instead.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import math
import uuid
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from enum import Enum
from typing import Any, NoReturn

from django.db.models import Model, QuerySet
from django.utils.datastructures import MultiValueDict
from django.utils.functional import LazyObject, Promise

from django_jobq.exceptions import EnvelopeError, InvalidArguments

JSON = None | bool | int | float | str | list["JSON"] | dict[str, "JSON"]

MAX_DEPTH = 100
_TAG = "$t"
# Python refuses to print or read whole numbers of more than 4,300 digits.
_MAX_INT_BITS = 14_000


class _Refused(Exception):
    """Carry a refusal up to `dump()`; each level adds its key on the way."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.steps: list[str] = []


def dump(value: object, name: str) -> JSON:
    """Return ``value`` as a JSON tree, or raise InvalidArguments naming the place inside it."""
    try:
        return _dump(value, 0)
    except _Refused as refused:
        path = name + "".join(reversed(refused.steps[-5:]))
        raise InvalidArguments(f"{path} {refused.text}") from None


def load(tree: JSON) -> Any:
    """Return a fresh value from a JSON tree, or raise EnvelopeError for a tag it does not know."""
    return _load(tree, 0)


def _load(tree: JSON, depth: int) -> Any:
    if not isinstance(tree, list | dict):
        return tree
    # A dict with the tag's key takes two levels of a tree.
    if depth > 2 * MAX_DEPTH:
        raise EnvelopeError("malformed envelope: an argument is nested too deep")
    if isinstance(tree, list):
        return [_load(item, depth + 1) for item in tree]
    if _TAG in tree:
        return _load_tagged(tree, depth)
    return {key: _load(item, depth + 1) for key, item in tree.items()}


def _dump(value: Any, depth: int) -> JSON:
    kind = type(value)
    if kind is str or kind is bool or value is None:
        return value  # type: ignore[no-any-return]
    if kind is int:
        return _dump_int(value)
    if kind is float:
        return _dump_float(value)
    if depth >= MAX_DEPTH:
        raise _Refused(f"is nested deeper than {MAX_DEPTH} levels")
    if kind is dict:
        return _dump_dict(value, depth)
    if kind is list or kind is tuple:
        return _dump_list(value, depth)
    return _dump_special(value, depth)


def _dump_int(value: int) -> int:
    if value.bit_length() > _MAX_INT_BITS:
        raise _Refused("is a number too long for JSON; pass it as text")
    return value


def _dump_float(value: float) -> float:
    if not math.isfinite(value):
        raise _Refused(f"is {value}, which JSON cannot hold; pass None or text")
    return value


def _dump_list(value: Iterable[object], depth: int) -> JSON:
    tree: list[JSON] = []
    try:
        for item in value:
            tree.append(_dump(item, depth + 1))
    except _Refused as refused:
        refused.steps.append(f"[{len(tree)}]")
        raise
    return tree


def _dump_dict(value: Mapping[Any, object], depth: int) -> JSON:
    tree: dict[str, JSON] = {}
    for key, item in value.items():
        name = _dump_key(key)
        if name in tree:
            raise _Refused(f"has two keys that are the text {name!r}")
        try:
            tree[name] = _dump(item, depth + 1)
        except _Refused as refused:
            refused.steps.append(f"[{name!r}]")
            raise
    return {_TAG: "dict", "v": tree} if _TAG in tree else tree


def _dump_key(key: object) -> str:
    if isinstance(key, str | Promise) and not isinstance(key, Enum):
        return str(key)
    raise _Refused(
        f"has the key {key!r}, but a dict in a job has text keys; pass str(key) or a list of pairs"
    )


def _dump_special(value: Any, depth: int) -> JSON:
    """Handle tagged types, lazy objects and subclasses of the plain ones."""
    if isinstance(value, LazyObject):
        _, (wrapped,) = value.__reduce__()  # evaluated, as it is for a pickle
        return _dump(wrapped, depth)
    if isinstance(value, Enum | Model | MultiValueDict) or _is_named_tuple(value):
        _refuse(value)
    for kind, tag, write in _TAGGED:
        if isinstance(value, kind):
            return {_TAG: tag, "v": write(value)}
    if isinstance(value, str | Promise):
        return str(value)
    if isinstance(value, int):
        return _dump_int(int(value))
    if isinstance(value, float):
        return _dump_float(float(value))
    if isinstance(value, dict):
        return _dump_dict(value, depth)
    if isinstance(value, list | tuple):
        return _dump_list(value, depth)
    _refuse(value)


def _is_named_tuple(value: object) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_asdict")


_REMEDIES: tuple[tuple[Callable[[Any], bool], str, str], ...] = (
    (lambda v: isinstance(v, Model), "a model instance", "pass its pk and load it in the job"),
    (lambda v: isinstance(v, QuerySet), "a queryset", "pass a list of primary keys"),
    (lambda v: isinstance(v, Enum), "an enum member", "pass its .value"),
    (lambda v: isinstance(v, set | frozenset), "a set", "pass a sorted list"),
    (
        lambda v: isinstance(v, bytes | bytearray | memoryview),
        "binary data",
        "pass base64 text, or store it and pass its key",
    ),
    (_is_named_tuple, "a named tuple", "pass ._asdict() or a plain tuple"),
    (
        lambda v: isinstance(v, MultiValueDict),
        "a dict of several values a key",
        "pass .dict() or dict(value.lists())",
    ),
    (dataclasses.is_dataclass, "a dataclass", "pass dataclasses.asdict(value)"),
    (callable, "a function or class", "pass a name and look it up in the job"),
)


def _refuse(value: object) -> NoReturn:
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    for matches, what, remedy in _REMEDIES:
        if matches(value):
            raise _Refused(f"is {what} ({kind}): {remedy}")
    raise _Refused(
        f"is a {kind}, which a job cannot carry: pass text, numbers, dates, lists or dicts"
    )


def _write_datetime(value: dt.datetime) -> str:
    return value.isoformat()


def _write_time(value: dt.time) -> str:
    if value.tzinfo is not None and value.utcoffset() is None:
        raise _Refused("is a time in a named zone without a date: pass a datetime")
    return value.isoformat()


def _write_timedelta(value: dt.timedelta) -> JSON:
    return [value.days, value.seconds, value.microseconds]


def _write_decimal(value: Decimal) -> str:
    if not value.is_finite():
        raise _Refused(f"is Decimal {value}, which is no number; pass None or text")
    return str(value)


def _write_text(value: object) -> str:
    return str(value)


# datetime before date, whose subclass it is.
_TAGGED: tuple[tuple[type, str, Callable[[Any], JSON]], ...] = (
    (dt.datetime, "datetime", _write_datetime),
    (dt.date, "date", _write_text),
    (dt.time, "time", _write_time),
    (dt.timedelta, "timedelta", _write_timedelta),
    (Decimal, "decimal", _write_decimal),
    (uuid.UUID, "uuid", _write_text),
)

_READERS: Mapping[str, Callable[[Any], Any]] = {
    "datetime": dt.datetime.fromisoformat,
    "date": dt.date.fromisoformat,
    "time": dt.time.fromisoformat,
    "timedelta": lambda parts: dt.timedelta(parts[0], parts[1], parts[2]),
    "decimal": Decimal,
    "uuid": uuid.UUID,
    "dict": lambda tree: {**tree},
}


def _load_tagged(tree: dict[str, JSON], depth: int) -> Any:
    tag = tree[_TAG]
    reader = _READERS.get(tag) if isinstance(tag, str) else None
    if reader is None or "v" not in tree:
        raise EnvelopeError(f"malformed envelope: an argument has the unknown tag {tag!r}")
    try:
        value = reader(tree["v"])
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise EnvelopeError(f"malformed envelope: {tree['v']!r} is no {tag}") from error
    if tag == "dict":
        return {key: _load(item, depth + 2) for key, item in value.items()}
    return value
