"""What becomes of an attempt: a pure decision from how it ended and the rules of its job."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Literal

from django_jobq.control import Defer, Fatal, JobTimeout, Retry
from django_jobq.retry import RetryPolicy


@dataclasses.dataclass(frozen=True, slots=True)
class Succeeded:
    """The job is done."""


@dataclasses.dataclass(frozen=True, slots=True)
class Retried:
    """The attempt failed and the next one follows after ``delay`` seconds."""

    delay: float


@dataclasses.dataclass(frozen=True, slots=True)
class Deferred:
    """The job asked to wait ``delay`` seconds."""

    delay: float
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class DeadLettered:
    """The job is given up."""

    cause: Literal["fatal", "exhausted", "decode", "no_handler", "delivery_limit"]
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class HandedBack:
    """The job went back uncounted, because the worker stopped."""


@dataclasses.dataclass(frozen=True, slots=True)
class Held:
    """No job of this name is known here; it is looked up again after ``delay`` seconds."""

    delay: float


Outcome = Succeeded | Retried | Deferred | DeadLettered | HandedBack | Held


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """Hold what a job says of its failures; empty ``retry_on`` means every exception."""

    policy: RetryPolicy
    retry_on: tuple[type[BaseException], ...] = ()
    fatal_on: tuple[type[BaseException], ...] = ()


def decide(
    error: BaseException | None,
    attempt: int,
    rules: Rules,
    text: str = "",
    share: Callable[[], float] = random.random,
) -> Outcome:
    """Return the outcome of an attempt that ended with ``error``, described by ``text``."""
    if error is None:
        return Succeeded()
    if isinstance(error, Defer):
        return Deferred(error.delay, error.reason)
    if isinstance(error, Fatal):
        return DeadLettered("fatal", error.reason)
    if isinstance(error, rules.fatal_on):
        return DeadLettered("fatal", text)
    asked = isinstance(error, Retry | JobTimeout)
    if rules.retry_on and not asked and not isinstance(error, rules.retry_on):
        return DeadLettered("fatal", f"{text} (which retry_on does not name)")
    delay = rules.policy.delay_after(attempt, share)
    if delay is None:
        limit = rules.policy.max_attempts
        return DeadLettered("exhausted", f"gave up after attempt {attempt} of {limit}: {text}")
    if isinstance(error, Retry) and error.after is not None:
        delay = error.after
    return Retried(delay)
