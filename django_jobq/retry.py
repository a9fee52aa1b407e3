"""When a failed job runs again: the retry policy and its backoff, without Django or clocks.

An attempt is counted from 1 and ``max_attempts`` means total runs. After a failed attempt:
1. at or above ``max_attempts`` the job is given up;
2. otherwise the wait is nothing (none), ``delay`` (fixed) or
   ``base * factor ** (attempt - 1)``, at most ``max`` (exponential);
3. jitter then takes a uniform share of an exponential wait (AWS Architecture Blog, "Exponential
   Backoff And Jitter", calls it full jitter).
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Callable, Mapping
from typing import Any, Literal

from django_jobq import durations
from django_jobq.durations import Duration
from django_jobq.exceptions import InvalidDuration, InvalidJob

Backoff = Literal["exponential", "fixed", "none"]

DEFAULT_MAX_ATTEMPTS = 3
_KEYS_OF = {
    "exponential": {"base", "factor", "max", "jitter"},
    "fixed": {"delay"},
    "none": set[str](),
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Say how often a failing job runs in all, and how long it waits in between.

    Build it with `exponential()`, `fixed()`, `none()` or `parse()`, which take duration text;
    the fields are plain seconds.
    """

    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    backoff: Backoff = "exponential"
    delay: float = 0.0
    base: float = 1.0
    factor: float = 2.0
    max: float = 300.0
    jitter: bool = True

    def __post_init__(self) -> None:
        for problem in _problems(self):
            raise InvalidJob(f"retry: {problem}")

    @classmethod
    def exponential(
        cls,
        max_attempts: int = DEFAULT_MAX_ATTEMPTS,
        *,
        base: Duration = "1s",
        factor: float = 2.0,
        max: Duration = "5m",
        jitter: bool = True,
    ) -> RetryPolicy:
        """Return a policy whose wait grows by ``factor`` from ``base`` up to ``max``."""
        return cls.parse(
            {
                "max_attempts": max_attempts,
                "base": base,
                "factor": factor,
                "max": max,
                "jitter": jitter,
            }
        )

    @classmethod
    def fixed(cls, max_attempts: int = DEFAULT_MAX_ATTEMPTS, *, delay: Duration) -> RetryPolicy:
        """Return a policy that waits ``delay`` each time."""
        return cls.parse({"max_attempts": max_attempts, "backoff": "fixed", "delay": delay})

    @classmethod
    def none(cls, max_attempts: int = 1) -> RetryPolicy:
        """Return a policy without waits; by default the one that never retries."""
        return cls(max_attempts=max_attempts, backoff="none")

    @classmethod
    def parse(cls, declaration: RetryDeclaration) -> RetryPolicy:
        """Return the policy that a number of attempts, a dict of its keys or a policy declares."""
        if isinstance(declaration, RetryPolicy):
            return declaration
        if isinstance(declaration, int) and not isinstance(declaration, bool):
            return cls(max_attempts=declaration)
        if isinstance(declaration, Mapping):
            return cls(**_parse_keys(declaration))
        raise InvalidJob(
            f"retry: {declaration!r} is neither a number of attempts, a dict nor a RetryPolicy"
        )

    def delay_after(self, attempt: int, share: Callable[[], float] = random.random) -> float | None:
        """Return the seconds to wait after failed ``attempt``, or None to give up."""
        if attempt >= self.max_attempts:
            return None
        if self.backoff == "none":
            return 0.0
        if self.backoff == "fixed":
            return self.delay
        wait = exponential_backoff(attempt, base=self.base, factor=self.factor, longest=self.max)
        return wait * share() if self.jitter else wait

    def to_json(self) -> dict[str, Any]:
        """Return the policy as a JSON object whose durations are seconds."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> RetryPolicy:
        """Return the policy that `to_json()` wrote; keys of a later version are left out."""
        names = {field.name for field in dataclasses.fields(cls)}
        return cls(**{key: item for key, item in value.items() if key in names})


RetryDeclaration = int | Mapping[str, Any] | RetryPolicy


def exponential_backoff(attempt: int, *, base: float, factor: float, longest: float) -> float:
    """Return seconds within [0, longest] for any attempt and any factor; never raise."""
    if not (math.isfinite(factor) and factor > 0):
        factor = 1.0
    if base <= 0 or longest <= 0:
        return 0.0
    try:
        # Floats: a power of whole numbers has no limit and would take hours.
        wait = base * float(factor) ** (max(attempt, 1) - 1)
    except OverflowError:
        return longest
    return min(wait, longest)


def _parse_keys(declaration: Mapping[str, Any]) -> dict[str, Any]:
    backoff = declaration.get("backoff", "exponential")
    if backoff not in list(_KEYS_OF):
        raise InvalidJob(f"retry: backoff {backoff!r} is none of {', '.join(_KEYS_OF)}")
    allowed = {"max_attempts", "backoff"} | _KEYS_OF[backoff]
    for key in declaration:
        if key not in allowed:
            raise InvalidJob(
                f"retry: key {key!r} does not go with {backoff} backoff; allowed are"
                f" {', '.join(sorted(allowed))}"
            )
    if backoff == "fixed" and "delay" not in declaration:
        raise InvalidJob("retry: fixed backoff needs the key 'delay'")
    return {key: _parse_key(key, value) for key, value in declaration.items()}


def _parse_key(key: str, value: object) -> object:
    if key not in {"delay", "base", "max"}:
        return value
    try:
        return (
            durations.parse_setting(value)
            if key == "delay"
            else durations.parse_positive_setting(value)
        )
    except InvalidDuration as error:
        raise InvalidJob(f"retry: {key}: {error}") from error


def _problems(policy: RetryPolicy) -> list[str]:
    found = []
    if policy.backoff not in list(_KEYS_OF):
        found.append(f"backoff {policy.backoff!r} is none of {', '.join(_KEYS_OF)}")
    if not _is_int(policy.max_attempts) or policy.max_attempts < 1:
        found.append(f"max_attempts {policy.max_attempts!r} is no whole number from 1")
    for name in ("delay", "base", "max"):
        value = getattr(policy, name)
        if not _is_number(value) or not math.isfinite(value) or value < 0:
            found.append(f"{name} {value!r} is no number of seconds; RetryPolicy.parse reads text")
    if not (_is_number(policy.factor) and math.isfinite(policy.factor) and policy.factor > 0):
        found.append(f"factor {policy.factor!r} is no finite number above 0")
    if not isinstance(policy.jitter, bool):
        found.append(f"jitter {policy.jitter!r} is neither True nor False")
    if not found and policy.backoff == "exponential" and not 0 < policy.base <= policy.max:
        found.append(f"base ({policy.base:g} s) must lie above 0 and not above max")
    return found


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
