"""The arguments of a call: bound to the signature of the function, and turned into JSON trees."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from django_jobq.call_options import CallOptions
from django_jobq.exceptions import InvalidArguments
from django_jobq.serialization import JSON, dump


# Kept by function, since using() makes a new Job for every call.
@cache
def signature_of(func: Callable[..., Any], *, takes_context: bool) -> inspect.Signature:
    """Return the signature that arguments are bound to: the function's, without the context."""
    signature = inspect.signature(func)
    if not takes_context:
        return signature
    return signature.replace(parameters=list(signature.parameters.values())[1:])


@cache
def positional_names(func: Callable[..., Any], *, takes_context: bool) -> list[str]:
    """Return the names of the parameters that take positional arguments."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = signature_of(func, takes_context=takes_context).parameters
    return [name for name, item in parameters.items() if item.kind in kinds]


def bind(
    name: str,
    func: Callable[..., Any],
    args: Sequence[object],
    kwargs: Mapping[str, object],
    *,
    takes_context: bool,
) -> tuple[list[JSON], dict[str, JSON]]:
    """Return the arguments of job ``name`` as JSON trees, or raise InvalidArguments."""
    signature = signature_of(func, takes_context=takes_context)
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        hint = _hint(kwargs, signature)
        raise InvalidArguments(f"{name}{signature}: {error}{hint}") from None
    names = positional_names(func, takes_context=takes_context)
    named = [
        (names[i] if i < len(names) else f"number {i + 1}", value) for i, value in enumerate(args)
    ]
    return (
        [dump(value, f"{name}: argument {key}") for key, value in named],
        {key: dump(value, f"{name}: argument {key}") for key, value in kwargs.items()},
    )


def _hint(kwargs: Mapping[str, object], signature: inspect.Signature) -> str:
    """Return where an option of the call belongs that was given as an argument."""
    options = {field.name for field in dataclasses.fields(CallOptions)}
    given = [key for key in kwargs if key in options and key not in signature.parameters]
    if not given:
        return ""
    return f"; an option of the call is given as .using({', '.join(f'{key}=...' for key in given)})"
