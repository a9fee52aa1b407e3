"""Trials of job arguments through a broker: what arrives, what is refused, what is too large."""

import datetime as dt
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import transaction
from django.utils import translation
from django.utils.translation import gettext_lazy

from django_jobq import RetryPolicy, job
from django_jobq.exceptions import BackendError, BackendUnavailable, InvalidArguments
from tests.app.models import Row
from tests.backends.rabbitmq.support import BackendFactory
from tests.backends.rabbitmq.trials.live import Live, settled
from tests.broker import PrivateNode
from tests.trials.test_ser import TYPED


def test_b01_b03_arguments_keep_type_and_value_on_every_attempt(live: Live) -> None:
    """Types, offsets, trailing zeros, order and markers survive the broker, and a retry too."""
    seen: list[Any] = []

    @job(name="trial.typed", retry=RetryPolicy.none(2))
    def typed(*args: Any, **kwargs: Any) -> None:
        seen.append((args, kwargs))
        raise ValueError

    values = {"b": 1, "a": {"$t": "uuid", "v": "no uuid"}, "t": (1, (2, None)), "é\0": "\ud83d"}
    typed.enqueue(*TYPED, **values)
    live.work_until(lambda stats: stats.dead_lettered == 1)

    assert len(seen) == 2
    for args, kwargs in seen:
        assert [type(item) for item in args] == [type(item) for item in TYPED]
        assert [str(item) for item in args] == [str(item) for item in TYPED]
        assert list(kwargs) == list(values)
        assert kwargs == {**values, "t": [1, [2, None]]}


@pytest.mark.django_db
def test_b03_b05_b09_what_is_refused_never_reaches_the_broker(live: Live) -> None:
    """What cannot be carried is refused by name before anything connects; the next job runs."""
    ran: list[Any] = []

    @job(name="trial.takes")
    def takes(payload: Any) -> float:
        ran.append(payload)
        return float("nan")

    row = Row.objects.create(name="a")
    refused = [
        float("nan"),
        {"m": [1, float("-inf")]},
        {1: "a"},
        {None: 1},
        row,
        Row(),
        Row.objects.all(),
        User(username="anna"),
    ]
    for value in refused:
        with pytest.raises(InvalidArguments, match="payload"):
            takes.enqueue(value)
    assert live.backend._publisher._engine is None

    takes.using(on_commit=False).enqueue(row.pk)
    stats = live.work_until(settled)
    assert (stats.succeeded, stats.settle_failures) == (1, 0)
    assert ran == [row.pk]


@pytest.mark.django_db(transaction=True)
def test_b09_a_row_that_is_gone_ends_the_job(live: Live) -> None:
    """A job whose row was deleted meanwhile fails by its policy and is filed, not run for ever."""
    row = Row.objects.create(name="a")
    runs: list[int] = []

    @job(name="trial.row", fatal_on=LookupError, retry=5)
    def uses(pk: int) -> None:
        runs.append(pk)
        raise LookupError(f"no row {pk}")  # as Row.DoesNotExist, without a database in the thread

    with transaction.atomic():
        uses.enqueue(row.pk)
    row.delete()
    live.work_until(lambda stats: stats.dead_lettered == 1)

    (letter,) = live.letters()
    assert (letter.cause, letter.attempts, len(runs)) == ("fatal", 1, 1)


@pytest.mark.django_db(transaction=True)
def test_b11_lazy_text_is_translated_at_the_enqueue_call(live: Live) -> None:
    """The language is that of the call, neither that of the commit nor that of the worker."""
    seen: list[Any] = []

    @job(name="trial.lazy")
    def lazy(text: str, nested: dict[str, str]) -> None:
        seen.append((text, nested))

    with transaction.atomic():
        with translation.override("de"):
            lazy.enqueue(gettext_lazy("Yes"), {"answer": gettext_lazy("No")})
        with translation.override("fr"):
            pass
    live.work_until(settled)

    assert seen == [("Ja", {"answer": "Nein"})]
    assert type(seen[0][0]) is str


def test_b07_an_error_of_twenty_megabytes_is_retried_and_filed_in_short(live: Live) -> None:
    """What we add to a job that fails is bounded, on its retry and on its dead letter."""
    sizes: list[int] = []

    @job(name="trial.loud", retry=RetryPolicy.none(2))
    def loud() -> None:
        sizes.append(1)
        raise ValueError("x" * 20_000_000)

    loud.enqueue()
    stats = live.work_until(lambda stats: stats.dead_lettered == 1)

    assert (stats.retried, stats.settle_failures, len(sizes)) == (1, 0, 2)
    (letter,) = live.letters()
    assert "xxx" in letter.reason
    assert len(letter.reason) < 20_000
    assert len(letter.body) < 60_000
    assert letter.envelope.enqueued_at <= dt.datetime.now().timestamp() * 1000


def limit_messages(node: PrivateNode, size: str) -> None:
    """Set the largest message that a node accepts; from 4.0 it reads that at its start."""
    node.eval(
        f"application:set_env(rabbit, max_message_size, {size}),"
        f" persistent_term:put(max_message_size, {size})."
    )


class TestLimitOfTheBroker:
    """The broker may be stricter than OPTIONS['max_payload']."""

    backend_name = "rabbitmq"

    @pytest.fixture
    def strict(self, node: PrivateNode) -> Any:
        """Let the node refuse messages of more than a megabyte."""
        before = node.eval("application:get_env(rabbit, max_message_size, 0).").strip()
        limit_messages(node, "1000000")
        yield
        limit_messages(node, before)

    def test_b07_a_message_that_the_broker_refuses_fails_alone_and_at_once(
        self, strict: None, on_node: BackendFactory, go_live: Any
    ) -> None:
        """The refused call raises without waiting for its deadline, the next one is accepted."""
        live = go_live(on_node, max_payload=10_000_000, publish_timeout="4s")

        @job(name="trial.large")
        def large(text: str) -> None: ...

        first = large.enqueue("before")
        with pytest.raises(BackendError, match="size") as refusal:
            large.enqueue("x" * 2_000_000)
        assert not isinstance(refusal.value, BackendUnavailable)
        second = large.enqueue("after")
        assert [envelope.job_id for envelope in live.envelopes()] == [first.id, second.id]
