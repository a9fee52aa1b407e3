"""What a running job knows of itself."""

import contextvars
import logging
import time
import uuid
from datetime import timedelta

import pytest

from django_jobq import Defer, JobContext, current_job, job
from django_jobq.context import JobLogFilter, set_current_job
from django_jobq.envelope import Envelope


@pytest.fixture
def record() -> logging.LogRecord:
    return logging.LogRecord("shop", logging.INFO, __file__, 1, "text", None, None)


@pytest.mark.contract(78)
def test_three_values_make_a_context() -> None:
    context = JobContext(job="shop.sync", attempt=2, max_attempts=5)
    assert isinstance(context.job_id, uuid.UUID)
    assert (context.job, context.attempt, context.max_attempts) == ("shop.sync", 2, 5)
    assert (context.queue, context.deferrals, context.priority) == ("default", 0, 0)
    assert (context.correlation_id, context.enqueued_at, context.age) == (None, None, timedelta(0))


@pytest.mark.contract(78)
def test_the_name_alone_is_the_only_attempt_under_an_id_of_its_own() -> None:
    first, second = JobContext(job="a"), JobContext(job="a")
    assert (first.attempt, first.max_attempts, first.is_last_attempt) == (1, 1, True)
    assert first.job_id != second.job_id


@pytest.mark.contract(77)
@pytest.mark.parametrize(
    ("attempt", "max_attempts", "is_last"),
    [(1, 1, True), (1, 3, False), (2, 3, False), (3, 3, True), (4, 3, True)],
)
def test_the_last_attempt(attempt: int, max_attempts: int, is_last: bool) -> None:
    context = JobContext(job="a", attempt=attempt, max_attempts=max_attempts)
    assert context.is_last_attempt is is_last


@pytest.mark.contract(79)
def test_the_age_is_the_time_since_the_first_enqueue() -> None:
    before = time.time()
    context = JobContext(job="a", enqueued_at=int(before * 1000) - 3_600_000)
    age = context.age.total_seconds()
    assert 3600 <= age <= 3600.002 + time.time() - before
    assert context.age.total_seconds() >= age


@pytest.mark.contract(79)
def test_the_age_is_never_negative() -> None:
    ahead = JobContext(job="a", enqueued_at=int(time.time() * 1000) + 3_600_000)
    assert ahead.age == timedelta(0)


def test_a_context_is_a_value() -> None:
    with pytest.raises(AttributeError):
        JobContext(job="a").attempt = 2  # type: ignore[misc]


@pytest.mark.contract(77)
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_job_gets_all_of_it(kind: str, memory, drain) -> None:
    seen = []

    def look(context: JobContext) -> None:
        seen.append((context, current_job()))

    async def alook(context: JobContext) -> None:
        look(context)

    looking = job(name="look", takes_context=True, retry=4, priority=3)(
        look if kind == "sync" else alook
    )
    handle = looking.using(priority=5, correlation_id="order-42").enqueue()
    drain()
    [(context, current)] = seen
    assert current is context
    enqueued_at = memory.succeeded("default")[0].enqueued_at
    assert context == JobContext(
        job="look",
        attempt=1,
        max_attempts=4,
        job_id=handle.id,
        queue="default",
        deferrals=0,
        priority=5,
        correlation_id="order-42",
        enqueued_at=enqueued_at,
    )
    assert timedelta(0) <= context.age < timedelta(minutes=1)


@pytest.mark.contract(79)
def test_the_age_goes_on_growing_over_retries_and_deferrals(memory, drain) -> None:
    seen = []

    @job(name="age", takes_context=True, retry={"backoff": "none"})
    def age(context: JobContext) -> None:
        seen.append((context.attempt, context.deferrals, context.age))
        if context.attempt == 1:
            raise ValueError
        if context.deferrals == 0:
            raise Defer("0s")

    first_enqueued = int(time.time() * 1000) - 3_600_000
    memory.publish(
        Envelope(job_id=uuid.uuid4(), job="age", queue="default", enqueued_at=first_enqueued)
    )
    drain()
    assert [(attempt, deferrals) for attempt, deferrals, _ in seen] == [(1, 0), (2, 0), (2, 1)]
    ages = [age for _, _, age in seen]
    assert ages == sorted(ages)
    assert ages[0] >= timedelta(hours=1)


