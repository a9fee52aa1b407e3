"""Filing: every dead letter becomes one row, whatever is in it and whatever the database says."""

import json
import os
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import DataError, OperationalError, connections
from django.test.utils import CaptureQueriesContext

from django_jobq.backends.base import Cause
from django_jobq.models import DeadLetter
from django_jobq.store import filing
from django_jobq.store.filing import KEPT_OF_A_BODY
from tests.store.test_text import HOSTILE
from tests.store.tools import USING, envelope, file, letter, together

pytestmark = pytest.mark.django_db(transaction=True, databases=[USING])

ERROR = {"attempt": 3, "at": 1_767_225_600_000, "type": "shop.NoStock", "message": "none left"}
FINAL = {**ERROR, "place": "shop.jobs:ship", "traceback": "Traceback …\nshop.NoStock: none left"}


@pytest.mark.contract(50, 107, 108)
def test_a_letter_tells_what_is_known_of_the_job() -> None:
    now = datetime.now(UTC)
    job = envelope(
        attempt=3,
        deferrals=2,
        correlation_id="order-7",
        enqueued_at=int((now - timedelta(hours=1)).timestamp() * 1000),
        headers={"errors": [ERROR, FINAL]},
    )
    died = now - timedelta(minutes=1)
    (row,) = file(letter(job, reason="gave up", attempts=3, died_at=died.timestamp()))
    assert (row.alias, row.queue, row.job, row.job_id) == (
        "default",
        "default",
        job.job,
        job.job_id,
    )
    assert (row.cause, row.reason, row.attempts, row.deferrals) == ("exhausted", "gave up", 3, 2)
    assert (row.exception, row.traceback) == ("shop.NoStock", FINAL["traceback"])
    assert row.history == [ERROR, ERROR]
    assert (row.correlation_id, row.resolution, row.resolved_at) == ("order-7", "open", None)
    assert bytes(row.body) == job.encode()
    assert row.enqueued_at is not None
    moments = [
        (row.enqueued_at, now - timedelta(hours=1)),
        (row.died_at, died),
        (row.filed_at, now),
    ]
    assert all(abs(found - expected) < timedelta(minutes=5) for found, expected in moments)
    assert row.filed_at - row.died_at >= timedelta(minutes=1)


def test_the_causes_are_those_of_the_backends() -> None:
    assert set(DeadLetter.Cause.values) == set(Cause.__args__)


@pytest.mark.contract(119)
def test_a_body_that_is_no_envelope_keeps_its_bytes() -> None:
    (row,) = file(letter(b"\0\xff no envelope", cause="decode", reason="malformed envelope"))
    assert (row.job_id, row.job, row.enqueued_at, row.history) == (None, "", None, [])
    assert (bytes(row.body), row.reason) == (b"\0\xff no envelope", "malformed envelope")
    assert str(row) == "default (decode)"


@pytest.mark.contract(116)
def test_filing_twice_changes_nothing() -> None:
    first, second = letter(reason="first"), letter()
    file(first)
    again = letter(reason="again", filing_key=first.filing_key)
    assert [row.reason for row in file(again, second, second)] == ["first", ""]


@pytest.mark.contract(116)
def test_filing_at_the_same_time_files_once() -> None:
    letters = [letter(reason=str(number)) for number in range(20)]

    def act(number: int) -> None:
        filing.file("default", random.sample(letters, 20), using=USING)

    together(4, act)
    assert sorted(int(row.reason) for row in file()) == list(range(20))


def test_a_batch_is_one_statement() -> None:
    with CaptureQueriesContext(connections[USING]) as queries:
        file(*(letter() for _ in range(30)))
    assert sum(query["sql"].startswith("INSERT") for query in queries) == 1


def test_an_error_counts_only_if_the_job_died_of_it() -> None:
    job = envelope(headers={"errors": [FINAL]})
    fatal, unknown = file(letter(job, cause="fatal"), letter(job, cause="no_handler"))
    assert (fatal.exception, unknown.exception, unknown.traceback) == ("shop.NoStock", "", "")
    assert unknown.history == [ERROR]


def test_failures_of_one_kind_have_one_fingerprint() -> None:
    def of(job: str = "shop.jobs.ship", cause: str = "exhausted", **error: str) -> str:
        dead = envelope(job=job, headers={"errors": [{**FINAL, **error}]})
        return file(letter(dead, cause=cause))[-1].fingerprint

    alike = [of(), of(message="none left of 8"), of(traceback="line 9"), of(cause="fatal")]
    different = [of(type="shop.Late"), of(place="shop.jobs:pack"), of(job="x"), of(cause="expired")]
    assert len(set(alike)) == 1
    assert len({*alike, *different}) == 5


@pytest.mark.contract(174)
@pytest.mark.parametrize(("hostile", "expected"), HOSTILE.items())
def test_hostile_text_is_filed(hostile: str, expected: str) -> None:
    error = {**FINAL, "type": hostile, "message": hostile, "traceback": hostile, "place": hostile}
    job = envelope(job=hostile, args=[hostile], correlation_id=hostile, headers={"errors": [error]})
    (row,) = file(letter(job, queue=hostile, reason=hostile))
    texts = [row.queue, row.job, row.reason, row.exception, row.traceback, row.correlation_id]
    assert texts == [expected] * 6
    assert row.history[0]["message"] == hostile
    assert bytes(row.body) == job.encode()


