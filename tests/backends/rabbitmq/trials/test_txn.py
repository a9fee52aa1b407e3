"""Trials of transactions on a broker: what is published is what was committed."""

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from django.core.management import BaseCommand, call_command
from django.db import transaction
from django.db.transaction import TransactionManagementError

from django_jobq import Job, enqueue_many, job, signals
from tests.app.models import Row
from tests.backends.rabbitmq.support import BackendFactory
from tests.backends.rabbitmq.trials.live import Live
from tests.proxy import Proxy

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])


@pytest.fixture
def note() -> Job[[str], None]:
    @job(name="trial.note")
    def note(text: str) -> None: ...

    return note


def texts(live: Live) -> list[str]:
    return [envelope.args[0] for envelope in live.envelopes()]


def test_b13_a_savepoint_takes_its_jobs_with_it(live: Live, note: Job[[str], None]) -> None:
    """What an inner block enqueued is gone with it; the rest comes in order after the commit."""
    live.declare()
    with transaction.atomic():
        note.enqueue("outer")
        with suppress(ValueError), transaction.atomic():
            note.enqueue("inner")
            raise ValueError
        enqueue_many([note.prepare("many"), note.prepare("more")])
        note.enqueue("after")
        assert live.ready() == 0
    with suppress(ValueError), transaction.atomic():
        note.enqueue("never")
        raise ValueError

    assert texts(live) == ["outer", "many", "more", "after"]


@pytest.mark.parametrize("first", [True, False])
def test_b15_a_commit_while_the_broker_is_away_is_told(
    proxied: BackendFactory,
    proxy: Proxy,
    go_live: Callable[..., Live],
    note: Job[[str], None],
    caplog: pytest.LogCaptureFixture,
    first: bool,
) -> None:
    """The data stays, other hooks run, log and signal name each lost job, and the next is sent."""
    live = go_live(proxied, publish_timeout="1s")
    if not first:
        note.enqueue("before")
    failed: list[Any] = []
    ran: list[str] = []

    def receive(**kwargs: Any) -> None:
        failed.append(kwargs)

    signals.job_enqueue_failed.connect(receive)
    proxy.refuse()
    try:
        with transaction.atomic():
            Row.objects.create(name="order")
            lost = [note.enqueue("lost"), note.enqueue("lost too")]
            transaction.on_commit(partial(ran.append, "hook"))
    finally:
        signals.job_enqueue_failed.disconnect(receive)
        proxy.resume()

    assert Row.objects.filter(name="order").count() == 1
    assert ran == ["hook"]
    assert {kwargs["envelope"].job_id for kwargs in failed} == {handle.id for handle in lost}
    told = [r for r in caplog.records if r.name == "django_jobq.producer"]
    assert [record.levelno for record in told] == [logging.ERROR] * 2
    for handle in lost:
        assert str(handle.id) in caplog.text
    while True:
        with suppress(Exception):
            note.enqueue("after")
            break
    assert texts(live)[-1] == "after"
    assert "lost" not in texts(live)


@pytest.mark.parametrize("commits", [True, False])
def test_b17_the_database_of_a_call_decides(
    live: Live, note: Job[[str], None], commits: bool
) -> None:
    """A call that names another database waits for, and falls with, the transaction on it."""
    live.declare()
    with suppress(ValueError), transaction.atomic(using="other"):
        Row.objects.using("other").create(name="row")
        note.using(database="other").enqueue("other")
        note.enqueue("default")
        assert texts(live) == ["default"]
        if not commits:
            raise ValueError

    assert texts(live) == (["default", "other"] if commits else ["default"])


def test_b21_outside_requests_nothing_is_lost(live: Live, note: Job[[str], None]) -> None:
    """A command and a thread publish at once; without a commit to wait for the call is refused."""

    class Nightly(BaseCommand):
        def handle(self, *args: Any, **options: Any) -> None:
            note.enqueue("command")

    call_command(Nightly())
    with transaction.atomic():
        thread = threading.Thread(target=note.enqueue, args=["thread"])
        thread.start()
        thread.join()
        assert texts(live) == ["command", "thread"]
    transaction.set_autocommit(False)
    try:
        with pytest.raises(TransactionManagementError, match="on_commit=False"):
            note.enqueue("manual")
        Row.objects.create(name="row")
        transaction.commit()
        note.using(on_commit=False).enqueue("by hand")
    finally:
        transaction.set_autocommit(True)
    assert texts(live) == ["command", "thread", "by hand"]
