"""Dead letters of a real broker, on file: the worker's own, the broker's, and lost jobs."""

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import signal
import uuid
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pika
import pytest
from django.db import connections

from django_jobq import Fatal
from django_jobq.backends.rabbitmq import RabbitMQBackend
from django_jobq.backends.rabbitmq.letters import RabbitMQLetters
from django_jobq.backends.rabbitmq.topology import Topology
from django_jobq.context import JobContext
from django_jobq.envelope import Envelope
from django_jobq.models import DeadLetter
from django_jobq.queues import QueueConfig
from django_jobq.store import dead_letters, filing
from tests.backends.rabbitmq.support import (
    PATIENCE,
    BackendFactory,
    Runs,
    WorkerProcess,
    browse,
    channel,
    ready,
    send,
    until,
    wait_until,
    working,
)
from tests.store.tools import USING

T = TypeVar("T")
pytestmark = pytest.mark.django_db(transaction=True, databases=[USING])


def storing(backend: RabbitMQBackend, **settings: Any) -> RabbitMQBackend:
    """Let a backend leave storing to the database."""
    values = {"outbox": "always", "holds": "database", "database": USING, **settings}
    backend.settings = dataclasses.replace(backend.settings, **values)
    return backend


def filed() -> list[DeadLetter]:
    return list(DeadLetter.objects.using(USING).order_by("id"))


def count() -> int:
    return DeadLetter.objects.using(USING).count()


async def query(func: Callable[..., T], *args: Any) -> T:
    """Ask the database, and leave no connection behind in the thread that did."""

    def run() -> T:
        try:
            return func(*args)
        finally:
            connections.close_all()

    return await asyncio.to_thread(run)


async def until_filed(number: int) -> list[DeadLetter]:
    """Wait until so many letters are on file and return them."""
    deadline = asyncio.get_running_loop().time() + PATIENCE
    while (found := await query(count)) < number:
        assert asyncio.get_running_loop().time() < deadline, f"{found} letters were filed"
        await asyncio.sleep(0.02)
    return await query(filed)


@contextlib.asynccontextmanager
async def reading(backend: RabbitMQBackend) -> AsyncIterator[RabbitMQLetters]:
    """Read what waits to be filed, and give back what is not removed."""
    source = backend.dead_letters_to_file()
    assert source is not None
    try:
        yield source
    finally:
        await source.aclose()


async def file(source: RabbitMQLetters) -> int:
    """File what waits, and return how many letters it was."""
    found = await source.letters()
    await query(partial(filing.file, "default", found, using=USING))
    return len(found)


def put_raw(url: str, exchange: str, key: str, body: bytes, **properties: Any) -> None:
    with channel(url) as ch:
        ch.confirm_delivery()
        ch.basic_publish(exchange, key, body, pika.BasicProperties(**properties))


def give_up(context: JobContext) -> None:
    raise Fatal("no such order")


@pytest.mark.contract(107, 108, 116)
async def test_what_a_worker_gives_up_is_filed(make: BackendFactory, runs: Runs) -> None:
    backend = storing(make("a"))
    runs.job(give_up, queue="a")
    async with working(backend):
        (sent,) = await asyncio.to_thread(send, backend, 1, queue="a", correlation_id="order-7")
        (row,) = await until_filed(1)
        await until(lambda: ready(make.url, backend.topology.dead) == 0)
    assert (row.job_id, row.queue, row.cause, row.attempts) == (sent.job_id, "a", "fatal", 1)
    assert (row.reason, row.correlation_id) == ("no such order", "order-7")
    assert row.exception == "django_jobq.control.Fatal"
    assert "in give_up" in row.traceback
    assert [error["message"] for error in row.history] == ["no such order"]
    assert ready(make.url, backend.topology.dead) == 0


async def test_without_a_database_dead_letters_stay_with_the_broker(
    make: BackendFactory, runs: Runs
) -> None:
    backend = storing(make("a"), outbox="off", holds="broker")
    assert backend.dead_letters_to_file() is None
    runs.job(give_up, queue="a")
    async with working(backend):
        await asyncio.to_thread(send, backend, 1, queue="a")
        await until(lambda: ready(make.url, backend.topology.dead) == 1)
    assert await query(count) == 0


async def test_a_burst_files_what_it_gives_up(make: BackendFactory, runs: Runs) -> None:
    backend = storing(make("a"))
    runs.job(give_up, queue="a")
    await asyncio.to_thread(backend.declare, backend.queues.values())
    await asyncio.to_thread(send, backend, 30, queue="a")
    async with working(backend, burst=True):
        await until_filed(30)


