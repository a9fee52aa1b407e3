"""Worker processes that are killed at the worst moment, and what the database makes of it."""

import contextlib
import os
import signal
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from django_jobq.backends.rabbitmq import RabbitMQBackend
from django_jobq.models import DeadLetter, JobStart
from django_jobq.queues import QueueConfig
from tests.backends.rabbitmq.support import (
    PATIENCE,
    BackendFactory,
    WorkerProcess,
    letters,
    ready,
    send,
    wait_until,
)
from tests.store.tools import USING, stored

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True, databases=[USING])]

LONG = 4 * PATIENCE


def on_file() -> list[DeadLetter]:
    return list(DeadLetter.objects.using(USING).order_by("id"))


def waiting(backend: RabbitMQBackend, url: str) -> int:
    return ready(url, backend.topology.work_queue(backend.queue("a")))


@contextlib.contextmanager
def kept_running(worker: WorkerProcess) -> Any:
    """Start a killed worker again at once, as a supervisor does; a restart must follow a kill."""
    over = threading.Event()
    statuses: list[int] = []

    def supervise() -> None:
        while not over.wait(0.05):
            status = worker.poll()
            if status is not None:
                statuses.append(status)
                worker.start()

    supervisor = threading.Thread(target=supervise, daemon=True)
    supervisor.start()
    try:
        yield statuses
    finally:
        over.set()
        supervisor.join(PATIENCE)


@pytest.mark.contract(76)
def test_a_job_that_kills_its_worker_among_200_innocents(
    make: BackendFactory, tmp_path: Path
) -> None:
    """It ends as a dead letter and the innocents, though some are killed with it, all succeed."""
    queue = QueueConfig(name="a", prefetch=20)
    backend = make(queue, database=USING, delivery_limit=5)
    innocents = send(backend, 100, job="tests.take", args=[0.05])
    (killer,) = send(backend, 1, job="tests.kill")
    innocents += send(backend, 100, job="tests.take", args=[0.05])
    ids = [envelope.job_id for envelope in innocents]
    with WorkerProcess(backend, tmp_path, "--concurrency", "10") as worker:
        with kept_running(worker) as statuses:
            wait_until(on_file, LONG)
            wait_until(lambda: set(ids) <= set(worker.noted("ended")), LONG)
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
    starts = Counter(worker.noted("started"))
    (letter,) = on_file()
    assert (letter.job_id, letter.cause) == (killer.job_id, "delivery_limit")
    assert set(statuses) == {-signal.SIGKILL}, worker.output
    # The first start is not counted, since the message was never delivered before.
    assert starts[killer.job_id] == 5 + 1 == len(statuses)
    # Only what ran beside the first two starts was killed with it: from then on it runs alone.
    assert all(starts[job_id] <= 3 for job_id in ids)
    assert Counter(worker.noted("ended"))[killer.job_id] == 0
    assert waiting(backend, make.url) == 0
    assert letters(make.url, backend.topology) == []
    assert not JobStart.objects.using(USING).filter(job_id=killer.job_id).exists()


@pytest.mark.contract(26, 27, 98, 103)
def test_a_worker_killed_between_the_row_and_the_acknowledgement_leaves_one_chain(
    make: BackendFactory, tmp_path: Path
) -> None:
    """However often: the delivery that comes again finds its successor stored, and is dropped."""
    kills = int(os.environ.get("JOBQ_TEST_KILLS", "3"))
    backend = make("a", database=USING)
    (sent,) = send(backend, 1, job="tests.defer", args=["1s"])
    worker = WorkerProcess(backend, tmp_path)
    worker.set_environment(JOBQ_TEST_DIE_ONCE_STORED="1")
    with worker:
        with kept_running(worker) as statuses:
            wait_until(lambda: len(statuses) >= kills, LONG)
            worker.set_environment(JOBQ_TEST_END="1")
            wait_until(lambda: worker.noted("ended"), LONG)
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0

    runs = Counter(line.split()[0] for line in worker.notes.read_text().splitlines())
    ended = runs.pop("ended")
    assert ended == 1
    assert runs == {f"started-{number}": 1 for number in range(len(runs))}
    assert len(runs) > kills
    assert worker.noted("ended") == [sent.job_id]
    assert (stored(), waiting(backend, make.url)) == ([], 0)
