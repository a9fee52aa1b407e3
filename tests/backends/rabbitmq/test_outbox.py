"""The outbox on a real broker: what was committed runs, whatever is killed or away meanwhile.

Jobs are counted by id or by order: as rows, on the broker, and by their runs.
"""

import contextlib
import http.client
import json
import os
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connections, transaction

from django_jobq import Job, enqueue_many, job
from django_jobq.backends.handler import backends
from django_jobq.backends.rabbitmq import RabbitMQBackend
from django_jobq.exceptions import BackendUnavailable
from django_jobq.store import outbox
from django_jobq.store.rows import FRESH, HOLD, OUTBOX
from tests.app.models import Row
from tests.backends.rabbitmq.support import (
    PATIENCE,
    ROOT,
    BackendFactory,
    WorkerProcess,
    browse,
    job_ids,
    ready,
    wait_until,
)
from tests.broker import PrivateNode
from tests.proxy import Proxy
from tests.store.tools import USING, stored

pytestmark = pytest.mark.django_db(transaction=True, databases=[USING])

# How often a process is killed at each point.
ROUNDS = 20


@pytest.fixture
def note() -> Job[[str], None]:
    @job(name="tests.noop", queue="a")
    def note(text: str) -> None: ...

    return note


@pytest.fixture
def publish_through(settings: Any) -> Callable[..., RabbitMQBackend]:
    """Return what makes the default alias like a backend, and what a project gets by default."""

    def use(backend: RabbitMQBackend, **keys: Any) -> RabbitMQBackend:
        settings.JOBQ = {"default": {**setting_of(backend), "DATABASE": USING, **keys}}
        used = backends["default"]
        assert isinstance(used, RabbitMQBackend)
        return used

    return use


def setting_of(backend: RabbitMQBackend) -> dict[str, Any]:
    return {
        "BACKEND": "django_jobq.backends.rabbitmq.RabbitMQBackend",
        "URL": backend.settings.url,
        "QUEUES": list(backend.queues),
        "OPTIONS": dict(backend.settings.options),
    }


def queue(backend: RabbitMQBackend) -> str:
    return backend.topology.work_queue(backend.queue("a"))


def on_the_broker(factory: BackendFactory, backend: RabbitMQBackend) -> list[uuid.UUID]:
    return job_ids(browse(factory.url, queue(backend)))


def atomic() -> Any:
    return transaction.atomic(using=USING)


class TestOutbox:
    backend_name = "rabbitmq"

    @pytest.mark.contract(40, 49, 51)
    def test_what_was_committed_is_on_the_broker_and_no_row_is_left(
        self, make: BackendFactory, publish_through: Any, note: Job[[str], None]
    ) -> None:
        backend = publish_through(make("a"))
        with atomic():
            handles = [note.enqueue("first"), *enqueue_many([note.prepare("a"), note.prepare("b")])]
            assert {row.kind for row in stored()} == {FRESH}
        with contextlib.suppress(ZeroDivisionError), atomic():
            note.enqueue("gone")
            raise ZeroDivisionError
        assert on_the_broker(make, backend) == [handle.id for handle in handles]
        assert stored() == []

    def test_a_delayed_job_is_not_on_the_broker(
        self, make: BackendFactory, publish_through: Any, note: Job[[str], None]
    ) -> None:
        backend = publish_through(make("a"))
        backend.declare(backend.queues.values())
        note.enqueue_after("1s", "held")
        with atomic():
            note.enqueue_after("1s", "held")
        assert [row.kind for row in stored()] == [HOLD, HOLD]
        assert backend.counts("a").ready == 0

    def test_what_the_broker_returns_stays_stored(
        self, make_apart: BackendFactory, publish_through: Any, note: Job[[str], None]
    ) -> None:
        declared = make_apart("a")
        declared.declare(declared.queues.values())
        backend = publish_through(declared, DECLARE="never")
        backend.clear("a")
        with atomic():
            note.enqueue("kept")
        assert stored() == []
        from tests.backends.rabbitmq.support import channel

        with channel(make_apart.url) as ch:
            ch.queue_delete(queue(backend))
        with atomic():
            note.enqueue("kept")
        assert [row.kind for row in stored()] == [FRESH]


# The broker is away


class TestAway:
    backend_name = "rabbitmq"

    @pytest.mark.parametrize("how", ["refuse", "stall"])
    def test_a_stream_of_transactions_goes_on(
        self,
        how: str,
        proxied: BackendFactory,
        proxy: Proxy,
        publish_through: Any,
        note: Job[[str], None],
    ) -> None:
        backend = publish_through(proxied.impatient("1s"), DECLARE="never")
        took: list[float] = []
        ids: list[uuid.UUID] = []

        def request() -> None:
            began = time.monotonic()
            with atomic():
                ids.append(note.enqueue(str(len(ids))).id)
            took.append(time.monotonic() - began)

        for _ in range(20):
            request()
        assert stored() == []
        getattr(proxy, how)()
        away = len(took)
        for _ in range(200):
            request()
        print(how, sorted(took[away:])[-8:])
        assert len([seconds for seconds in took[away:] if seconds > 0.5]) <= 1
        assert max(took) < 10
        proxy.resume()
        wait_until(lambda: request() or took[-1] < 0.5 and len(stored()) < 1000 and ids[-1] not in {row.job_id for row in stored()})
        rows = {row.job_id for row in stored()}
        sent = Counter(on_the_broker(proxied, backend))
        assert set(ids) == rows | set(sent)
        print(len(rows), len(sent), len(rows & set(sent)))