@pytest.mark.contract(108)
async def test_jobs_that_expire_on_the_broker_are_filed(make: BackendFactory) -> None:
    backend = storing(make(QueueConfig(name="short.lived", message_ttl=0.05)))
    (sent,) = await asyncio.to_thread(send, backend, 1, queue="short.lived")
    await until(lambda: ready(make.url, backend.topology.dead) == 1)
    async with working(backend):
        (row,) = await until_filed(1)
    assert (row.cause, row.queue, row.attempts) == ("expired", "short.lived", 0)
    assert (row.job_id, bytes(row.body)) == (sent.job_id, sent.encode())
    assert "message_ttl" in row.reason


@pytest.mark.contract(108)
async def test_jobs_that_a_stranger_rejects_are_filed(make: BackendFactory) -> None:
    backend = storing(make("a"))
    await asyncio.to_thread(send, backend, 1, queue="a")
    with channel(make.url) as ch:
        method, _, _ = ch.basic_get(backend.topology.work_queue(backend.queue("a")))
        ch.basic_reject(method.delivery_tag, requeue=False)
    async with working(backend):
        (row,) = await until_filed(1)
    assert (row.cause, row.queue) == ("rejected", "a")


@pytest.mark.contract(116)
async def test_a_worker_that_dies_before_it_removes_a_letter_files_it_once(
    make: BackendFactory,
) -> None:
    backend = storing(make(QueueConfig(name="a", message_ttl=0.05)))
    await asyncio.to_thread(send, backend, 3, queue="a")
    await until(lambda: ready(make.url, backend.topology.dead) == 3)
    async with reading(backend) as source:
        assert await file(source) == 3
    await until(lambda: ready(make.url, backend.topology.dead) == 3)
    async with reading(backend) as source:
        assert await file(source) == 3
        await source.remove()
        assert await source.letters() == []
    assert await query(count) == 3
    assert ready(make.url, backend.topology.dead) == 0


@pytest.mark.contract(116)
def test_a_worker_process_that_is_killed_between_filing_and_removing_files_once(
    make: BackendFactory, tmp_path: Path
) -> None:
    backend = storing(make("a"))
    (sent,) = send(backend, 1, queue="a", job="tests.fail")
    worker = WorkerProcess(backend, tmp_path)
    worker.set_environment(JOBQ_TEST_DIE_AFTER_FILING="1", JOBQ_TEST_DATABASE=database_url())
    with worker:
        assert worker.wait() == -signal.SIGKILL
        assert [row.job_id for row in filed()] == [sent.job_id]
        worker.start()
        wait_until(lambda: "Filed 1 dead letter(s)" in worker.output)
        worker.signal(signal.SIGTERM)
        assert worker.wait() == 0
    assert [row.job_id for row in filed()] == [sent.job_id]
    assert ready(make.url, backend.topology.dead) == 0


def database_url() -> str:
    """Return the URL of the database of the tests, for another process."""
    database = connections[USING].settings_dict
    if connections[USING].vendor == "sqlite":
        return f"sqlite:///{database['NAME']}"
    host = f"{database['USER'] or ''}@{database['HOST']}:{database['PORT'] or ''}"
    scheme = {"mysql": "mysql", "postgresql": "postgres"}[connections[USING].vendor]
    return f"{scheme}://{host.removeprefix('@').removesuffix(':')}/{database['NAME']}"


@pytest.mark.contract(116)
@pytest.mark.parametrize("begun", [False, True])
async def test_a_worker_that_dies_before_it_removes_a_dead_job_files_it_once(
    make: BackendFactory, begun: bool
) -> None:
    """The job comes again and dies again; a copy in which its start was counted is the same one."""
    backend = storing(make("a"))
    await asyncio.to_thread(send, backend, 1, queue="a")
    for dies in (True, False):
        consumer = backend.consume("a", 1)
        async with asyncio.timeout(PATIENCE):
            delivery: Any = await anext(consumer)
        assert not begun or await delivery.begin()
        await backend.file(delivery, "fatal", "no such order", None)
        if not dies:
            await delivery.ack()
        await consumer.aclose()
    await until(lambda: ready(make.url, backend.topology.dead) == 2)
    async with reading(backend) as source:
        assert await file(source) == 2
        await source.remove()
    assert await query(count) == 1


HOSTILE_BODIES = [
    b"",
    b"\0" * 1_000,
    json.dumps({"job": "\ud800"}).encode(),
    bytes(range(256)) * 100,
    os.urandom(10_000_000),
]


