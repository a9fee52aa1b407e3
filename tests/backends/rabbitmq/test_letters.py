"""What the headers of a dead message come to, whoever wrote them."""

import datetime as dt
from typing import Any

import pytest

from django_jobq.backends.rabbitmq import codec
from django_jobq.backends.rabbitmq.consumer import Message
from django_jobq.backends.rabbitmq.consumer.frames import Properties
from django_jobq.backends.rabbitmq.letters import letter_of, lost_queue
from django_jobq.backends.rabbitmq.topology import Topology
from django_jobq.store.filing import NewLetter
from tests.backends.contract import make_envelope

TOPOLOGY = Topology(prefix="shop")
JOB = make_envelope(queue="email", attempt=3)
TIME = dt.datetime(2026, 1, 31, 12, tzinfo=dt.UTC)


def message(body: bytes | None = None, **headers: Any) -> Message:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    body = JOB.encode() if body is None else body
    return Message(1, False, Properties(named, 0, "1-a", "job"), body)


def death(reason: str = "expired", queue: str = "shop.q.email.2", **more: Any) -> dict[str, Any]:
    return {"count": 1, "reason": reason, "queue": queue, "time": TIME, **more}


def read(**headers: Any) -> NewLetter:
    return letter_of(message(**headers), TOPOLOGY)


@pytest.mark.contract(108, 145)
def test_a_letter_of_a_worker_is_read_as_it_was_written() -> None:
    sent = codec.dead_letter(JOB.encode(), JOB, "email", "exhausted", "gave up", "a" * 64)
    letter = letter_of(message(**dict(sent.headers)), TOPOLOGY)
    assert (letter.queue, letter.cause, letter.reason) == ("email", "exhausted", "gave up")
    assert (letter.attempts, letter.body, letter.filing_key) == (3, JOB.encode(), "a" * 64)
    assert letter.died_at == sent.headers["x-died-at"] / 1000


@pytest.mark.contract(108)
@pytest.mark.parametrize(
    ("reason", "cause", "told"),
    [
        ("expired", "expired", "message_ttl"),
        ("rejected", "rejected", "rejected by a consumer"),
        ("maxlen", "rejected", "length limit"),
        ("delivery_limit", "delivery_limit", "more often"),
        ("something new", "rejected", "without any reason"),
    ],
)
def test_the_broker_tells_why_it_gave_up_a_job(reason: str, cause: str, told: str) -> None:
    letter = read(x_death=[death(reason), death("expired", "shop.hold.0.5")])
    assert (letter.queue, letter.cause, letter.attempts) == ("email", cause, 2)
    assert told in letter.reason
    assert letter.died_at == TIME.timestamp()
    assert letter.filing_key == codec.filing_key({}, "1-a", JOB.encode())


@pytest.mark.parametrize(
    ("physical", "logical"),
    [
        ("shop.q.email.2", "email"),
        ("shop.q.a.b.c.10", "a.b.c"),
        ("shop.q.email", "shop.q.email"),
        ("shop.q..1", "shop.q..1"),
        ("other.q.email.1", "other.q.email.1"),
        ("", ""),
    ],
)
def test_the_queue_is_named_as_in_the_settings(physical: str, logical: str) -> None:
    assert read(x_death=[death(queue=physical)]).queue == logical


@pytest.mark.contract(151)
@pytest.mark.parametrize(
    ("deaths", "queue"),
    [
        ([death(**{"routing-keys": ["0.0.0.0.5.a.b"]}), death()], "a.b"),
        ([death(**{"routing-keys": ["email"]})], "email"),
        ([death(**{"routing-keys": []})], "email"),
        ([], "email"),
    ],
)
def test_a_lost_job_is_for_the_queue_that_it_was_held_for(
    deaths: list[dict[str, Any]], queue: str
) -> None:
    assert lost_queue(message(x_death=deaths)) == queue


def test_a_lost_body_that_tells_no_queue_is_for_none() -> None:
    assert lost_queue(message(b"\xff")) == ""
