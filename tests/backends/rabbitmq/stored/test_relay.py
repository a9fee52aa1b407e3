"""The relay on a real broker: rows that the broker or its client refuses hold up no other."""

import time
import uuid
from typing import Any

import pytest
from django.conf import settings

from django_jobq.envelope import Envelope
from django_jobq.models import StoredJob
from django_jobq.queues import QueueConfig
from django_jobq.worker.relay import Relay
from tests.backends.rabbitmq.support import PATIENCE, BackendFactory, browse, job_ids
from tests.lane import lane
from tests.store.tools import USING, envelope, put, stored

pytestmark = pytest.mark.django_db(transaction=True, databases=[USING])

BACKEND_NAME: str = settings.DATABASES[USING]["ENGINE"].rpartition(".")[2]


def deep(levels: int) -> bytes:
    """Return a body that is nested as deep as few encoders like."""
    opened, closed = b"[" * levels, b"]" * levels
    head = b'{"job_id": "%s", "job": "deep", "queue": "a",' % str(uuid.uuid4()).encode()
    return head + b'"attempt": 1, "enqueued_at": 0, "args": %s, "kwargs": {}}' % (opened + closed)


def odd() -> list[Envelope]:
    fields: list[dict[str, Any]] = [
        {"job": "x" * 400},
        {"job": "half \ud800 and \0"},
        {"correlation_id": "c" * 10_000},
        {"attempt": 10**30, "deferrals": 10**30},
        {"priority": 255},
        {"headers": {"starts": 10**30, "not_before": "never"}},
        {"enqueued_at": 10**30},
        {"queue": "no such queue"},
        {"args": ["x" * 2_000_000]},
    ]
    if BACKEND_NAME != "mysql":  # whose server ends the connection at such a statement
        fields.append({"args": ["x" * 17_000_000]})
    return [envelope(**{"queue": "a", **values}) for values in fields]


class TestOddRows:
    backend_name = BACKEND_NAME

    @pytest.mark.contract(147)
    def test_b07_b123_rows_that_are_refused_stop_no_other(self, make: BackendFactory) -> None:
        backend = make(QueueConfig(name="a", max_priority=5), database=USING)
        jobs = odd()
        for job in jobs:
            put(job)
        nested = envelope(queue="a")
        put(nested)
        StoredJob.objects.using(USING).filter(job_id=nested.job_id).update(body=deep(900))
        good = [envelope(queue="a") for _ in range(3)]
        for job in good:
            put(job)
        queue = backend.topology.work_queue(backend.queue("a"))
        give_up = time.monotonic() + PATIENCE
        relay = Relay(backend, USING)
        relay.sweep()
        while not {job.job_id for job in good} <= set(job_ids(browse(make.url, queue))):
            assert time.monotonic() < give_up, [row.last_error for row in stored()]
            relay.sweep()

        refused = {row.queue: row.last_error for row in stored()}
        assert "is not known to backend" in refused.pop("no such queue")
        # From 4.0 on a broker takes 16 MiB at most.
        assert set(refused) <= ({"a"} if lane(make.url).version >= (4, 0) else set())
        assert all("larger than" in error for error in refused.values())
