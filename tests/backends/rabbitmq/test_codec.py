"""Envelopes as messages: the properties of a publish."""

import re
import time
import uuid

import pika
import pytest

from django_jobq.backends.base import clip
from django_jobq.backends.rabbitmq import codec
from tests.backends.contract import make_envelope


class TestCodec:
    backend_name = "rabbitmq"

    @pytest.mark.contract(144)
    def test_a_message_says_what_the_consumer_needs_before_it_decodes(self) -> None:
        envelope = make_envelope(attempt=2, deferrals=3)
        message = codec.encode(envelope, 7)
        assert message.body == envelope.encode()
        assert message.content_type == "application/json"
        assert message.priority == 7
        assert message.type == envelope.job
        assert message.headers == {
            "x-job-id": str(envelope.job_id),
            "x-attempt": 2,
            "x-deferrals": 3,
        }
        assert not hasattr(message, "expiration")

    @pytest.mark.contract(144)
    def test_the_priority_is_set_even_if_it_is_zero(self) -> None:
        assert codec.encode(make_envelope(), 0).priority == 0

    @pytest.mark.contract(144, 147)
    def test_the_message_id_is_new_for_every_publish(self) -> None:
        envelope = make_envelope()
        ids = {codec.encode(envelope, 0).message_id for _ in range(100)}
        assert len(ids) == 100
        assert str(envelope.job_id) not in ids

    @pytest.mark.contract(144)
    @pytest.mark.parametrize(
        ("job", "expected"),
        [("x" * 255, "x" * 255), ("x" * 300, "x" * 255), ("é" * 200, "é" * 127), ("", "")],
    )
    def test_the_type_is_cut_at_a_character(self, job: str, expected: str) -> None:
        assert codec.encode(make_envelope(job=job), 0).type == expected

    @pytest.mark.contract(141)
    def test_only_what_is_held_carries_the_moment(self) -> None:
        before = time.time()
        held = codec.encode(make_envelope(), 0, held=90.5).headers["x-not-before"]
        assert before + 90 <= held / 1000 <= time.time() + 91
        assert isinstance(held, int)
        assert "x-not-before" not in codec.encode(make_envelope(), 0).headers
        assert "x-not-before" not in codec.encode(make_envelope(), 0, held=-1).headers

    @pytest.mark.contract(145)
    def test_a_dead_letter_says_why(self) -> None:
        envelope = make_envelope(attempt=3)
        began = int(time.time() * 1000)
        message = codec.dead_letter(b"body", envelope, "mail", "exhausted", "gave up", "key")
        assert (message.body, message.content_type) == (b"body", "application/json")
        died_at = message.headers["x-died-at"]
        assert began <= died_at <= time.time() * 1000
        assert message.headers == {
            "x-died-at": died_at,
            "x-death-cause": "exhausted",
            "x-death-reason": "gave up",
            "x-original-queue": "mail",
            "x-attempts": 3,
            "x-jobq-filing-key": "key",
            "x-job-id": str(envelope.job_id),
        }

    @pytest.mark.contract(145)
    def test_an_undecodable_dead_letter_keeps_its_body(self) -> None:
        message = codec.dead_letter(b"\x80\x02", None, "mail", "decode", "malformed", "key")
        assert (message.body, message.content_type, message.type) == (b"\x80\x02", None, None)
        assert message.headers["x-attempts"] == 0
        assert "x-job-id" not in message.headers

    @pytest.mark.contract(145)
    def test_b07_the_reason_leaves_room_for_all_headers_in_a_frame(self) -> None:
        reason = clip("😀" * 2_000_000)
        message = codec.dead_letter(b"", make_envelope(), "q" * 255, "fatal", reason, "k" * 64)
        headers = message.headers
        assert sum(len(str(value).encode()) for value in headers.values()) < 100_000
        assert headers["x-death-reason"] == reason

    @pytest.mark.contract(144, 145)
    def test_b93_what_no_header_can_carry_is_spelled_out_or_capped(self) -> None:
        envelope = make_envelope(job="job\ud800", attempt=2**70, deferrals=2**70)
        for message in (
            codec.encode(envelope, 0),
            codec.dead_letter(b"", envelope, "a", "fatal", "half \udc00", "key"),
        ):
            pika.BasicProperties(type=message.type, headers=dict(message.headers)).encode()
            assert message.type == "job\\ud800"
        assert message.headers["x-death-reason"] == "half \\udc00"
        assert message.headers["x-attempts"] == 2**63 - 1

    @pytest.mark.contract(116)
    def test_a_dead_letter_is_known_by_message_id_and_body(self) -> None:
        key = codec.filing_key({}, "1-a", b"body")
        assert re.fullmatch("[0-9a-f]{64}", key)
        assert codec.filing_key({}, "1-a", b"body") == key
        assert codec.filing_key({codec.FILING_KEY: key}, "2-b", b"other") == key
        others = [({}, "1-b", b"body"), ({}, "1-a", b"bodies"), ({}, "1", b"-abody")]
        # Without an id, equal bodies may be two letters: neither may pass for the other.
        others += [({}, None, b"body"), ({}, None, b"body"), ({}, "", b"body")]
        assert len({key, *(codec.filing_key(*other) for other in others)}) == 7

    @pytest.mark.parametrize("carried", ["", "x" * 64, "A" * 64, "a" * 63, 7, None, b"a" * 64])
    def test_a_key_that_is_none_is_not_carried_on(self, carried: object) -> None:
        headers = {codec.FILING_KEY: carried}
        assert codec.filing_key(headers, "1-a", b"") == codec.filing_key({}, "1-a", b"")

    @pytest.mark.contract(143)
    def test_what_the_broker_added_is_stripped(self) -> None:
        job_id = str(uuid.uuid4())
        headers = {
            "x-death": [{"count": 1}],
            "x-first-death-queue": "a",
            "x-first-death-reason": "expired",
            "x-first-death-exchange": "",
            "x-last-death-queue": "a",
            "x-last-death-reason": "expired",
            "x-last-death-exchange": "",
            "x-delivery-count": 4,
            "x-acquired-count": 4,
            "x-job-id": job_id,
            "x-starts": 2,
            "x-death-cause-of-mine": "kept?",
            "trace": "t",
        }
        kept = codec.own_headers(headers)
        assert kept == {"x-job-id": job_id, "x-starts": 2, "trace": "t"}
        assert not any(key.startswith(("x-first-death", "x-last-death")) for key in kept)
        assert "x-death" not in kept
        assert not any(key.endswith("-count") for key in kept)
        assert codec.own_headers(None) == {}
