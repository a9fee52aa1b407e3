"""Signals: who is told what, and that no receiver changes what happens."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import transaction
from django.dispatch import Signal

from django_jobq import Defer, Fatal, Job, JobContext, job, signals
from tests.app.jobs import note

WORKER_SIGNALS = (
    "job_started",
    "job_succeeded",
    "job_retried",
    "job_deferred",
    "job_dead_lettered",
)
Received = list[tuple[str, Any, dict[str, Any]]]


@contextlib.contextmanager
def connected(signal: Signal, receiver: Any, sender: Any = None) -> Iterator[None]:
    signal.connect(receiver, sender=sender, weak=False)
    try:
        yield
    finally:
        signal.disconnect(receiver, sender=sender)


@pytest.fixture
def received() -> Iterator[Received]:
    """Record every signal as its name, its sender and its keyword arguments."""
    found: Received = []
    with contextlib.ExitStack() as stack:
        for name in ("job_enqueued", "job_enqueue_failed", *WORKER_SIGNALS):

            def receive(sender: Any, signal: Signal, name: str = name, **kwargs: Any) -> None:
                found.append((name, sender, kwargs))

            stack.enter_context(connected(getattr(signals, name), receive))
        yield found


def names(received: Received) -> list[str]:
    return [name for name, _, _ in received]


def flaky(*outcomes: BaseException | None, **options: Any) -> Job[[], None]:
    """Return a job whose runs end one after the other as ``outcomes`` say."""
    left = list(outcomes)

    def run() -> None:
        error = left.pop(0)
        if error is not None:
            raise error

    return job(name="flaky", **options)(run)


@pytest.mark.contract(20, 195)
def test_an_enqueue_is_told_with_all_that_is_known(memory, received: Received) -> None:
    handle = note.using(delay="5m", correlation_id="order-42").enqueue("hello")
    [(name, sender, kwargs)] = received
    assert (name, sender) == ("job_enqueued", note)
    envelope = kwargs.pop("envelope")
    assert kwargs == {"delay": 300.0, "backend": "default", "driver": "memory"}
    assert (envelope.job_id, envelope.job, envelope.queue) == (
        handle.id,
        "tests.app.jobs.note",
        "default",
    )
    assert (envelope.correlation_id, envelope.args) == ("order-42", ["hello"])


@pytest.mark.contract(195)
def test_an_enqueue_without_a_delay_has_none(received: Received) -> None:
    note.enqueue("hello")
    assert [kwargs["delay"] for _, _, kwargs in received] == [0.0]


@pytest.mark.contract(195)
def test_the_sender_is_the_job_and_not_the_copy_for_a_call(received: Received) -> None:
    with_options = note.using(priority=3)
    assert with_options is not note
    with_options.enqueue("hello")
    assert [sender for _, sender, _ in received] == [note]


@pytest.mark.contract(195)
def test_a_receiver_may_listen_to_one_job() -> None:
    @job(name="other")
    def other() -> None: ...

    heard = []
    with connected(signals.job_enqueued, lambda sender, **_: heard.append(sender), sender=note):
        other.enqueue()
        note.enqueue("hello")
    assert heard == [note]


@pytest.mark.contract(51, 195)
@pytest.mark.django_db(transaction=True)
def test_an_enqueue_in_a_transaction_is_told_after_the_commit(received: Received) -> None:
    with transaction.atomic():
        note.enqueue("hello")
        assert received == []
    assert names(received) == ["job_enqueued"]


@pytest.mark.contract(51, 195)
@pytest.mark.django_db(transaction=True)
def test_an_enqueue_that_is_rolled_back_is_never_told(received: Received) -> None:
    with transaction.atomic():
        note.enqueue("hello")
        transaction.set_rollback(True)
    note.enqueue("second")
    assert [kwargs["envelope"].args for _, _, kwargs in received] == [["second"]]


@pytest.mark.contract(197)
def test_the_names_are_stable() -> None:
    assert {name for name, value in vars(signals).items() if isinstance(value, Signal)} == {
        "job_enqueued",
        "job_enqueue_failed",
        *WORKER_SIGNALS,
    }


@pytest.mark.contract(196, 197)
def test_a_success_is_told(received: Received, drain) -> None:
    handle = flaky(None).enqueue()
    drain()
    assert names(received) == ["job_enqueued", "job_started", "job_succeeded"]
    [_, (_, started_by, started), (_, sender, kwargs)] = received
    assert started_by is sender
    assert sender.name == "flaky"
    assert started["context"].job_id == handle.id
    assert kwargs["context"] == started["context"]
    assert 0 <= kwargs["duration"] < 60
    assert set(kwargs) == {"context", "duration"}


@pytest.mark.contract(196, 197)
def test_a_retry_is_told(received: Received, drain) -> None:
    error = ValueError("no stock")
    flaky(error, None, retry={"backoff": "none"}).enqueue()
    drain()
    assert names(received) == [
        "job_enqueued",
        "job_started",
        "job_retried",
        "job_started",
        "job_succeeded",
    ]
    kwargs = received[2][2]
    assert kwargs["error"] is error
    assert (kwargs["delay"], kwargs["next_attempt"]) == (0.0, 2)
    assert (kwargs["context"].attempt, kwargs["context"].max_attempts) == (1, 3)
    assert set(kwargs) == {"context", "duration", "error", "delay", "next_attempt"}


@pytest.mark.contract(196, 197)
def test_a_deferral_is_told(received: Received, drain) -> None:
    flaky(Defer("0s", reason="rate limited"), None).enqueue()
    drain()
    assert names(received)[1:3] == ["job_started", "job_deferred"]
    kwargs = received[2][2]
    assert (kwargs["delay"], kwargs["reason"], kwargs["deferrals"]) == (0.0, "rate limited", 1)
    assert set(kwargs) == {"context", "duration", "delay", "reason", "deferrals"}


@pytest.mark.contract(196, 197)
def test_a_dead_letter_is_told(received: Received, drain) -> None:
    error = Fatal("no such customer")
    handle = flaky(error, retry=3).enqueue()
    drain()
    assert names(received) == ["job_enqueued", "job_started", "job_dead_lettered"]
    kwargs = received[2][2]
    assert kwargs["envelope"].job_id == handle.id
    assert kwargs["error"] is error
    assert (kwargs["cause"], kwargs["max_attempts"]) == ("fatal", 3)
    assert "no such customer" in kwargs["reason"]
    assert set(kwargs) == {
        "envelope",
        "cause",
        "reason",
        "max_attempts",
        "context",
        "duration",
        "error",
    }


@pytest.mark.contract(197)
def test_a_body_that_is_no_envelope_is_told_without_one(memory, received: Received, drain) -> None:
    memory.inject("default", b"not json")
    drain()
    [(name, sender, kwargs)] = received
    assert (name, sender) == ("job_dead_lettered", None)
    for key in ("envelope", "context", "duration", "error"):
        assert kwargs[key] is None
    assert (kwargs["cause"], kwargs["max_attempts"]) == ("decode", None)


@pytest.mark.contract(198)
@pytest.mark.parametrize("error", [ValueError("receiver failed"), SystemExit("receiver left")])
@pytest.mark.parametrize("name", WORKER_SIGNALS)
def test_a_receiver_that_raises_changes_no_outcome(
    name: str, error: BaseException, memory, drain, caplog
) -> None:
    @job(name="doomed", retry=5)
    def doomed() -> None:
        raise Fatal("gone")

    calls = []

    def explode(**_: Any) -> None:
        calls.append(name)
        raise error

    with connected(getattr(signals, name), explode):
        flaky(ValueError("again"), Defer("0s"), None, retry={"backoff": "none"}).enqueue()
        doomed.enqueue()
        drain()
    assert calls
    assert [
        (envelope.job, kind)
        for envelope, kind in memory.settled("default")
        if envelope.job == "flaky"
    ] == [("flaky", "retried"), ("flaky", "deferred"), ("flaky", "succeeded")]
    assert [letter.envelope.job for letter in memory.dead_letters("default")] == ["doomed"]
    assert any(record.levelname == "ERROR" and record.exc_info for record in caplog.records)


@pytest.mark.contract(198)
@pytest.mark.parametrize("error", [ValueError("receiver failed"), SystemExit("receiver left")])
def test_a_receiver_that_raises_does_not_keep_the_job_from_being_enqueued(
    error: BaseException, memory
) -> None:
    def explode(**_: Any) -> None:
        raise error

    with connected(signals.job_enqueued, explode):
        handle = note.enqueue("hello")
    assert [envelope.job_id for envelope in memory.pending("default")] == [handle.id]


@pytest.mark.contract(198)
def test_the_receivers_behind_one_that_raises_are_called(memory) -> None:
    def explode(**_: Any) -> None:
        raise ValueError("receiver failed")

    heard = []
    with (
        connected(signals.job_enqueued, explode),
        connected(signals.job_enqueued, lambda sender, **_: heard.append(sender)),
    ):
        note.enqueue("hello")
    assert heard == [note]


@pytest.mark.contract(199)
def test_nothing_is_sent_when_nobody_listens(
    memory, drain, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = []
    monkeypatch.setattr(signals, "send", lambda signal, *_args, **_kwargs: sent.append(signal))
    flaky(ValueError("again"), Defer("0s"), Fatal("gone"), retry={"backoff": "none"}).enqueue()
    drain()
    assert sent == []
    with connected(signals.job_enqueued, lambda **_: None):
        note.enqueue("hello")
    assert sent == [signals.job_enqueued]


@pytest.mark.contract(199)
def test_nothing_is_sent_of_a_job_that_nobody_listens_to(
    memory, drain, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = []
    monkeypatch.setattr(signals, "send", lambda signal, *_args, **_kwargs: sent.append(signal))
    with contextlib.ExitStack() as stack:
        for name in ("job_enqueued", *WORKER_SIGNALS):
            stack.enter_context(connected(getattr(signals, name), lambda **_: None, sender=note))
        flaky(ValueError("again"), None, retry={"backoff": "none"}).enqueue()
        drain()
    assert sent == []


def test_send_logs_a_receiver_that_exits(caplog) -> None:
    def leave(**_: Any) -> None:
        raise SystemExit(3)

    with connected(signals.job_started, leave):
        signals.send(signals.job_started, note, context=JobContext(job=note.name))
    assert caplog.record_tuples == [
        ("django_jobq.signals", 40, "A signal receiver raised SystemExit; ignored")
    ]
