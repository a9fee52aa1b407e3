"""Envelopes as messages: the properties of a publish, free of either client's types.

The body is the truth; the headers repeat what the consumer needs before it decodes a body.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import os
import re
import secrets
import time
import uuid
from collections.abc import Mapping
from typing import Any

from django_jobq.backends.base import Cause, attempts_made
from django_jobq.envelope import Envelope

CONTENT_TYPE = "application/json"
PERSISTENT = 2
MAX_SHORT_TEXT = 255

JOB_ID = "x-job-id"
ATTEMPT = "x-attempt"
DEFERRALS = "x-deferrals"
NOT_BEFORE = "x-not-before"
STARTS = "x-starts"
DEATH_CAUSE = "x-death-cause"
DEATH_REASON = "x-death-reason"
ORIGINAL_QUEUE = "x-original-queue"
ATTEMPTS = "x-attempts"
DIED_AT = "x-died-at"
FILING_KEY = "x-jobq-filing-key"

# Brokers before 4.0.1 take a copied x-death header for a cycle and drop the message.
_BROKER_HEADERS = (
    "x-death",
    "x-first-death-",
    "x-last-death-",
    "x-delivery-count",
    "x-acquired-count",
)
# The largest number that a header can carry; a foreign body may count further.
_MOST = 2**63 - 1


class _MessageIds:
    """Make ids from a random part and a number: asking the system for each costs much more."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self._process, self._numbers = uuid.uuid4().hex, itertools.count(1)

    def next(self) -> str:
        return f"{self._process}-{next(self._numbers):x}"


_message_ids = _MessageIds()
# A forked child must not repeat what its parent says.
os.register_at_fork(after_in_child=_message_ids.renew)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """Hold what is published; ``message_id`` is unique per publish, not per job."""

    body: bytes
    type: str | None
    priority: int
    headers: Mapping[str, Any]
    content_type: str | None = CONTENT_TYPE
    message_id: str = dataclasses.field(default_factory=_message_ids.next)


def encode(envelope: Envelope, priority: int, *, held: float = 0.0) -> Message:
    """Return the message of an envelope; ``held`` is the seconds it has to wait."""
    headers: dict[str, Any] = {
        JOB_ID: str(envelope.job_id),
        ATTEMPT: min(envelope.attempt, _MOST),
        DEFERRALS: min(envelope.deferrals, _MOST),
    }
    starts = envelope.headers.get("starts")
    if isinstance(starts, int):
        headers[STARTS] = min(starts, _MOST)
    if held > 0:
        headers[NOT_BEFORE] = int((time.time() + held) * 1000)
    return Message(
        body=envelope.encode(), type=_short(envelope.job), priority=priority, headers=headers
    )


def dead_letter(
    body: bytes, envelope: Envelope | None, queue: str, cause: Cause, reason: str, key: str
) -> Message:
    """Return the message that files a body; ``envelope`` is what could be read of it."""
    headers: dict[str, Any] = {
        DEATH_CAUSE: cause,
        DEATH_REASON: _encodable(reason),
        ORIGINAL_QUEUE: queue,
        ATTEMPTS: min(attempts_made(envelope, cause), _MOST),
        DIED_AT: time.time_ns() // 1_000_000,
        FILING_KEY: key,
    }
    if envelope is not None:
        headers[JOB_ID] = str(envelope.job_id)
    return Message(
        body=body,
        type=_short(envelope.job) if envelope else None,
        priority=0,
        headers=headers,
        content_type=CONTENT_TYPE if envelope else None,
    )


def filing_key(headers: Mapping[str, Any], message_id: str | None, body: bytes) -> str:
    """Return by what a message is known as one dead letter, however often it comes.

    A copy made of it carries the key of the first. Without a message id it is known by nothing.
    """
    carried = headers.get(FILING_KEY)
    if isinstance(carried, str) and re.fullmatch(r"[0-9a-f]{64}", carried):
        return carried
    if not message_id:
        return secrets.token_hex(32)
    return hashlib.sha256(message_id.encode() + b"\0" + body).hexdigest()


def own_headers(headers: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return headers without those that a broker added."""
    return {
        key: value for key, value in (headers or {}).items() if not key.startswith(_BROKER_HEADERS)
    }


def _short(text: str) -> str:
    """Cut text to what a short string holds, at a character boundary."""
    return _encodable(text).encode()[:MAX_SHORT_TEXT].decode(errors="ignore")


def _encodable(text: str) -> str:
    """Return text with lone surrogates spelled out: JSON may carry them, properties may not."""
    return text.encode(errors="backslashreplace").decode()
