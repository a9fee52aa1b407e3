"""Durations: text or timedelta at the API, float seconds inside.

Text is a whole number with one of the units ms, s, m, h, d; without a unit it means seconds.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, timedelta
from email.utils import parsedate_to_datetime

from django_jobq.exceptions import InvalidDuration

Duration = str | timedelta

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "": 1.0}
_TEXT = re.compile(r"\s*(\d+)\s*(ms|s|m|h|d|)\s*", re.ASCII)
_DECIMAL_SECONDS = re.compile(r"\s*\d+\.\d+\s*", re.ASCII)
_LONGEST = timedelta.max.total_seconds()


def parse(value: object) -> float:
    """Return a duration in seconds; a negative timedelta is 0, a bare number is refused."""
    if isinstance(value, timedelta):
        return max(0.0, value.total_seconds())
    if isinstance(value, str):
        return _bounded(_parse_text(value), value)
    raise InvalidDuration(
        f"{value!r} is no duration: write text with a unit such as '30s' or '5m', or a timedelta"
    )


def parse_setting(value: object) -> float:
    """Return a duration in seconds; in settings a whole number means seconds too."""
    if isinstance(value, int) and not isinstance(value, bool):
        return parse(str(value))
    return parse(value)


def parse_positive(value: object, read: Callable[[object], float] = parse) -> float:
    """Return a duration in seconds that is longer than nothing."""
    seconds = read(value)
    if seconds <= 0:
        raise InvalidDuration(f"{value!r} is zero; it must be longer")
    return seconds


def parse_positive_setting(value: object) -> float:
    """Return a duration of the settings in seconds that is longer than nothing."""
    return parse_positive(value, parse_setting)


def parse_retry_after(value: Duration, now: Callable[[], float] = time.time) -> float:
    """Return seconds from a duration or from a Retry-After value: seconds or an HTTP date.

    A date that has passed is 0. Source: RFC 9110, section 10.2.3; decimal seconds are read too,
    since some services send them.
    """
    if not isinstance(value, str) or _TEXT.fullmatch(value):
        return parse(value)
    if _DECIMAL_SECONDS.fullmatch(value):
        return _bounded(float(value), value)
    try:
        moment = parsedate_to_datetime(value)
    except (OverflowError, ValueError):
        raise InvalidDuration(
            f"{value!r} is neither a duration such as '30s' nor a Retry-After value"
        ) from None
    if moment.tzinfo is None:  # the asctime form, which is in UTC by definition
        moment = moment.replace(tzinfo=UTC)
    return max(0.0, moment.timestamp() - now())


def format_seconds(seconds: float) -> str:
    """Return seconds as short text for logs and reasons: '250 ms', '30 s', '5 min', '2 h'."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{_round(seconds / size)} {unit}"
    return f"{_round(seconds)} s"


def _round(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def _parse_text(text: str) -> float:
    match = _TEXT.fullmatch(text)
    if match is None:
        raise InvalidDuration(
            f"{text!r} is no duration: write a whole number and a unit, as in '500ms', '30s', '5m',"
            " '2h' or '1d'"
        )
    digits, unit = match.groups()
    if len(digits) > 20:
        raise InvalidDuration(f"{text!r} is longer than any calendar")
    return int(digits) * _SECONDS[unit]


def _bounded(seconds: float, text: str) -> float:
    if seconds > _LONGEST:
        raise InvalidDuration(f"{text!r} is longer than any calendar")
    return seconds
