"""The envelope: its wire form, byte by byte, and what is refused on the way in."""

import dataclasses
import datetime as dt
import json
import math
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from django_jobq.envelope import MAX_ERRORS, Envelope, decode_or_none, log_fields
from django_jobq.exceptions import EnvelopeError
from django_jobq.retry import RetryPolicy
from django_jobq.serialization import dump, load

GOLDEN = Path(__file__).parent / "golden"

JOB_ID = uuid.UUID("0b6f6f2e-4a53-4d1c-9c66-0f3f0e7f5a11")
MINIMAL = Envelope(
    job_id=JOB_ID,
    job="shop.jobs.send_receipt",
    queue="default",
    enqueued_at=1767225600000,
)
TAGGED_ARGS = [
    dt.datetime(2026, 1, 1, tzinfo=dt.UTC),
    dt.datetime(2026, 1, 1, 12, 30, 0, 1),
    dt.date(2026, 1, 31),
    dt.time(23, 59, 59, 999999),
    dt.timedelta(days=1, seconds=2, microseconds=3),
    Decimal("19.90"),
    uuid.UUID("9a3b2c1d-0000-4000-8000-00000000cafe"),
]
TAGGED_KWARGS = {
    "raw": {"$t": "decimal", "v": "not a decimal"},
    "deep": {"prices": [Decimal("1E+2")]},
}
ENVELOPES = {
    "minimal": MINIMAL,
    "full": Envelope(
        job_id=JOB_ID,
        job="shop.jobs.send_receipt",
        queue="email",
        attempt=3,
        deferrals=2,
        priority=7,
        enqueued_at=1767225600123,
        correlation_id="order-42",
        args=[42, "Grüße, 世界 🎉", None, True, -1.5, ["a", ["b"]]],
        kwargs={"copy_to": ["ann@example.com"], "options": {"html": False}},
    ),
    "tagged": Envelope(
        job_id=JOB_ID,
        job="shop.jobs.send_receipt",
        queue="default",
        enqueued_at=1767225600000,
        args=[dump(value, "argument") for value in TAGGED_ARGS],
        kwargs={key: dump(value, key) for key, value in TAGGED_KWARGS.items()},
    ),
    "headers": Envelope(
        job_id=JOB_ID,
        job="shop.jobs.send_receipt",
        queue="default",
        attempt=2,
        enqueued_at=1767225600000,
        args=["a"],
        headers={
            "retry": RetryPolicy.exponential(5, base="500ms", max="2m").to_json(),
            "timeout": 30.0,
            "errors": [
                {
                    "attempt": 1,
                    "at": 1767225601000,
                    "type": "builtins.ValueError",
                    "message": "no stock",
                }
            ],
            "unknown_since": 1767225602000,
        },
    ),
}


def body(**changes: Any) -> bytes:
    """Return the minimal body with fields changed; ``...`` leaves one out."""
    fields = {**json.loads((GOLDEN / "minimal.json").read_bytes()), **changes}
    return json.dumps({key: item for key, item in fields.items() if item is not ...}).encode()


@pytest.mark.contract(34)
@pytest.mark.parametrize("name", ENVELOPES)
def test_the_golden_bytes_are_what_encode_writes(name: str) -> None:
    assert ENVELOPES[name].encode() == (GOLDEN / f"{name}.json").read_bytes()


@pytest.mark.contract(34)
@pytest.mark.parametrize("name", ENVELOPES)
def test_the_golden_bytes_are_what_decode_reads(name: str) -> None:
    assert Envelope.decode((GOLDEN / f"{name}.json").read_bytes()) == ENVELOPES[name]


def test_every_golden_file_is_checked() -> None:
    assert {path.stem for path in GOLDEN.glob("*.json")} == set(ENVELOPES)


def test_the_tagged_arguments_come_back_equal() -> None:
    envelope = Envelope.decode((GOLDEN / "tagged.json").read_bytes())
    assert [load(value) for value in envelope.args] == TAGGED_ARGS
    assert {key: load(value) for key, value in envelope.kwargs.items()} == TAGGED_KWARGS