@pytest.mark.contract(119, 174)
async def test_hostile_bodies_do_not_stop_those_behind(make: BackendFactory, runs: Runs) -> None:
    backend = storing(make("a"))
    runs.job(give_up, queue="a")
    await asyncio.to_thread(backend.declare, backend.queues.values())
    for body in HOSTILE_BODIES:
        put_raw(make.url, backend.topology.entrance, "a", body)
        put_raw(make.url, backend.topology.dead_exchange, "", body)
    (sent,) = await asyncio.to_thread(send, backend, 1, queue="a")
    async with working(backend):
        rows = await until_filed(2 * len(HOSTILE_BODIES) + 1)
    assert sent.job_id in {row.job_id for row in rows}
    decode = [row for row in rows if row.cause == "decode"]
    foreign = [row for row in rows if row.cause == "rejected"]
    for found in (decode, foreign):
        assert sorted(bytes(row.body) for row in found) == sorted(map(kept, HOSTILE_BODIES))
    assert all("malformed envelope" in row.reason for row in decode)


def kept(body: bytes) -> bytes:
    """Return what is on file of a body: MariaDB takes no statement of more than 16 MB."""
    is_refused = connections[USING].vendor == "mysql" and len(body) > 8_000_000
    return body[: filing.KEPT_OF_A_BODY] if is_refused else body


HOSTILE_HEADERS: list[dict[str, Any]] = [
    {"x-death-cause": "poison", "x-death-reason": 7, "x-died-at": "yesterday"},
    {"x-death-cause": ["fatal"], "x-original-queue": b"\xff", "x-attempts": None},
    {"x-death-cause": "fatal", "x-attempts": -(2**62), "x-died-at": 2**62},
    {"x-death-cause": "fatal", "x-died-at": -(2**62), "x-original-queue": b"\xff\0"},
    {"x-death": "none", "x-jobq-filing-key": "'; DROP TABLE"},
    {"x-death": [], "x-jobq-filing-key": 7},
    {"x-death": [1], "x-jobq-filing-key": "A" * 64},
    {"x-death": [{"reason": {}, "queue": 1, "time": "x", "routing-keys": [1]}]},
]


async def test_hostile_headers_do_not_stop_those_behind(make: BackendFactory) -> None:
    backend = storing(make("a"))
    await asyncio.to_thread(backend.declare, backend.queues.values())
    for headers in HOSTILE_HEADERS:
        put_raw(make.url, backend.topology.dead_exchange, "", b"{}", headers=headers)
        put_raw(make.url, f"{backend.topology.prefix}.lost", "", b"{}", headers=headers)
    async with reading(backend) as source:
        total = 0
        while total < 2 * len(HOSTILE_HEADERS):
            async with asyncio.timeout(PATIENCE):
                total += await file(source)
                await source.remove()
    assert await query(count) == 2 * len(HOSTILE_HEADERS)


