"""The relay: what a database has stored is published once it is due, and once only."""

import contextlib
import logging
from collections.abc import Callable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from django_jobq.envelope import Envelope
from django_jobq.exceptions import BackendUnavailable, PublishFailed
from django_jobq.models import StoredJob
from django_jobq.queues import QueueConfig
from django_jobq.store import outbox, rows
from django_jobq.store.rows import KEPT, DatabaseTime, NewJob
from django_jobq.worker import relay as relay_module
from django_jobq.worker.relay import Relay
from tests.store.tools import (
    USING,
    claim,
    elapse,
    enqueue,
    envelope,
    gone,
    in_open_transaction,
    put,
    stored,
    together,
)
from tests.stored.conftest import StoringBackend

pytestmark = pytest.mark.django_db(transaction=True, databases=[USING])

AN_HOUR = 3600.0


@pytest.fixture
def relay(storing: StoringBackend) -> Relay:
    return Relay(storing, USING)


def published(backend: StoringBackend) -> list[Envelope]:
    return backend.pending("default")


def refuse_all(error: Exception) -> Callable[[Envelope], Exception]:
    return lambda _: error


@pytest.mark.contract(103, 171)
def test_a_hold_is_published_once_it_is_due(storing: StoringBackend, relay: Relay) -> None:
    job = envelope()
    put(job, AN_HOUR)
    relay.sweep()
    assert published(storing) == []
    elapse(AN_HOUR)
    relay.sweep()

    assert published(storing) == [job]
    assert stored() == []
    assert [row.job_id for row in gone()] == [job.job_id]


def test_the_relay_forgets_what_is_gone_for_long(storing: StoringBackend) -> None:
    put(envelope())
    Relay(storing, USING).sweep()
    elapse(KEPT.total_seconds() + 1)
    Relay(storing, USING).sweep()

    assert gone() == []


@pytest.mark.contract(97, 100, 142)
def test_a_deferral_goes_in_front_and_a_retry_to_its_own_level(
    storing: StoringBackend, relay: Relay
) -> None:
    waiting = envelope()
    storing.publish(waiting)
    retried, deferred = envelope(attempt=2), envelope(deferrals=1)
    put(retried)
    put(deferred, front=True)
    relay.sweep()

    assert published(storing) == [deferred, waiting, retried]