@pytest.mark.contract(34)
@pytest.mark.parametrize(
    "changes",
    [
        {"job": "größer", "queue": "größer"},
        {"args": ["\x00", "\ud800", "\u2028", '"\\']},
        {"args": [0.1, 1e300, 5e-324, -0.0, 10**4000]},
        {"kwargs": {"": None, "a b": [[], {}]}},
        {"correlation_id": ""},
        {"attempt": 2**32 - 1, "deferrals": 10**9, "priority": 255, "enqueued_at": 0},
        {"headers": {"trace": {"parent": "00-abc"}}},
    ],
)
def test_what_is_encoded_is_decoded_equal(changes: dict[str, Any]) -> None:
    envelope = Envelope(
        **{
            "job_id": JOB_ID,
            "job": "a",
            "queue": "default",
            "enqueued_at": 1767225600000,
            **changes,
        }
    )
    assert Envelope.decode(envelope.encode()) == envelope


def test_the_body_is_ascii() -> None:
    assert ENVELOPES["full"].encode().isascii()


@pytest.mark.contract(35)
def test_missing_optional_fields_have_their_defaults() -> None:
    envelope = Envelope.decode(body(deferrals=..., priority=..., correlation_id=...))
    assert envelope == MINIMAL
    assert (envelope.deferrals, envelope.priority, envelope.correlation_id) == (0, 0, None)
    assert envelope.headers == {}


@pytest.mark.contract(36)
def test_what_is_unset_is_not_in_the_body() -> None:
    assert list(json.loads(MINIMAL.encode())) == [
        "job_id",
        "job",
        "queue",
        "attempt",
        "deferrals",
        "priority",
        "enqueued_at",
        "args",
        "kwargs",
    ]


@pytest.mark.contract(37)
@pytest.mark.parametrize(
    "changes", [{"later": [1]}, {"version": 1}, {"correlation_id": None}, {"headers": {}}]
)
def test_a_body_with_more_in_it_decodes(changes: dict[str, Any]) -> None:
    assert Envelope.decode(body(**changes)) == MINIMAL


@pytest.mark.contract(37)
@pytest.mark.parametrize(
    "name", ["job_id", "job", "queue", "attempt", "enqueued_at", "args", "kwargs"]
)
def test_a_missing_field_is_named(name: str) -> None:
    with pytest.raises(EnvelopeError) as caught:
        Envelope.decode(body(**{name: ...}))
    assert str(caught.value) == f"malformed envelope: field {name!r} is missing"


@pytest.mark.contract(37, 38)
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"job_id": 5}, "field 'job_id' is int"),
        ({"job_id": "5"}, "job_id '5' is no UUID"),
        ({"job_id": ""}, "job_id '' is no UUID"),
        ({"job": None}, "field 'job' is NoneType"),
        ({"queue": ["default"]}, "field 'queue' is list"),
        ({"attempt": 0}, "field 'attempt' is 0"),
        ({"attempt": -1}, "field 'attempt' is -1"),
        ({"attempt": "1"}, "field 'attempt' is '1'"),
        ({"attempt": 1.0}, "field 'attempt' is 1.0"),
        ({"attempt": True}, "field 'attempt' is True"),
        ({"attempt": None}, "field 'attempt' is None"),
        ({"deferrals": -1}, "field 'deferrals' is -1"),
        ({"deferrals": 0.5}, "field 'deferrals' is 0.5"),
        ({"deferrals": None}, "field 'deferrals' is None"),
        ({"priority": -1}, "field 'priority' is -1"),
        ({"priority": 256}, "field 'priority' is 256"),
        ({"priority": "high"}, "field 'priority' is 'high'"),
        ({"enqueued_at": -1}, "field 'enqueued_at' is -1"),
        ({"enqueued_at": "2026-01-01"}, "field 'enqueued_at' is '2026-01-01'"),
        ({"correlation_id": 5}, "field 'correlation_id' is int"),
        ({"args": {}}, "field 'args' is dict"),
        ({"args": "abc"}, "field 'args' is str"),
        ({"kwargs": []}, "field 'kwargs' is list"),
        ({"kwargs": None}, "field 'kwargs' is NoneType"),
        ({"headers": []}, "field 'headers' is list"),
        ({"headers": None}, "field 'headers' is NoneType"),
        ({"version": "1"}, "version '1'"),
        ({"version": 0}, "version 0"),
        ({"version": True}, "version True"),
        (
            {"version": 2},
            "it has version 2 and this code reads up to 1; update the worker",
        ),
    ],
)
def test_a_field_of_the_wrong_kind_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(EnvelopeError) as caught:
        Envelope.decode(body(**changes))
    assert str(caught.value) == f"malformed envelope: {message}"