async def test_letters_wait_on_the_broker_while_the_database_is_gone(
    make: BackendFactory, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    backend = storing(make(QueueConfig(name="a", message_ttl=0.05)))
    await asyncio.to_thread(send, backend, 1, queue="a")
    await until(lambda: ready(make.url, backend.topology.dead) == 1)
    await query(rename, "jobq_deadletter", "gone")
    try:
        async with working(backend):
            await until(lambda: "filing of dead letters waits for an outage" in caplog.text)
            await query(rename, "gone", "jobq_deadletter")
            await until_filed(1)
            await until(lambda: "filing of dead letters works again" in caplog.text)
            assert ready(make.url, backend.topology.dead) == 0
    finally:
        if "gone" in await query(tables):
            await query(rename, "gone", "jobq_deadletter")


def tables() -> list[str]:
    return connections[USING].introspection.table_names()


def rename(old: str, new: str) -> None:
    if connections[USING].vendor != "sqlite":
        pytest.skip("elsewhere a missing table is no outage")
    with connections[USING].cursor() as cursor:
        cursor.execute(f"ALTER TABLE {old} RENAME TO {new}")


def lose(backend: RabbitMQBackend, url: str, queue: str) -> Envelope:
    """Let a job come out of a hold and find no queue."""
    (sent,) = send(backend, 1, queue=queue)
    with channel(url) as ch:
        ch.queue_delete(backend.topology.work_queue(backend.queue(queue)))
    (sent,) = [_submit(backend, sent, 1.0)]
    wait_until(lambda: ready(url, backend.topology.lost) == 1)
    return sent


def _submit(backend: RabbitMQBackend, envelope: Envelope, delay: float) -> Envelope:
    held = dataclasses.replace(envelope, job_id=uuid.uuid4(), deferrals=3)
    backend.publish(held, delay).result(PATIENCE)
    return held


@pytest.mark.contract(151)
async def test_a_job_that_lost_its_queue_runs_once_the_queue_is_there_again(
    make_apart: BackendFactory, runs: Runs
) -> None:
    backend = storing(make_apart("a.b"))
    runs.job(queue="a.b")
    sent = await asyncio.to_thread(lose, backend, make_apart.url, "a.b")
    async with working(backend):
        await until(lambda: runs.ended[sent.job_id] == 1)
        assert ready(make_apart.url, backend.topology.lost) == 0
    assert await query(count) == 0


@pytest.mark.contract(151)
async def test_a_job_whose_queue_is_gone_for_good_is_filed(make_apart: BackendFactory) -> None:
    before = make_apart("a", "a.b")
    sent = await asyncio.to_thread(lose, before, make_apart.url, "a.b")
    backend = storing(make_apart("a"))
    async with working(backend):
        (row,) = await until_filed(1)
        await until(lambda: ready(make_apart.url, backend.topology.lost) == 0)
    assert (row.cause, row.queue, row.job_id) == ("no_queue", "a.b", sent.job_id)
    assert (row.attempts, bytes(row.body)) == (0, sent.encode())
    assert "'a.b'" in row.reason


@pytest.mark.contract(151)
@pytest.mark.parametrize("declare", ["auto", "never"])
async def test_a_queue_of_the_settings_is_declared_for_a_lost_job_if_that_is_allowed(
    make_apart: BackendFactory, declare: str
) -> None:
    sent = await asyncio.to_thread(lose, make_apart("a"), make_apart.url, "a")
    backend = storing(make_apart("a", declare=declare))
    work_queue = backend.topology.work_queue(backend.queue("a"))
    async with reading(backend) as source:
        found = await source.letters()
        assert [letter.cause for letter in found] == ([] if declare == "auto" else ["no_queue"])
        await source.remove()
    if declare == "auto":
        ((_, body),) = browse(make_apart.url, work_queue)
        assert Envelope.decode(body) == sent


@pytest.mark.contract(117)
async def test_a_requeued_job_runs_again_from_its_first_attempt(
    make: BackendFactory, runs: Runs
) -> None:
    backend = storing(make("a"))

    def fail_at_first(context: JobContext) -> None:
        if len(runs.contexts) <= 2:
            raise ValueError("no stock")

    runs.job(fail_at_first, queue="a", retry={"max_attempts": 2, "backoff": "none"})
    async with working(backend):
        (sent,) = await asyncio.to_thread(send, backend, 1, queue="a")
        (row,) = await until_filed(1)
        done = await query(_requeue, row)
        assert done == dead_letters.Requeued(count=1)
        await until(lambda: runs.ended[sent.job_id] == 1)
    assert [context.attempt for context in runs.contexts] == [1, 2, 1]
    assert {context.job_id for context in runs.contexts} == {sent.job_id}
    (row,) = await query(filed)
    assert (row.cause, row.attempts, row.resolution) == ("exhausted", 2, "requeued")
    assert (row.exception, len(row.history)) == ("builtins.ValueError", 2)


def _requeue(row: DeadLetter) -> dead_letters.Requeued:
    return dead_letters.requeue([row.pk], using=USING)


async def test_filing_goes_on_when_its_queue_was_deleted(
    make_apart: BackendFactory, runs: Runs
) -> None:
    backend = storing(make_apart("a"))
    runs.job(give_up, queue="a")
    async with working(backend):
        await asyncio.to_thread(send, backend, 1, queue="a")
        await until_filed(1)
        with channel(make_apart.url) as ch:
            ch.queue_delete(backend.topology.dead)
            ch.queue_delete(backend.topology.lost)
        await asyncio.to_thread(send, backend, 1, queue="a")
        await until_filed(2)
        await until(lambda: exists(make_apart.url, backend.topology, "lost"))


def exists(url: str, topology: Topology, name: str) -> bool:
    try:
        ready(url, getattr(topology, name))
    except pika.exceptions.ChannelClosedByBroker:
        return False
    return True


async def test_filing_goes_on_after_the_connection_was_cut(
    proxied: BackendFactory, proxy: Any, runs: Runs
) -> None:
    backend = storing(proxied("a"))
    runs.job(give_up, queue="a")
    async with working(backend):
        await asyncio.to_thread(send, backend, 1, queue="a")
        await until_filed(1)
        proxy.cut()
        await asyncio.to_thread(send, backend, 1, queue="a")
        await until_filed(2)
