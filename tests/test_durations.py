"""Durations: text and timedelta in, seconds out, and clear refusals."""

from datetime import timedelta

import pytest

from django_jobq.durations import (
    format_seconds,
    parse,
    parse_positive,
    parse_positive_setting,
    parse_retry_after,
    parse_setting,
)
from django_jobq.exceptions import InvalidDuration, JobqError

# What the HTTP dates below are read against: Sun, 06 Nov 1994 08:49:37 GMT.
NOW = 784111777.0


@pytest.mark.contract(96)
@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1ms", 0.001),
        ("500ms", 0.5),
        ("30s", 30.0),
        ("5m", 300.0),
        ("2h", 7200.0),
        ("1d", 86400.0),
        ("45", 45.0),
        ("0", 0.0),
        ("0s", 0.0),
        ("0ms", 0.0),
        ("007s", 7.0),
        ("5 m", 300.0),
        ("  5  m  ", 300.0),
        ("\t90\ts\n", 90.0),
        ("999999999d", 999999999 * 86400.0),
    ],
)
def test_text_is_a_whole_number_and_a_unit(text: str, seconds: float) -> None:
    assert parse(text) == seconds


@pytest.mark.contract(96)
@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "s",
        "1.5s",
        "1,5s",
        "1e3s",
        "-5s",
        "+5s",
        "- 5s",
        "5S",
        "5 M",
        "5min",
        "5sec",
        "5w",
        "5us",
        "5m30s",
        "5 m s",
        "5s.",
        "1_000s",
        "\u0665s",
        "\uff15s",
        "5\u00a0s",
        "inf",
        "nan",
        "five minutes",
    ],
)
def test_other_text_is_refused_with_the_way_to_write_it(text: str) -> None:
    with pytest.raises(InvalidDuration) as caught:
        parse(text)
    assert str(caught.value) == (
        f"{text!r} is no duration: write a whole number and a unit, as in '500ms', '30s', '5m',"
        " '2h' or '1d'"
    )


@pytest.mark.contract(96, 105)
@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (timedelta(0), 0.0),
        (timedelta(milliseconds=1), 0.001),
        (timedelta(minutes=1, microseconds=5), 60.000005),
        (timedelta(days=2), 172800.0),
        (timedelta(microseconds=-1), 0.0),
        (timedelta(days=-3), 0.0),
        (timedelta.max, timedelta.max.total_seconds()),
    ],
)
def test_a_timedelta_is_its_seconds_and_a_negative_one_is_none(
    value: timedelta, seconds: float
) -> None:
    assert parse(value) == seconds


@pytest.mark.contract(96)
@pytest.mark.parametrize("value", [5, 0, 1.5, float("inf"), True, None, b"5s", ["5s"], object])
def test_a_bare_number_or_anything_else_is_refused(value: object) -> None:
    with pytest.raises(InvalidDuration) as caught:
        parse(value)
    assert str(caught.value) == (
        f"{value!r} is no duration: write text with a unit such as '30s' or '5m', or a timedelta"
    )


@pytest.mark.contract(105)
@pytest.mark.parametrize("text", ["1000000001d", "99999999999999999999d", "1" + "0" * 30 + "ms"])
@pytest.mark.parametrize("read", [parse, parse_setting, parse_positive, parse_retry_after])
def test_a_duration_beyond_the_calendar_is_refused(read, text: str) -> None:
    with pytest.raises(InvalidDuration, match="is longer than any calendar") as caught:
        read(text)
    assert text in str(caught.value)


def test_the_refusal_is_a_value_error_and_one_of_ours() -> None:
    assert issubclass(InvalidDuration, ValueError)
    assert issubclass(InvalidDuration, JobqError)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(0, 0.0), (30, 30.0), ("30", 30.0), ("2m", 120.0), (timedelta(seconds=3), 3.0)],
)
def test_in_settings_a_whole_number_means_seconds(value: object, seconds: float) -> None:
    assert parse_setting(value) == seconds