@pytest.mark.parametrize(
    "errors",
    [
        *(
            "no list",
            [None, 1, "x"],
            [{}],
            [{"type": 1, "message": [], "traceback": {}, "at": "x"}],
        ),
        *([{"message": "\0\ud800" * 99_999}] * 9, [{"attempt": 10**30, "at": -(10**30)}]),
    ],
)
def test_a_history_of_any_shape_is_filed(errors: Any) -> None:
    (row,) = file(letter(envelope(headers={"errors": errors})))
    assert len(row.history) <= 5
    assert len(row.errors) < 200_000


@pytest.mark.contract(118)
def test_long_text_is_cut_with_a_mark() -> None:
    long = "x" * 100_000
    job = envelope(job=long, correlation_id=long, headers={"errors": [{"traceback": long}]})
    (row,) = file(letter(job, queue=long, reason=long))
    assert [len(text) for text in (row.queue, row.job, row.correlation_id)] == [255] * 3
    assert (len(row.reason), row.reason[-1], len(row.traceback)) == (4_000, "…", 10_000)


def test_numbers_and_moments_beyond_all_bounds_are_filed() -> None:
    job = envelope(attempt=10**30, deferrals=10**30, enqueued_at=10**30)
    rows = file(
        letter(job, attempts=10**30, died_at=1e300), letter(envelope(enqueued_at=0), died_at=-1e300)
    )
    assert rows[0].attempts == rows[0].deferrals == 2**63 - 1
    assert rows[0].died_at == rows[0].enqueued_at == rows[0].filed_at
    assert rows[1].died_at < datetime.now(UTC) - timedelta(days=36_000)


HOSTILE_BODIES = {
    "nothing": b"",
    "nul": b"\0" * 1_000,
    "lone surrogates": json.dumps({"job": "\ud800\udc80" * 1_000}).encode(),
    "binary rubbish": bytes(range(256)) * 100,
    "10 MB": os.urandom(10_000_000),
}


@pytest.mark.contract(119, 174)
@pytest.mark.parametrize("body", HOSTILE_BODIES.values(), ids=HOSTILE_BODIES)
def test_no_body_stops_those_beside_it(body: bytes) -> None:
    rows = file(letter(), letter(body, cause="decode", reason="malformed envelope"), letter())
    assert len(rows) == 3
    hostile = next(row for row in rows if row.job_id is None)
    if len(body) == len(hostile.body):
        assert (bytes(hostile.body), hostile.reason) == (body, "malformed envelope")
        return
    # MariaDB takes statements of 16 MB, unless it is told more.
    assert connections[USING].vendor == "mysql"
    assert bytes(hostile.body) == body[:KEPT_OF_A_BODY]
    assert hostile.reason.startswith("[the database refused the body of 10,000,000 bytes")


def refusing(*, about: Callable[[Any], bool], error: Exception) -> Any:
    """Return a wrapper of statements that refuses those with such a parameter."""

    def wrapper(execute: Any, sql: Any, params: Any, many: Any, context: Any) -> Any:
        if sql.startswith("INSERT") and any(about(value) for value in params):
            raise error
        return execute(sql, params, many, context)

    return connections[USING].execute_wrapper(wrapper)


def test_text_that_the_database_refuses_is_filed_in_ascii() -> None:
    """As on a database that is not in UTF-8."""
    job = envelope(job="versenden_ü")

    def about(value: Any) -> bool:
        return isinstance(value, str) and "ü" in value

    with refusing(about=about, error=DataError("not in this encoding")):
        rows = file(letter(), letter(job, reason="für immer"), letter())
    assert [row.job for row in rows] == ["shop.jobs.ship", r"versenden_\xfc", "shop.jobs.ship"]
    assert (rows[1].reason, bytes(rows[1].body)) == (r"f\xfcr immer", job.encode())


def test_the_beginning_of_a_body_that_the_database_refuses_is_filed() -> None:
    body = os.urandom(KEPT_OF_A_BODY + 1)

    def about(value: Any) -> bool:
        value = getattr(value, "obj", value)  # as PostgreSQL's adapter wraps it
        return isinstance(value, bytes | memoryview) and len(value) > KEPT_OF_A_BODY

    with refusing(about=about, error=OperationalError("gone away")):
        _, row, _ = file(letter(), letter(body, reason="malformed envelope"), letter())
    assert bytes(row.body) == body[:-1]
    assert row.reason.startswith("[the database refused the body of 262,145 bytes")
    assert row.reason.endswith("malformed envelope")


def test_what_is_no_fault_of_a_letter_is_raised_and_nothing_is_filed() -> None:
    letters = [letter(), letter(b"x" * (KEPT_OF_A_BODY + 1))]
    with (
        refusing(about=lambda _: True, error=OperationalError("the disk is full")),
        pytest.raises(OperationalError, match="the disk is full"),
    ):
        file(*letters)
    assert file() == []
    assert len(file(*letters)) == 2


def test_an_index_serves_what_is_asked_of_many_letters() -> None:
    if connections[USING].vendor != "sqlite":
        pytest.skip("the planners of the others choose by how many rows there are")
    letters = DeadLetter.objects.using(USING)
    asked = [
        letters.filter(resolution="open", alias="default").order_by("-id"),
        letters.filter(resolution="open", job="x").order_by("id"),
        letters.filter(resolution="open", queue="x").order_by("id"),
        letters.filter(resolution="open", fingerprint="x").order_by("id"),
        letters.filter(job_id=envelope().job_id),
        letters.filter(resolved_at__lt=datetime.now(UTC)).order_by("resolved_at"),
    ]
    for query in asked:
        plan = query.explain()
        assert "USING INDEX" in plan
        assert "TEMP B-TREE" not in plan