@pytest.mark.contract(37)
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"not json",
        b"{",
        b"\xff\xfe",
        b"\x80abc",
        b'{"job_id": NaN}',
        b'{"args": [Infinity]}',
        b'{"attempt": ' + b"9" * 5000 + b"}",
        b"[" * 100_000,
    ],
)
def test_what_is_not_json_is_refused_with_its_cause(raw: bytes) -> None:
    with pytest.raises(EnvelopeError, match=r"^malformed envelope: ") as caught:
        Envelope.decode(raw)
    assert isinstance(caught.value.__cause__, ValueError | RecursionError)


@pytest.mark.contract(37)
@pytest.mark.parametrize("raw", [b"null", b"[]", b'"text"', b"5", b"true"])
def test_json_that_is_no_object_is_refused(raw: bytes) -> None:
    with pytest.raises(EnvelopeError, match=r"^malformed envelope: the body is no JSON object$"):
        Envelope.decode(raw)


@pytest.mark.contract(37)
def test_a_number_beyond_floats_is_refused_since_no_successor_could_be_written() -> None:
    with pytest.raises(EnvelopeError, match="malformed envelope"):
        Envelope.decode(body(args=[0]).replace(b"[0]", b"[1e999]"))


def test_what_json_cannot_hold_is_not_written() -> None:
    with pytest.raises(ValueError, match="JSON"):
        MINIMAL.with_headers(ratio=math.nan).encode()


@pytest.mark.contract(31, 39)
def test_the_next_attempt_is_a_new_envelope() -> None:
    original = ENVELOPES["full"]
    successor = original.next_attempt()
    assert successor is not original
    assert (original.attempt, successor.attempt) == (3, 4)
    assert successor == Envelope(
        job_id=JOB_ID,
        job=original.job,
        queue=original.queue,
        attempt=4,
        deferrals=2,
        priority=7,
        enqueued_at=original.enqueued_at,
        correlation_id="order-42",
        args=original.args,
        kwargs=original.kwargs,
    )


@pytest.mark.contract(32, 39)
def test_the_deferred_form_is_a_new_envelope() -> None:
    original = ENVELOPES["full"]
    successor = original.deferred()
    assert successor is not original
    assert (original.deferrals, successor.deferrals) == (2, 3)
    assert (successor.attempt, successor.priority, successor.job_id) == (3, 7, JOB_ID)
    assert successor.correlation_id == "order-42"


@pytest.mark.contract(39)
def test_headers_are_merged_and_none_removes_one() -> None:
    original = MINIMAL.with_headers(a=1, b=2)
    assert original.with_headers(b=None, c=3).headers == {"a": 1, "c": 3}
    assert original.headers == {"a": 1, "b": 2}
    assert MINIMAL.headers == {}


@pytest.mark.contract(39)
def test_the_history_keeps_the_last_errors() -> None:
    envelope = MINIMAL
    for attempt in range(1, 9):
        envelope = envelope.with_error({"attempt": attempt})
    assert MAX_ERRORS == 5
    assert envelope.headers["errors"] == [{"attempt": attempt} for attempt in range(4, 9)]
    assert MINIMAL.headers == {}


@pytest.mark.contract(39)
def test_an_envelope_does_not_change() -> None:
    with pytest.raises(AttributeError):
        MINIMAL.attempt = 2  # type: ignore[misc]


@pytest.mark.contract(200)
def test_the_fields_of_a_log_record_about_a_job() -> None:
    envelope = dataclasses.replace(MINIMAL, attempt=4)
    assert log_fields(envelope, "elsewhere") == {
        "job_id": envelope.job_id,
        "job": envelope.job,
        "queue": "elsewhere",
        "attempt": 4,
    }
    assert log_fields(None, "email") == {
        "job_id": None,
        "job": None,
        "queue": "email",
        "attempt": None,
    }


def test_a_body_that_may_be_none() -> None:
    assert decode_or_none(MINIMAL.encode()) == MINIMAL
    assert decode_or_none(b"rubbish") is None
