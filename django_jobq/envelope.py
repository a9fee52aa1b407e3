"""The envelope: one enqueued job in its wire form, JSON of version 1.

An envelope never changes; `next_attempt()`, `deferred()` and `with_headers()` return a new one.
Fields are only ever added, each with a default, so that old and new code read each other's jobs.
"""

from __future__ import annotations

import dataclasses
import json
import math
import uuid
from collections.abc import Mapping
from typing import Any

from django_jobq.exceptions import EnvelopeError
from django_jobq.serialization import JSON

VERSION = 1
MAX_ERRORS = 5

_REQUIRED = ("job_id", "job", "queue", "attempt", "enqueued_at", "args", "kwargs")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """Hold one enqueued job: what runs, with which arguments, and how often it has run.

    ``enqueued_at`` is the epoch in milliseconds of the first enqueue; ``args`` and ``kwargs`` are
    JSON trees as `serialization.dump()` makes them; ``priority`` is the job's own, also while it
    waits at a queue's top level after a deferral.
    """

    job_id: uuid.UUID
    job: str
    queue: str
    attempt: int = 1
    deferrals: int = 0
    priority: int = 0
    enqueued_at: int
    correlation_id: str | None = None
    args: list[JSON] = dataclasses.field(default_factory=list)
    kwargs: dict[str, JSON] = dataclasses.field(default_factory=dict)
    headers: dict[str, Any] = dataclasses.field(default_factory=dict)

    def next_attempt(self) -> Envelope:
        """Return the envelope of the attempt after this one."""
        return dataclasses.replace(self, attempt=self.attempt + 1)

    def deferred(self) -> Envelope:
        """Return the envelope after one more deferral; the attempt is the same."""
        return dataclasses.replace(self, deferrals=self.deferrals + 1)

    def with_headers(self, **headers: Any) -> Envelope:
        """Return the envelope with these headers; None removes one."""
        merged = {**self.headers, **headers}
        return dataclasses.replace(
            self, headers={key: value for key, value in merged.items() if value is not None}
        )

    def with_error(self, error: Mapping[str, Any]) -> Envelope:
        """Return the envelope with one more entry in its history of the last errors."""
        earlier = self.headers.get("errors")
        earlier = earlier if isinstance(earlier, list) else []
        return self.with_headers(errors=[*earlier, dict(error)][-MAX_ERRORS:])

    def encode(self) -> bytes:
        """Return the JSON body; what is unset is left out."""
        body: dict[str, Any] = {
            "job_id": str(self.job_id),
            "job": self.job,
            "queue": self.queue,
            "attempt": self.attempt,
            "deferrals": self.deferrals,
            "priority": self.priority,
            "enqueued_at": self.enqueued_at,
        }
        if self.correlation_id is not None:
            body["correlation_id"] = self.correlation_id
        body["args"] = self.args
        body["kwargs"] = self.kwargs
        if self.headers:
            body["headers"] = self.headers
        return _encoder.encode(body).encode("ascii")

    @classmethod
    def decode(cls, body: bytes) -> Envelope:
        """Return the envelope of a JSON body, or raise EnvelopeError saying what is wrong with it.

        Fields that are not known are ignored.
        """
        fields = _parse(body)
        _check_version(fields.get("version", VERSION))
        for name in _REQUIRED:
            if name not in fields:
                raise EnvelopeError(f"malformed envelope: field {name!r} is missing")
        return cls(
            job_id=_read_id(fields["job_id"]),
            job=_read("job", fields["job"], str),
            queue=_read("queue", fields["queue"], str),
            attempt=_read_int("attempt", fields["attempt"], 1),
            deferrals=_read_int("deferrals", fields.get("deferrals", 0), 0),
            priority=_read_int("priority", fields.get("priority", 0), 0, 255),
            enqueued_at=_read_int("enqueued_at", fields["enqueued_at"], 0),
            correlation_id=_read("correlation_id", fields.get("correlation_id"), str, type(None)),
            args=_read("args", fields["args"], list),
            kwargs=_read("kwargs", fields["kwargs"], dict),
            headers=_read("headers", fields.get("headers", {}), dict),
        )


def decode_or_none(body: bytes) -> Envelope | None:
    """Return the envelope of a body, or None if it is none."""
    try:
        return Envelope.decode(body)
    except EnvelopeError:
        return None


def log_fields(envelope: Envelope | None, queue: str) -> dict[str, Any]:
    """Return the ``extra`` of a log record about a job; None stands for a body that is none."""
    job_id, job, attempt = (
        (envelope.job_id, envelope.job, envelope.attempt) if envelope else (None, None, None)
    )
    return {"job_id": job_id, "job": job, "queue": queue, "attempt": attempt}


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")


def _read_float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is beyond the range of floats")
    return value


_encoder = json.JSONEncoder(allow_nan=False, check_circular=False, separators=(",", ":"))
_decoder = json.JSONDecoder(parse_constant=_refuse_constant, parse_float=_read_float)


def _parse(body: bytes) -> dict[str, Any]:
    try:
        fields = _decoder.decode(body.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise EnvelopeError(f"malformed envelope: {error}") from error
    if not isinstance(fields, dict):
        raise EnvelopeError("malformed envelope: the body is no JSON object")
    return fields


def _check_version(version: object) -> None:
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise EnvelopeError(f"malformed envelope: version {version!r}")
    if version > VERSION:
        raise EnvelopeError(
            f"malformed envelope: it has version {version} and this code reads up to {VERSION};"
            " update the worker"
        )


def _read_id(value: object) -> uuid.UUID:
    try:
        return uuid.UUID(_read("job_id", value, str))
    except ValueError as error:
        raise EnvelopeError(f"malformed envelope: job_id {value!r} is no UUID") from error


def _read(name: str, value: Any, *kinds: type) -> Any:
    if not isinstance(value, kinds):
        raise EnvelopeError(f"malformed envelope: field {name!r} is {type(value).__name__}")
    return value


def _read_int(name: str, value: object, least: int, most: float = math.inf) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise EnvelopeError(f"malformed envelope: field {name!r} is {value!r}")
    return value