@pytest.mark.contract(80, 82, 88)
@pytest.mark.parametrize(
    ("of_job", "of_call", "attempts"), [(None, None, 1), (3, None, 3), (3, 2, 2), (None, 4, 4)]
)
def test_the_limit_that_is_shown_is_the_one_that_holds(
    of_job: int | None, of_call: int | None, attempts: int, memory, drain
) -> None:
    seen = []
    policy = None if of_job is None else {"max_attempts": of_job, "backoff": "none"}

    @job(name="fail", takes_context=True, retry=policy)
    def fail(context: JobContext) -> None:
        seen.append((context.attempt, context.max_attempts, context.is_last_attempt))
        raise ValueError("no stock")

    call = (
        fail if of_call is None else fail.using(retry={"max_attempts": of_call, "backoff": "none"})
    )
    call.enqueue()
    drain()
    assert seen == [(attempt, attempts, attempt == attempts) for attempt in range(1, attempts + 1)]
    [letter] = memory.dead_letters("default")
    assert (letter.cause, letter.attempts) == ("exhausted", attempts)
    assert "ValueError: no stock" in letter.reason


@pytest.mark.contract(87, 88)
def test_the_policy_of_the_call_goes_before_the_job_and_that_before_the_queue(
    settings, drain
) -> None:
    settings.JOBQ = {
        "default": {
            **settings.JOBQ["default"],
            "QUEUES": {"plain": {}, "patient": {"retry": {"max_attempts": 4, "backoff": "none"}}},
        }
    }
    limits = []

    def fail(context: JobContext) -> None:
        limits.append((context.job, context.attempt, context.max_attempts))
        raise ValueError

    undeclared = job(name="undeclared", queue="patient", takes_context=True)(fail)
    declared = job(
        name="declared",
        queue="patient",
        takes_context=True,
        retry={"max_attempts": 3, "backoff": "none"},
    )(fail)
    undeclared.enqueue()
    undeclared.using(queue="plain").enqueue()
    declared.enqueue()
    declared.using(retry={"max_attempts": 2, "backoff": "none"}).enqueue()
    drain()
    assert sorted(limits) == sorted(
        [
            *(("undeclared", attempt, 4) for attempt in (1, 2, 3, 4)),
            ("undeclared", 1, 1),
            *(("declared", attempt, 3) for attempt in (1, 2, 3)),
            *(("declared", attempt, 2) for attempt in (1, 2)),
        ]
    )


def test_outside_of_jobs_there_is_no_current_job(drain) -> None:
    @job(name="nothing")
    def nothing() -> None: ...

    assert current_job() is None
    nothing.enqueue()
    drain()
    assert current_job() is None


@pytest.mark.contract(200)
def test_the_log_filter_completes_a_record_of_the_job(record: logging.LogRecord) -> None:
    context = JobContext(job="shop.sync", attempt=2, queue="email")

    def log() -> bool:
        set_current_job(context)
        return JobLogFilter().filter(record)

    assert contextvars.copy_context().run(log) is True
    assert (record.job_id, record.job, record.queue, record.attempt) == (
        context.job_id,
        "shop.sync",
        "email",
        2,
    )


def test_the_log_filter_leaves_what_a_record_has(record: logging.LogRecord) -> None:
    record.job = "mine"
    assert JobLogFilter().filter(record) is True
    assert (record.job, record.job_id, record.queue, record.attempt) == ("mine", "", "", "")


@pytest.mark.contract(200)
def test_what_a_job_logs_is_completed(memory, drain, caplog) -> None:
    @job(name="talk")
    def talk() -> None:
        logging.getLogger("shop").warning("talking")

    caplog.handler.addFilter(JobLogFilter())
    handle = talk.enqueue()
    drain()
    [said] = [entry for entry in caplog.records if entry.name == "shop"]
    assert (said.job_id, said.job, said.queue, said.attempt) == (handle.id, "talk", "default", 1)
