"""Operations on a channel, as data: declarations, passive checks, counts and purges."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any

from django_jobq.backends.rabbitmq.topology import (
    Binding,
    Declaration,
    Exchange,
    Queue,
    Unbinding,
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """Name a channel method with its arguments, what it does, and how to read its answer.

    Without ``read`` there is nothing to wait for: a refusal closes the channel.
    """

    method: str
    arguments: dict[str, Any]
    text: str
    read: Callable[[Any], Any] | None = None


def declare(declarations: Iterable[Declaration]) -> list[Operation]:
    """Return the operations that create what does not exist."""
    return [_declare(item, passive=False) for item in declarations]


def check(declarations: Iterable[Declaration]) -> list[Operation]:
    """Return the operations that fail if an object is missing; they need no permission."""
    return [
        _declare(item, passive=True) for item in declarations if isinstance(item, Exchange | Queue)
    ]


def count(queue: str) -> Operation:
    """Return the operation that tells how many messages and consumers a queue has."""
    return Operation(
        method="queue_declare",
        arguments={"queue": queue, "passive": True},
        text=f"counting queue {queue!r}",
        read=lambda answer: (answer.method.message_count, answer.method.consumer_count),
    )


def purge(queue: str) -> Operation:
    """Return the operation that removes the ready messages of a queue and tells how many."""
    return Operation(
        method="queue_purge",
        arguments={"queue": queue},
        text=f"purging queue {queue!r}",
        read=lambda answer: answer.method.message_count,
    )


def _declare(item: Declaration, *, passive: bool) -> Operation:
    if isinstance(item, Binding):
        return _bind(item)
    if isinstance(item, Unbinding):
        return Operation(
            method="queue_unbind",
            arguments={"queue": item.target, "exchange": item.source, "routing_key": item.key},
            text=f"unbinding {item.target!r} from {item.source!r}",
        )
    arguments = {"durable": True, "passive": passive, "arguments": dict(item.arguments)}
    if isinstance(item, Exchange):
        return Operation(
            method="exchange_declare",
            arguments={"exchange": item.name, "exchange_type": item.kind, **arguments},
            text=f"declaring exchange {item.name!r}",
        )
    return Operation(
        method="queue_declare",
        arguments={"queue": item.name, **arguments},
        text=f"declaring queue {item.name!r}",
    )


def _bind(item: Binding) -> Operation:
    method = "exchange_bind" if item.to_exchange else "queue_bind"
    target = "destination" if item.to_exchange else "queue"
    source = "source" if item.to_exchange else "exchange"
    return Operation(
        method=method,
        arguments={target: item.target, source: item.source, "routing_key": item.key},
        text=f"binding {item.target!r} to {item.source!r}",
    )