def test_the_relay_sleeps_until_the_next_hold_and_a_second_at_most(
    storing: StoringBackend, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert relay.sweep() == 1.0
    put(envelope(), AN_HOUR)
    assert relay.sweep() == 1.0
    monkeypatch.setattr(relay_module, "_LONGEST_SLEEP", 2 * AN_HOUR)
    assert AN_HOUR - 600 < relay.sweep() <= AN_HOUR


@pytest.mark.contract(49, 51)
def test_a_row_of_the_outbox_is_published_after_its_grace(
    storing: StoringBackend, relay: Relay
) -> None:
    job = envelope()
    enqueue(job)
    relay.sweep()
    assert published(storing) == []
    elapse(outbox.GRACE.total_seconds())
    assert published(storing) == []
    Relay(storing, USING).sweep()

    assert published(storing) == [job]
    assert stored() == []


@pytest.mark.contract(51)
def test_a_long_transaction_meets_its_own_hook_first(storing: StoringBackend, relay: Relay) -> None:
    """What commits after longer than the grace is seen for the first time then."""
    job = envelope()
    with in_open_transaction(lambda: enqueue(job)):
        relay.sweep()
    elapse(2 * outbox.GRACE.total_seconds())
    Relay(storing, USING).sweep()

    assert published(storing) == []
    assert [row.job_id for row in stored()] == [job.job_id]


def test_the_rest_of_a_delay_is_left_to_a_transport_that_holds(
    make_storing: Callable[..., StoringBackend],
) -> None:
    backend = make_storing(holds="broker")
    outbox.put("default", [NewJob(envelope=envelope(), delay=AN_HOUR)], using=USING)
    outbox.sight("default", using=USING, grace=timedelta(0))
    Relay(backend, USING).sweep()

    assert (backend.counts("default").ready, backend.counts("default").held) == (0, 1)
    assert stored() == []


def test_more_than_one_batch_is_published_without_a_pause(
    storing: StoringBackend, relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "_BATCH", 3)
    jobs = [envelope() for _ in range(7)]
    for job in jobs:
        put(job)
    pauses = [relay.sweep() for _ in range(3)]

    assert [pause == 0.0 for pause in pauses] == [True, True, False]
    assert published(storing) == jobs


@pytest.mark.parametrize(("largest", "together"), [(8_000_000, 10), (4_000_000, 16)])
def test_where_jobs_may_be_large_few_are_in_memory_at_once(
    make_storing: Callable[..., StoringBackend], largest: int, together: int
) -> None:
    backend = make_storing(options={"max_payload": largest})
    for _ in range(together + 1):
        put(envelope())
    relay = Relay(backend, USING)

    assert relay.sweep() == 0
    assert len(published(backend)) == together
    relay.sweep()
    assert stored() == []


@pytest.mark.contract(147)
def test_what_the_transport_refuses_waits_with_its_error_and_stops_no_other(
    storing: StoringBackend, relay: Relay, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = envelope(), envelope()
    refused = PublishFailed("no queue for 'default'")
    storing.refuse = lambda job: refused if job == bad else None
    put(bad)
    put(good)
    with caplog.at_level(logging.WARNING):
        relay.sweep()

    (row,) = stored()
    assert published(storing) == [good]
    assert (row.job_id, row.failures, row.leased_by) == (bad.job_id, 1, "")
    assert row.last_error == "no queue for 'default'"
    assert "1 stored job(s) could not be published, again in 1 s: no queue for" in caplog.text
    relay.sweep()
    assert claim() == []  # it pauses


def test_the_pause_grows_with_every_failure_and_ends(storing: StoringBackend, relay: Relay) -> None:
    storing.refuse = refuse_all(PublishFailed("no"))
    put(envelope())
    pauses = []
    for _ in range(12):
        relay.sweep()
        (row,) = StoredJob.objects.using(USING).annotate(now=DatabaseTime())
        pauses.append((row.claimable_at - row.now).total_seconds())
        StoredJob.objects.using(USING).update(claimable_at=row.due_at)

    assert pauses[0] <= 1
    assert 100 < pauses[7] <= 128
    assert all(250 < pause <= 300 for pause in pauses[9:])
    storing.refuse = lambda _: None
    relay.sweep()
    assert len(published(storing)) == 1


@pytest.mark.contract(154)
def test_an_outage_of_the_transport_is_raised_and_costs_no_job_its_place(
    storing: StoringBackend, relay: Relay
) -> None:
    jobs = [envelope() for _ in range(3)]
    for job in jobs:
        put(job)
    storing.refuse = refuse_all(BackendUnavailable("the broker is gone"))
    with pytest.raises(BackendUnavailable, match="is gone"):
        relay.sweep()
    storing.refuse = lambda _: None
    relay.sweep()

    assert published(storing) == jobs
    assert stored() == []


@pytest.mark.contract(147)
def test_a_row_that_failed_a_thousand_times_goes_on_failing_alone(
    storing: StoringBackend, relay: Relay
) -> None:
    bad, good = envelope(), envelope()
    storing.refuse = lambda job: PublishFailed("no") if job == bad else None
    put(bad)
    StoredJob.objects.using(USING).update(failures=5_000)
    put(good)
    relay.sweep()

    assert published(storing) == [good]
    (row,) = stored()
    assert (row.failures, row.leased_by) == (5_001, "")


@pytest.mark.contract(147)
def test_no_row_ends_the_worker_whatever_the_transport_raises(
    storing: StoringBackend, relay: Relay
) -> None:
    bad, good = envelope(), envelope()

    def refuse(job: Envelope) -> None:
        if job == bad:
            raise ValueError("that is no header")

    storing.refuse = refuse
    put(bad)
    put(good)
    relay.sweep()

    assert published(storing) == [good]
    (row,) = stored()
    assert (row.last_error, row.leased_by) == ("that is no header", "")


@pytest.mark.contract(147, 154)
def test_a_queue_that_cannot_be_reached_holds_up_no_other(
    make_storing: Callable[..., StoringBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "_BATCH", 2)
    names = ("default", "away")
    backend = make_storing(queues={name: QueueConfig(name=name) for name in names})
    away = BackendUnavailable("no confirmation in time")
    silences: list[bool] = []

    def give_back(*args: Any, **options: Any) -> int:
        """Be without a connection from then on, which a silence costs."""
        silences.append(True)
        return give_back_rows(*args, **options)

    give_back_rows = rows.give_back
    monkeypatch.setattr(rows, "give_back", give_back)
    backend.refuse = lambda job: away if silences or job.queue == "away" else None
    held, left = envelope(), envelope()
    for _ in range(3):
        put(envelope(queue="away"))
    put(held)
    enqueue(left)
    outbox.sight("default", using=USING, grace=timedelta(0))
    relay = Relay(backend, USING)
    for _ in range(6):
        silences.clear()
        with contextlib.suppress(BackendUnavailable):
            relay.sweep()

    assert {job.job_id for job in published(backend)} == {held.job_id, left.job_id}
    assert {row.queue for row in stored()} == {"away"}


def test_a_lease_outlasts_the_wait_for_the_answers(
    make_storing: Callable[..., StoringBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = make_storing(options={"publish_timeout": "2h"})
    monkeypatch.setattr(backend, "publish", lambda job, _: confirm_late(job))
    job = envelope()
    put(job)

    def confirm_late(_: Envelope) -> Future[None]:
        elapse(2 * AN_HOUR)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    Relay(backend, USING).sweep()

    assert [row.job_id for row in gone()] == [job.job_id]


def test_an_answer_that_does_not_come_leaves_the_row(
    make_storing: Callable[..., StoringBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = make_storing(options={"publish_timeout": "50ms"})
    monkeypatch.setattr(backend, "publish", lambda *_: Future())
    put(envelope())
    with pytest.raises(BackendUnavailable, match="did not confirm in time"):
        Relay(backend, USING).sweep()

    assert len(stored()) == 1


def test_a_body_that_cannot_be_read_here_stays_and_stops_no_other(
    storing: StoringBackend, relay: Relay
) -> None:
    newer, good = envelope(), envelope()
    put(newer)
    StoredJob.objects.using(USING).update(body=b'{"version": 9}')
    put(good)
    relay.sweep()

    assert published(storing) == [good]
    (row,) = stored()
    assert "it has version 9 and this code reads up to 1" in row.last_error


def test_a_queue_that_this_worker_does_not_know_leaves_the_row(
    storing: StoringBackend, relay: Relay
) -> None:
    put(envelope(queue="removed"))
    relay.sweep()

    (row,) = stored()
    assert "'removed'" in row.last_error


@pytest.mark.contract(30, 160)
def test_two_relays_never_publish_one_row_twice(storing: StoringBackend) -> None:
    jobs = [envelope() for _ in range(60)]
    for job in jobs:
        put(job)

    def sweep_to_the_end(_: int) -> None:
        relay = Relay(storing, USING)
        while stored():
            relay.sweep()

    together(4, sweep_to_the_end)

    ids = [job.job_id for job in published(storing)]
    assert sorted(ids) == sorted(job.job_id for job in jobs)


@pytest.mark.parametrize("now", [{"holds": "broker"}, {"outbox": "off", "holds": "broker"}])
def test_what_waits_is_published_whatever_the_settings_say_now(
    make_storing: Callable[..., StoringBackend], now: dict[str, str]
) -> None:
    held, left = envelope(), envelope()
    put(held)
    enqueue(left)
    outbox.sight("default", using=USING, grace=timedelta(0))
    backend = make_storing(**now)
    Relay(backend, USING).sweep()

    assert {job.job_id for job in published(backend)} == {held.job_id, left.job_id}


def test_jobs_of_an_alias_that_was_renamed_are_told_at_the_start(
    storing: StoringBackend, relay: Relay, caplog: pytest.LogCaptureFixture
) -> None:
    put(envelope(), AN_HOUR)
    enqueue(envelope())
    StoredJob.objects.using(USING).update(alias="old")
    put(envelope(), AN_HOUR)
    relay.sweep()
    relay.sweep()

    assert caplog.messages == [
        f"2 stored job(s) in database {USING!r} wait for backend 'old', which JOBQ does not name:"
        " no worker publishes them until it does"
    ]


def test_only_the_jobs_of_its_alias(storing: StoringBackend, relay: Relay) -> None:
    put(envelope())
    StoredJob.objects.using(USING).update(alias="another")
    relay.sweep()

    assert published(storing) == []


def test_a_database_without_the_table_is_named_with_the_remedy(
    make_storing: Callable[..., StoringBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    introspection = type(connections[USING].introspection)
    monkeypatch.setattr(introspection, "table_names", lambda *_: ["auth_user"])
    with pytest.raises(ImproperlyConfigured, match="has no table 'jobq_storedjob'"):
        Relay(make_storing(), USING).sweep()


def test_a_project_that_stores_no_jobs_needs_no_database(
    make_storing: Callable[..., StoringBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise ImproperlyConfigured("settings.DATABASES is improperly configured")

    monkeypatch.setattr(rows, "stored_jobs", refuse)
    relay = Relay(make_storing(outbox="off", holds="broker"), USING)

    assert relay.sweep() == 60


def test_what_others_store_with_the_settings_of_before_is_found(
    make_storing: Callable[..., StoringBackend],
) -> None:
    backend = make_storing(outbox="off", holds="broker")
    relay = Relay(backend, USING)
    assert relay.sweep() == 60
    job = envelope()
    put(job)
    relay.sweep()

    assert published(backend) == [job]