@pytest.mark.parametrize("value", [True, False, 1.5, float("nan"), None, -5, "-5"])
def test_in_settings_other_values_are_refused(value: object) -> None:
    with pytest.raises(InvalidDuration, match=r"is no duration: write .* as"):
        parse_setting(value)


@pytest.mark.contract(95, 96)
@pytest.mark.parametrize("value", [0, "0", "0s", "0ms", timedelta(0), timedelta(seconds=-1)])
def test_where_nothing_is_too_short_zero_is_refused(value: object) -> None:
    with pytest.raises(InvalidDuration) as caught:
        parse_positive_setting(value)
    assert str(caught.value) == f"{value!r} is zero; it must be longer"


@pytest.mark.parametrize(("value", "seconds"), [("1ms", 0.001), (1, 1.0), ("5m", 300.0)])
def test_a_positive_duration_is_its_seconds(value: object, seconds: float) -> None:
    assert parse_positive_setting(value) == seconds


@pytest.mark.contract(96)
@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        ("120", 120.0),
        ("0", 0.0),
        ("0.0", 0.0),
        ("0.00", 0.0),
        ("1.5", 1.5),
        (" 2.25 ", 2.25),
        ("30s", 30.0),
        ("5m", 300.0),
        (timedelta(seconds=7), 7.0),
        (timedelta(seconds=-7), 0.0),
        ("Sun, 06 Nov 1994 08:50:37 GMT", 60.0),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 0.0),
        ("Sun, 06 Nov 1994 08:49:36 GMT", 0.0),
        ("Sunday, 06-Nov-94 08:50:37 GMT", 60.0),
        ("Sun, 06 Nov 1994 09:50:37 +0100", 60.0),
    ],
)
def test_a_retry_after_value_is_read(value: str | timedelta, seconds: float) -> None:
    assert parse_retry_after(value, now=lambda: NOW) == seconds


@pytest.mark.contract(96)
@pytest.mark.parametrize("value", ["Sun Nov  6 08:50:37 1994", "Sun, 06 Nov 1994 08:50:37 -0000"])
def test_an_http_date_without_a_zone_is_in_utc(value: str) -> None:
    assert parse_retry_after(value, now=lambda: NOW) == 60.0


@pytest.mark.contract(96, 105)
@pytest.mark.parametrize(
    "value",
    ["", "-1", "-1.5", "nan", "inf", "1e5", "1.5s", "tomorrow", "Sun, 99 Nov 1994 08:49:37 GMT"],
)
def test_a_retry_after_value_that_says_nothing_is_refused(value: str) -> None:
    with pytest.raises(InvalidDuration) as caught:
        parse_retry_after(value)
    assert str(caught.value) == (
        f"{value!r} is neither a duration such as '30s' nor a Retry-After value"
    )


@pytest.mark.contract(96, 105)
@pytest.mark.parametrize(
    "value", ["Mon, 1 Jan 99999999999999999999 00:00:00 GMT", "9" * 400 + ".5"]
)
def test_a_retry_after_value_beyond_the_calendar_is_refused(value: str) -> None:
    with pytest.raises(InvalidDuration):
        parse_retry_after(value)


@pytest.mark.parametrize("value", [5, 5.0, None, b"5"])
def test_a_retry_after_value_that_is_no_text_is_refused(value) -> None:
    with pytest.raises(InvalidDuration, match="or a timedelta"):
        parse_retry_after(value)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"),
        (0.25, "250 ms"),
        (1, "1 s"),
        (1.5, "1.5 s"),
        (30, "30 s"),
        (119, "119 s"),
        (120, "2 min"),
        (5400, "90 min"),
        (7200, "2 h"),
        (86400, "24 h"),
        (172800, "2 d"),
        (100 * 86400, "100 d"),
    ],
)
def test_seconds_are_shown_in_the_unit_that_reads_best(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(("seconds", "text"), [(1000 * 86400, "1000 d"), (3650 * 86400, "3650 d")])
def test_years_are_shown_without_an_exponent(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
