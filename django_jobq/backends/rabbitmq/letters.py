"""What waits on the broker to be filed: dead letters, and jobs whose queue is gone.

1. The inbox has what workers gave up, with headers of ours that say why, and what the broker itself
   took out of a queue, with headers of its own.
2. A job that came out of a hold and found no queue is published again; if there still is none, it
   becomes a dead letter.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, get_args

from django_jobq.backends.base import Cause, DeadLetterSource, attempts_made
from django_jobq.backends.rabbitmq import codec
from django_jobq.backends.rabbitmq.topology import LEVELS, Topology
from django_jobq.envelope import decode_or_none
from django_jobq.exceptions import BackendUnavailable
from django_jobq.store.filing import NewLetter

if TYPE_CHECKING:
    from django_jobq.backends.rabbitmq.backend import RabbitMQBackend
    from django_jobq.backends.rabbitmq.consumer import Inbox, Message

# What the broker calls a death, and what is to be told of it.
_DEATHS: dict[str, tuple[Cause, str]] = {
    "expired": ("expired", "waited in its queue for longer than the queue's message_ttl"),
    "rejected": ("rejected", "was rejected by a consumer"),
    "maxlen": ("rejected", "was dropped by a length limit of its queue"),
    "delivery_limit": ("delivery_limit", "was delivered more often than its queue allows"),
}
_UNTOLD: tuple[Cause, str] = ("rejected", "came to the dead letters without any reason")


class RabbitMQLetters(DeadLetterSource):
    """Read both queues, on the consuming connection of the running loop."""

    def __init__(self, backend: RabbitMQBackend) -> None:
        self._backend = backend
        self._dead = backend.inbox(backend.topology.dead)
        self._lost = backend.inbox(backend.topology.lost)
        self._batch: list[tuple[Inbox, Message, NewLetter]] = []

    async def letters(self) -> Sequence[NewLetter]:
        """Return what is to be filed; jobs whose queue is there again are published before."""
        if not self._batch:
            self._batch = [
                (self._dead, message, letter_of(message, self._backend.topology))
                for message in await self._dead.messages()
            ]
            try:
                await self._find_queues(await self._lost.messages())
            except BackendUnavailable:
                if not self._batch:
                    raise
        return [letter for _, _, letter in self._batch]

    async def remove(self) -> None:
        """Acknowledge what was returned last."""
        for inbox, message, _ in self._batch:
            inbox.remove([message])
        self._batch = []

    async def aclose(self) -> None:
        """Close both channels."""
        await self._dead.aclose()
        await self._lost.aclose()

    async def _find_queues(self, messages: list[Message]) -> None:
        names = [lost_queue(message) for message in messages]
        results = await asyncio.gather(
            *(
                self._backend.publish_again(name, _copy_of(message))
                for name, message in zip(names, messages, strict=True)
            ),
            return_exceptions=True,
        )
        for name, message, result in zip(names, messages, results, strict=True):
            if result is None:
                self._lost.remove([message])
            elif isinstance(result, str):
                letter = _letter(message, name, "no_queue", f"found no queue {name!r}: {result}")
                self._batch.append((self._lost, message, letter))
        for result in results:
            if isinstance(result, BaseException):
                raise result


def letter_of(message: Message, topology: Topology) -> NewLetter:
    """Return the dead letter that a message in the inbox is, whoever brought it there."""
    headers = message.properties.headers
    cause = headers.get(codec.DEATH_CAUSE)
    if isinstance(cause, str) and cause in get_args(Cause):
        return NewLetter(
            body=message.body,
            queue=_text(headers, codec.ORIGINAL_QUEUE),
            cause=cause,
            reason=_text(headers, codec.DEATH_REASON),
            attempts=max(0, _number(headers, codec.ATTEMPTS)),
            died_at=_number(headers, codec.DIED_AT) / 1000 or None,
            filing_key=_key_of(message),
        )
    death = _last_death(headers)
    kind, reason = _DEATHS.get(_text(death, "reason"), _UNTOLD)
    queue = topology.logical_name(_text(death, "queue")) or _text(death, "queue")
    died_at = death.get("time")
    moment = died_at.timestamp() if isinstance(died_at, dt.datetime) else None
    return _letter(message, queue, kind, reason, moment)


def lost_queue(message: Message) -> str:
    """Return the queue for which a message was held: the end of the key that it was held with."""
    keys = _last_death(message.properties.headers).get("routing-keys")
    key = keys[0] if isinstance(keys, list) and keys else None
    digits = key.split(".", LEVELS) if isinstance(key, str) else []
    if len(digits) > LEVELS:
        return digits[LEVELS]
    envelope = decode_or_none(message.body)
    return envelope.queue if envelope else ""


def _letter(
    message: Message, queue: str, cause: Cause, reason: str, died_at: float | None = None
) -> NewLetter:
    return NewLetter(
        body=message.body,
        queue=queue,
        cause=cause,
        reason=reason,
        attempts=attempts_made(decode_or_none(message.body), cause),
        died_at=died_at,
        filing_key=_key_of(message),
    )


def _copy_of(message: Message) -> codec.Message:
    properties = message.properties
    headers = {**codec.own_headers(properties.headers), codec.FILING_KEY: _key_of(message)}
    return codec.Message(
        body=message.body, type=properties.type, priority=properties.priority, headers=headers
    )


def _key_of(message: Message) -> str:
    properties = message.properties
    return codec.filing_key(properties.headers, properties.message_id, message.body)


def _last_death(headers: dict[str, Any]) -> dict[str, Any]:
    """Return what the broker says of the last time that it moved a message by itself."""
    deaths = headers.get("x-death")
    last = deaths[0] if isinstance(deaths, list) and deaths else None
    return last if isinstance(last, dict) else {}


def _text(table: dict[str, Any], name: str) -> str:
    value = table.get(name)
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return value if isinstance(value, str) else ""


def _number(table: dict[str, Any], name: str) -> int:
    value = table.get(name)
    return value if isinstance(value, int) else 0
