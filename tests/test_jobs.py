"""The job definition: what the decorator accepts, what a call is checked for, what is sent."""

import contextlib
import copy
import dataclasses
import datetime as dt
import functools
import inspect
import json
import time
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest
from django.test import override_settings

from django_jobq import (
    Defer,
    EnqueuedJob,
    Job,
    JobContext,
    RetryPolicy,
    aenqueue_many,
    enqueue_many,
    job,
)
from django_jobq.backends.handler import backends
from django_jobq.call_options import CallOptions
from django_jobq.conf import MEMORY_BACKEND
from django_jobq.context import set_current_job
from django_jobq.envelope import Envelope
from django_jobq.exceptions import (
    InvalidArguments,
    InvalidDuration,
    InvalidJob,
    JobqError,
    PayloadTooLarge,
    UnknownBackend,
    UnknownQueue,
)
from django_jobq.registry import registry
from tests.app.jobs import note
from tests.app.models import Row

MEMORY = {"BACKEND": MEMORY_BACKEND}
HOUR = dt.timedelta(hours=1)


def send(order_id: int, *extra: str, copy_to: tuple[str, ...] = (), **options: bool) -> None:
    """Send the receipt of an order."""


def with_context(context: JobContext, order_id: int) -> tuple[JobContext, int]:
    return context, order_id


async def answer(question: str) -> str:
    return question.upper()


def only(envelopes: list[Envelope]) -> Envelope:
    """Return the single envelope."""
    [envelope] = envelopes
    return envelope


def waiting(memory: Any, queue: str = "default") -> list[Any]:
    """Return the first argument of every job of a queue, in the order of delivery."""
    return [envelope.args[0] for envelope in memory.pending(queue)]


# Definitions


def test_a_bare_decorator_makes_a_job_with_the_defaults() -> None:
    made = job(send)
    assert isinstance(made, Job)
    assert registry.find(f"{__name__}.send") is made
    assert (made.queue, made.backend, made.retry, made.timeout) == (
        "default",
        "default",
        None,
        None,
    )
    assert (made.priority, made.takes_context, made.retry_on, made.fatal_on) == (0, False, (), ())


def test_the_name_defaults_to_module_and_function() -> None:
    assert job(send).name == f"{__name__}.send"
    assert job(queue="email")(send).name == f"{__name__}.send"
    assert note.name == "tests.app.jobs.note"


def test_every_option_of_a_definition() -> None:
    made = job(
        name="send",
        queue="email",
        backend="other",
        retry={"max_attempts": 5, "base": "2s"},
        timeout="90s",
        priority=7,
        retry_on=OSError,
        fatal_on=(ValueError, KeyError),
    )(send)
    assert (made.name, made.queue, made.backend) == ("send", "email", "other")
    assert made.retry == RetryPolicy(max_attempts=5, base=2.0)
    assert (made.timeout, made.priority) == (90.0, 7)
    assert (made.retry_on, made.fatal_on) == ((OSError,), (ValueError, KeyError))


@pytest.mark.contract(82)
@pytest.mark.parametrize(
    ("declared", "policy"),
    [
        (None, None),
        (1, RetryPolicy(max_attempts=1)),
        ({}, RetryPolicy(max_attempts=3)),
        ({"base": "2s"}, RetryPolicy(max_attempts=3, base=2.0)),
        (RetryPolicy.none(), RetryPolicy(max_attempts=1, backoff="none")),
    ],
)
def test_the_retry_declaration_of_a_job(declared: Any, policy: RetryPolicy | None) -> None:
    assert job(name="send", retry=declared)(send).retry == policy


def test_a_job_looks_like_its_function() -> None:
    made: Any = job(name="other.name")(send)
    assert (made.__name__, made.__qualname__, made.__module__) == ("send", "send", __name__)
    assert made.__doc__ == "Send the receipt of an order."
    assert made.__wrapped__ is send
    assert inspect.signature(made) == inspect.signature(send)
    assert repr(made) == "<Job other.name>"
    assert (made.is_async, job(name="b")(answer).is_async) == (False, True)


def test_a_job_never_changes() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        note.queue = "email"  # type: ignore[misc]


def test_a_decorated_function_is_a_job_of_the_signature_it_shows() -> None:
    @functools.wraps(send)
    def wrapper(*args: Any, **kwargs: Any) -> None: ...

    made = job(name="wrapped")(wrapper)
    with pytest.raises(InvalidArguments, match="missing a required argument: 'order_id'"):
        made.prepare()


def test_a_local_function_is_a_job_if_it_is_named() -> None:
    def local() -> None: ...

    assert job(name="local")(local).name == "local"


def generate() -> Any:
    yield 1


async def agenerate() -> Any:
    yield 1


class Mailer:
    def __call__(self) -> None: ...

    def send(self) -> None: ...


@pytest.mark.contract(95)
@pytest.mark.parametrize(
    ("func", "options", "message"),
    [
        (lambda: None, {}, "<lambda> is not at module level, so a worker cannot import it"),
        (print, {}, "@job takes a function, not <built-in function print>; options are keywords"),
        (Mailer, {}, "@job takes a function, not <class"),
        (Mailer(), {}, "@job takes a function, not <"),
        (Mailer().send, {}, "@job takes a function, not <bound method"),
        (functools.partial(send, 1), {}, "@job takes a function, not functools.partial"),
        ("send", {}, "@job takes a function, not 'send'; options are keywords"),
        (generate, {}, "generate is a generator: its body would never run as a job"),
        (agenerate, {}, "agenerate is a generator: its body would never run as a job"),
        (send, {"queue": ""}, "queue: a queue name is text that is not empty"),
        (send, {"queue": "a*"}, "queue: a queue name holds neither *, # nor control characters"),
        (send, {"priority": -1}, "priority -1 is no whole number from 0 to 254"),
        (send, {"priority": 255}, "priority 255 is no whole number from 0 to 254"),
        (send, {"priority": "high"}, "priority 'high' is no whole number from 0 to 254"),
        (send, {"priority": True}, "priority True is no whole number from 0 to 254"),
        (send, {"retry": 0}, "retry: max_attempts 0 is no whole number from 1"),
        (send, {"retry": "3"}, "retry: '3' is neither a number of attempts, a dict nor"),
        (send, {"timeout": "0s"}, "timeout: '0s' is zero; it must be longer"),
        (send, {"timeout": 1.5}, "timeout: 1.5 is no duration"),
        (send, {"timeout": "1 hour"}, "timeout: '1 hour' is no duration"),
        (send, {"retry_on": "OSError"}, "retry_on: 'OSError' is no exception class or tuple of"),
        (send, {"retry_on": int}, "retry_on: <class 'int'> is no exception class or tuple of them"),
        (send, {"fatal_on": (OSError, 5)}, "fatal_on: (<class 'OSError'>, 5) is no exception"),
        (send, {"takes_context": True}, "send takes_context, so its first parameter is 'context'"),
        (generate, {"takes_context": True}, "generate is a generator"),
    ],
)
def test_a_wrong_definition_is_refused(func: Any, options: dict[str, Any], message: str) -> None:
    before = list(registry)
    with pytest.raises(InvalidJob) as caught:
        job(func, **options) if not options else job(**options)(func)
    assert str(caught.value).startswith(message)
    assert list(registry) == before


@pytest.mark.contract(95)
def test_a_context_that_is_not_the_first_positional_argument_is_refused() -> None:
    def late(*, context: JobContext) -> None: ...

    with pytest.raises(InvalidJob, match="first parameter"):
        job(name="late", takes_context=True)(late)


def test_an_unknown_option_is_refused() -> None:
    with pytest.raises(TypeError, match="retries"):
        job(retries=3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="eta"):
        note.using(eta="5m")  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("kwargs", "hint"),
    [
        ({"delay": "5m"}, "'delay'; an option of the call is given as .using(delay=...)"),
        (
            {"priority": 5, "queue": "email"},
            "'priority'; an option of the call is given as .using(priority=..., queue=...)",
        ),
        ({"colour": "red"}, "'colour'"),
    ],
)
def test_an_option_given_as_an_argument_says_where_it_belongs(
    kwargs: dict[str, Any], hint: str, memory
) -> None:
    with pytest.raises(InvalidArguments) as caught:
        note.enqueue("hello", **kwargs)
    assert str(caught.value).endswith(f": got an unexpected keyword argument {hint}")
    assert memory.queue_names() == []


@pytest.mark.parametrize("option", [field.name for field in dataclasses.fields(CallOptions)])
def test_every_option_of_a_call_is_recognised_among_the_arguments(option: str) -> None:
    with pytest.raises(InvalidArguments, match=rf"\.using\({option}=\.\.\.\)$"):
        note.enqueue("hello", **{option: None})


def test_a_parameter_may_be_called_like_an_option(memory) -> None:
    @job(name="tests.wait")
    def wait(delay: int) -> None: ...

    wait.enqueue(delay=5)
    with pytest.raises(InvalidArguments) as caught:
        wait.enqueue()  # type: ignore[call-arg]
    assert "using" not in str(caught.value)
    assert [envelope.kwargs for envelope in memory.pending("default")] == [{"delay": 5}]


@pytest.mark.parametrize("name", ["delay", "apply_async", "send", "perform_async"])
def test_the_names_of_other_libraries_lead_to_enqueue(name: str) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(note, name)
    assert str(caught.value) == (
        f"job tests.app.jobs.note has no attribute {name!r}: use note.enqueue(...), or"
        " note.using(delay='5m').enqueue(...) with options"
    )


def test_another_name_is_only_unknown() -> None:
    with pytest.raises(AttributeError, match=r"^job tests\.app\.jobs\.note has no attribute 'x'$"):
        note.x  # type: ignore[attr-defined]  # noqa: B018
    assert not hasattr(note, "delay")
    assert copy.copy(note).name == note.name


# Running it here


def test_calling_a_job_says_what_to_call_instead() -> None:
    with pytest.raises(TypeError) as caught:
        note("hello")  # type: ignore[operator]
    assert str(caught.value) == (
        "tests.app.jobs.note is a job: use note.enqueue(...) to run it in a worker, or"
        " note.call(...) to run it here"
    )


def test_call_runs_the_function_and_returns_its_value() -> None:
    async def ashow(context: JobContext) -> JobContext:
        return context

    assert job(name="a")(answer).call("why") == "WHY"
    context, order_id = job(name="b", queue="email", takes_context=True)(with_context).call(5)
    assert order_id == 5
    assert (context.job, context.queue, context.attempt, context.max_attempts) == (
        "b",
        "email",
        1,
        1,
    )
    assert job(name="c", takes_context=True)(ashow).call().job == "c"


async def test_acall_runs_the_function_and_returns_its_value() -> None:
    assert await job(name="a")(answer).acall("why") == "WHY"
    context, order_id = await job(name="b", takes_context=True)(with_context).acall(5)
    assert (context.job, order_id) == ("b", 5)


async def test_inside_a_job_a_call_has_the_context_of_that_job() -> None:
    running = JobContext(job="outer", attempt=2, max_attempts=3)
    set_current_job(running)
    inner = job(name="inner", takes_context=True)(with_context)
    assert (await inner.acall(5))[0] is running


def test_a_call_sends_nothing(memory) -> None:
    job(name="a")(answer).call("why")
    assert memory.queue_names() == []


# Options of a call


def test_using_returns_a_copy_and_leaves_the_job_alone() -> None:
    urgent = note.using(priority=9)
    assert (urgent.options.priority, note.options.priority) == (9, None)
    assert urgent.name == note.name
    assert registry.find(note.name) is note


def test_options_add_up_and_the_last_one_holds() -> None:
    options = note.using(priority=1, delay="5s").using(priority=2).using().options
    assert (options.priority, options.delay) == (2, 5.0)


def test_every_option_of_a_call() -> None:
    moment = dt.datetime.now(dt.UTC) + HOUR
    options = note.using(
        queue="email",
        priority=3,
        retry=4,
        timeout="30s",
        run_after=moment,
        front=True,
        correlation_id="order-42",
        database="other",
        on_commit=False,
    ).options
    assert dataclasses.asdict(options) == {
        "queue": "email",
        "priority": 3,
        "retry": RetryPolicy(max_attempts=4).to_json(),
        "timeout": 30.0,
        "delay": None,
        "run_after": moment,
        "front": True,
        "correlation_id": "order-42",
        "database": "other",
        "on_commit": False,
    }


def test_every_option_of_a_call_is_in_its_signature() -> None:
    parameters = inspect.signature(Job.using).parameters
    assert [name for name in parameters if name != "self"] == [
        field.name for field in dataclasses.fields(note.options)
    ]
    assert all(
        item.kind is inspect.Parameter.KEYWORD_ONLY
        for name, item in parameters.items()
        if name != "self"
    )


@pytest.mark.contract(95, 105)
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"priority": 255}, InvalidJob, "priority 255 is no whole number from 0 to 254"),
        ({"retry": 0}, InvalidJob, "retry: max_attempts 0 is no whole number from 1"),
        ({"retry": {"delay": "5s"}}, InvalidJob, "retry: key 'delay' does not go with"),
        ({"correlation_id": 42}, InvalidArguments, "correlation_id is text, not int"),
        (
            {"correlation_id": uuid.UUID(int=1)},
            InvalidArguments,
            "correlation_id is text, not UUID",
        ),
        (
            {"run_after": dt.datetime(2026, 1, 1)},
            InvalidDuration,
            "run_after is an aware datetime, such as timezone.now() + timedelta(hours=1), not"
            " datetime.datetime(2026, 1, 1, 0, 0)",
        ),
        ({"run_after": "5m"}, InvalidDuration, "run_after is an aware datetime"),
        ({"run_after": dt.date(2026, 1, 1)}, InvalidDuration, "run_after is an aware datetime"),
        (
            {"delay": "5m", "run_after": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)},
            InvalidJob,
            "tests.app.jobs.note: give either delay or run_after, not both",
        ),
    ],
)
def test_a_wrong_option_is_refused_where_it_is_given(
    options: dict[str, Any], error: type, message: str
) -> None:
    with pytest.raises(error) as caught:
        note.using(**options)
    assert str(caught.value).startswith(message)


@pytest.mark.contract(95, 96, 105)
@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("delay", 5),
        ("delay", 1.5),
        ("delay", float("inf")),
        ("delay", "-5s"),
        ("delay", "soon"),
        ("timeout", "0s"),
        ("timeout", 1.5),
        ("timeout", "1 hour"),
    ],
)
def test_a_wrong_duration_is_refused_naming_its_option(option: str, value: Any) -> None:
    with pytest.raises((InvalidDuration, InvalidJob)) as caught:
        note.using(**{option: value})
    assert option in str(caught.value)
    assert repr(value) in str(caught.value)


@pytest.mark.contract(96)
@pytest.mark.parametrize("delay", [5, 0, 1.5, None, True])
@pytest.mark.parametrize("method", ["enqueue_after", "defer"])
def test_beside_job_arguments_a_bare_number_is_refused(method: str, delay: Any, memory) -> None:
    with pytest.raises(InvalidDuration, match="write text with a unit"):
        getattr(note, method)(delay, "hello")
    assert memory.queue_names() == []


@pytest.mark.contract(47)
@pytest.mark.parametrize("option", ["queue", "database"])
def test_an_empty_name_is_not_taken_for_the_default(option: str, memory) -> None:
    with pytest.raises(JobqError, match="''"):
        note.using(**{option: ""}).enqueue("hello")
    assert memory.queue_names() == []


# Arguments


@pytest.mark.contract(48)
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda made: made.prepare(), "missing a required argument: 'order_id'"),
        (lambda made: made.prepare(1, order_id=2), "multiple values for argument 'order_id'"),
        (lambda made: made.enqueue(), "missing a required argument: 'order_id'"),
        (lambda made: made.enqueue_after("5m"), "missing a required argument: 'order_id'"),
        (lambda made: made.defer("5m"), "missing a required argument: 'order_id'"),
        (lambda made: made.using(priority=1).enqueue(), "missing a required argument: 'order_id'"),
    ],
)
def test_arguments_that_do_not_bind_are_refused_with_the_signature(
    call: Callable[[Any], Any], message: str, memory
) -> None:
    made = job(name="send")(send)
    with pytest.raises(InvalidArguments) as caught:
        call(made)
    assert str(caught.value) == f"send{inspect.signature(send)}: {message}"
    assert memory.queue_names() == []


@pytest.mark.contract(48)
def test_the_context_is_no_argument_of_the_call() -> None:
    made: Any = job(name="show", takes_context=True)(with_context)
    assert str(made.signature) == "(order_id: int) -> tuple[django_jobq.context.JobContext, int]"
    with pytest.raises(InvalidArguments, match="got an unexpected keyword argument 'context'"):
        made.prepare(5, context=JobContext(job="a"))
    with pytest.raises(InvalidArguments, match="too many positional arguments"):
        made.prepare(JobContext(job="a"), 5)


@pytest.mark.contract(48)
@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((Row(pk=1),), {}, "send: argument order_id is a model instance"),
        ((), {"order_id": Row(pk=1)}, "send: argument order_id is a model instance"),
        ((1, "a", {2}), {}, "send: argument number 3 is a set"),
        ((1,), {"copy_to": ["a", b"b"]}, "send: argument copy_to[1] is binary data"),
        ((1,), {"html": {"deep": {1}}}, "send: argument html['deep'] is a set"),
        ((Decimal("NaN"),), {}, "send: argument order_id is Decimal NaN"),
    ],
)
def test_an_argument_that_cannot_travel_is_named_and_nothing_is_sent(
    args: tuple[Any, ...], kwargs: dict[str, Any], message: str, memory
) -> None:
    made: Any = job(name="send")(send)
    for attempt in (made.enqueue, made.prepare, functools.partial(made.defer, "5m")):
        with pytest.raises(InvalidArguments) as caught:
            attempt(*args, **kwargs)
        assert str(caught.value).startswith(message)
    assert memory.queue_names() == []


@pytest.mark.contract(48)
async def test_the_async_twin_refuses_the_same(memory) -> None:
    made: Any = job(name="send")(send)
    with pytest.raises(InvalidArguments, match="argument order_id is a set"):
        await made.aenqueue({1})
    with pytest.raises(InvalidArguments, match="missing a required argument"):
        await made.aenqueue()
    assert memory.queue_names() == []


def test_a_change_after_the_call_does_not_reach_the_job(memory, drain) -> None:
    seen = []

    @job(name="look", retry={"backoff": "none"})
    def look(lines: list[int]) -> None:
        seen.append(list(lines))
        lines.append(3)
        if len(seen) == 1:
            raise ValueError

    lines = [1]
    prepared = look.prepare(lines)
    lines.append(2)
    enqueue_many([prepared])
    drain()
    assert seen == [[1], [1]]


def test_the_arguments_arrive_as_they_were_given(drain) -> None:
    seen = []

    @job(name="look")
    def look(*args: Any, **kwargs: Any) -> None:
        seen.append((args, kwargs))

    look.enqueue(1, dt.date(2026, 1, 1), a=Decimal("1.10"), b={"$t": "x"})
    drain()
    assert seen == [((1, dt.date(2026, 1, 1)), {"a": Decimal("1.10"), "b": {"$t": "x"}})]


# What is sent


@pytest.mark.contract(40, 42)
def test_an_enqueue_is_one_envelope(memory) -> None:
    before = time.time_ns() // 1_000_000
    handle = note.enqueue("hello")
    after = time.time_ns() // 1_000_000
    envelope = only(memory.pending("default"))
    assert before <= envelope.enqueued_at <= after
    assert envelope == Envelope(
        job_id=handle.id,
        job="tests.app.jobs.note",
        queue="default",
        attempt=1,
        deferrals=0,
        priority=0,
        enqueued_at=envelope.enqueued_at,
        args=["hello"],
    )


@pytest.mark.contract(49)
def test_the_handle_tells_what_was_accepted() -> None:
    before = dt.datetime.now(dt.UTC)
    handle = note.enqueue("hello")
    assert isinstance(handle, EnqueuedJob)
    assert isinstance(handle.id, uuid.UUID)
    assert (handle.job, handle.queue) == ("tests.app.jobs.note", "default")
    assert handle.enqueued_at is not None
    assert before <= handle.enqueued_at <= dt.datetime.now(dt.UTC)


async def test_the_async_twin_sends_the_same(memory) -> None:
    handle = await note.using(priority=3).aenqueue("hello")
    envelope = only(memory.pending("default"))
    assert (envelope.job_id, envelope.args, envelope.priority) == (handle.id, ["hello"], 3)
    assert handle.enqueued_at is not None


@pytest.mark.contract(40, 50)
def test_the_id_and_the_correlation_id_stay_over_retries_deferrals_and_death(memory, drain) -> None:
    seen = []

    @job(name="look", retry={"max_attempts": 2, "backoff": "none"}, takes_context=True)
    def look(context: JobContext) -> None:
        seen.append((context.job_id, context.correlation_id, context.attempt, context.deferrals))
        if context.deferrals == 0:
            raise Defer("0s")
        raise ValueError

    handle = look.using(correlation_id="order-42").enqueue()
    drain()
    assert seen == [
        (handle.id, "order-42", 1, 0),
        (handle.id, "order-42", 1, 1),
        (handle.id, "order-42", 2, 1),
    ]
    [letter] = memory.dead_letters("default")
    assert (letter.envelope.job_id, letter.envelope.correlation_id) == (handle.id, "order-42")


@pytest.mark.contract(41)
def test_two_enqueues_of_one_payload_are_two_jobs(memory) -> None:
    prepared = note.prepare("hello")
    handles = [note.enqueue("hello"), note.enqueue("hello"), *enqueue_many([prepared, prepared])]
    ids = [handle.id for handle in handles]
    assert len(set(ids)) == 4
    assert [envelope.job_id for envelope in memory.pending("default")] == ids


@pytest.mark.contract(42)
def test_every_way_to_enqueue_starts_at_the_first_attempt(clock, clocked) -> None:
    note.enqueue("a")
    note.enqueue_after("5s", "b")
    note.defer("5s", "c")
    note.using(front=True).enqueue("d")
    clock.advance(5)
    envelopes = clocked.pending("default")
    assert sorted(envelope.args[0] for envelope in envelopes) == ["a", "b", "c", "d"]
    assert {(envelope.attempt, envelope.deferrals) for envelope in envelopes} == {(1, 0)}


@pytest.mark.contract(43)
def test_a_delayed_job_arrives_behind_its_priority(clock, clocked) -> None:
    note.enqueue_after("30s", "late")
    note.using(priority=5).enqueue_after("30s", "late and urgent")
    note.enqueue("first")
    note.using(priority=5).enqueue("urgent")
    clock.advance(29)
    note.enqueue("second")
    assert waiting(clocked) == ["urgent", "first", "second"]
    clock.advance(1)
    note.enqueue("third")
    assert waiting(clocked) == [
        "urgent",
        "late and urgent",
        "first",
        "second",
        "late",
        "third",
    ]


@pytest.mark.contract(44)
@pytest.mark.parametrize(
    "deferred",
    [
        lambda: note.defer("30s", "deferred"),
        lambda: note.using(delay="30s", front=True).enqueue("deferred"),
        lambda: note.using(front=True).enqueue_after("30s", "deferred"),
    ],
)
def test_a_deferred_job_arrives_ahead_of_everything(
    deferred: Callable[[], object], clock, clocked
) -> None:
    deferred()
    note.using(priority=9).enqueue("urgent")
    assert waiting(clocked) == ["urgent"]
    clock.advance(30)
    note.using(priority=9).enqueue("more")
    assert waiting(clocked) == ["deferred", "urgent", "more"]
    assert clocked.pending("default")[0].priority == 0


@pytest.mark.contract(44)
@override_settings(JOBQ={"default": {**MEMORY, "QUEUES": {"default": {"max_priority": 0}}}})
def test_on_a_queue_without_levels_a_deferred_job_arrives_in_its_turn() -> None:
    memory: Any = backends["default"]
    note.using(priority=9).enqueue("first")
    note.using(front=True).enqueue("front")
    note.using(priority=9).enqueue("last")
    assert waiting(memory) == ["first", "front", "last"]


@pytest.mark.contract(52)
def test_queue_priority_and_delay_of_the_call_go_before_those_of_the_job(clock, clocked) -> None:
    made: Any = job(name="send", queue="email", priority=2)(send)
    job(name="other", queue="bulk")(with_context)
    made.enqueue(1)
    made.using(queue="bulk", priority=0).enqueue(2)
    made.using(queue="bulk", delay="5m").enqueue_after("10s", 3)
    assert [(item.args, item.priority) for item in clocked.pending("email")] == [([1], 2)]
    assert [(item.args, item.priority) for item in clocked.pending("bulk")] == [([2], 0)]
    clock.advance(10)
    assert waiting(clocked, "bulk") == [3, 2]


@pytest.mark.contract(87)
def test_retry_and_timeout_of_the_call_travel_with_the_job(memory) -> None:
    note.using(retry=RetryPolicy.fixed(4, delay="7s"), timeout="90s").enqueue("hello")
    note.enqueue("plain")
    with_options, plain = memory.pending("default")
    assert with_options.headers == {
        "retry": {
            "max_attempts": 4,
            "backoff": "fixed",
            "delay": 7.0,
            "base": 1.0,
            "factor": 2.0,
            "max": 300.0,
            "jitter": True,
        },
        "timeout": 90.0,
    }
    assert json.loads(json.dumps(with_options.headers)) == with_options.headers
    assert plain.headers == {}


@pytest.mark.parametrize(
    ("options", "held", "ready"),
    [
        ({"delay": "0s"}, 0, 1),
        ({"delay": dt.timedelta(seconds=-5)}, 0, 1),
        ({"run_after": dt.datetime(2020, 1, 1, tzinfo=dt.UTC)}, 0, 1),
        ({"delay": "1ms"}, 1, 0),
        ({"run_after": dt.datetime(2500, 1, 1, tzinfo=dt.UTC)}, 1, 0),
    ],
)
@pytest.mark.contract(105)
def test_a_delay_that_is_over_is_none(
    options: dict[str, Any], held: int, ready: int, clocked
) -> None:
    note.using(**options).enqueue("hello")
    counts = clocked.counts("default")
    assert (counts.held, counts.ready) == (held, ready)


def test_run_after_is_a_delay_from_now(clock, clocked) -> None:
    note.using(run_after=dt.datetime.now(dt.timezone(-HOUR)) + HOUR).enqueue("hello")
    clock.advance(3590)
    assert waiting(clocked) == []
    clock.advance(10)
    assert waiting(clocked) == ["hello"]


# Where it may go


@pytest.mark.contract(4, 47)
@override_settings(JOBQ={"default": {**MEMORY, "QUEUES": ["default", "email"]}})
def test_an_unknown_queue_is_refused_naming_the_known_ones() -> None:
    with pytest.raises(UnknownQueue) as caught:
        note.using(queue="emial").enqueue("hello")
    assert str(caught.value) == (
        "queue 'emial' is not known to backend 'default' (known: default, email); add it to"
        " JOBQ['default']['QUEUES']"
    )
    assert (caught.value.queue, caught.value.alias, caught.value.known) == (
        "emial",
        "default",
        ["default", "email"],
    )
    for call in (
        lambda: note.using(queue="emial").enqueue_after("5s", "hello"),
        lambda: note.using(queue="emial").defer("5s", "hello"),
    ):
        with pytest.raises(UnknownQueue):
            call()
    assert backends["default"].queue_names() == []  # type: ignore[attr-defined]


@pytest.mark.contract(5, 47)
def test_naming_the_queue_makes_the_same_call_succeed() -> None:
    for queues, accepted in ((["default"], False), (["default", "email"], True)):
        with override_settings(JOBQ={"default": {**MEMORY, "QUEUES": queues}}):
            expected = contextlib.nullcontext() if accepted else pytest.raises(UnknownQueue)
            with expected:
                note.using(queue="email").enqueue("hello")
            assert backends["default"].counts("email").ready == accepted


@pytest.mark.contract(47)
def test_without_queues_in_the_settings_a_queue_is_known_if_a_job_names_it(memory) -> None:
    with pytest.raises(UnknownQueue, match=r"queue 'email' is not known .*\(known: default\)"):
        note.using(queue="email").enqueue("hello")
    job(name="send", queue="email")(send)
    note.using(queue="email").enqueue("hello")
    assert memory.counts("email").ready == 1


@pytest.mark.contract(47)
@override_settings(JOBQ={"default": MEMORY, "second": MEMORY})
def test_an_unknown_backend_is_refused_naming_the_known_ones() -> None:
    with pytest.raises(UnknownBackend) as caught:
        job(name="send", backend="third")(answer).enqueue("why")
    assert str(caught.value) == "JOBQ has no backend 'third' (known: default, second)"
    assert backends.opened() == []


@pytest.mark.contract(47)
@override_settings(JOBQ={"default": MEMORY, "second": MEMORY})
def test_a_job_goes_to_its_own_backend_and_its_queues_are_of_that_one() -> None:
    far = job(name="far", backend="second", queue="far")(answer)
    far.enqueue("why")
    assert backends["second"].counts("far").ready == 1
    assert backends["default"].counts("far").ready == 0
    with pytest.raises(UnknownQueue, match="queue 'far' is not known to backend 'default'"):
        note.using(queue="far").enqueue("hello")


@pytest.mark.contract(47)
@override_settings(JOBQ={"default": {**MEMORY, "QUEUES": {"default": {"max_priority": 3}}}})
def test_a_priority_without_a_level_is_refused() -> None:
    with pytest.raises(InvalidJob) as caught:
        note.using(priority=3).enqueue("hello")
    assert str(caught.value) == (
        "priority 3 does not fit queue 'default', whose priorities are 0 to 2"
    )
    assert backends["default"].counts("default").ready == 0


@pytest.mark.contract(48)
@override_settings(JOBQ={"default": {**MEMORY, "OPTIONS": {"max_payload": 1000}}})
def test_a_payload_above_the_limit_is_refused_with_its_size() -> None:
    note.enqueue("x" * 700)
    with pytest.raises(PayloadTooLarge) as caught:
        note.enqueue("x" * 10_000)
    error = caught.value
    assert (error.job, error.limit) == ("tests.app.jobs.note", 1000)
    assert 10_000 < error.size < 10_400
    assert str(error) == (
        f"the arguments of tests.app.jobs.note make {error.size:,} bytes, more than the limit of"
        " 1,000; store the data and pass its key, or raise OPTIONS['max_payload']"
    )
    assert isinstance(error, InvalidArguments)
    assert backends["default"].counts("default").ready == 1


def test_the_default_limit_of_a_payload_is_128_kib() -> None:
    note.enqueue("x" * 130_000)
    with pytest.raises(PayloadTooLarge, match="more than the limit of 131,072"):
        note.enqueue("x" * 131_072)


# Many at once


@pytest.mark.contract(40)
def test_enqueue_many_keeps_the_order_and_the_options_of_each(memory) -> None:
    handles = enqueue_many(
        [note.prepare("a"), note.using(priority=9).prepare("b"), note.prepare("c")]
    )
    assert [(handle.id, handle.queue) for handle in handles] == [
        (item.job_id, item.queue)
        for item in sorted(memory.pending("default"), key=lambda item: item.args[0])
    ]
    assert waiting(memory) == ["b", "a", "c"]


def test_enqueue_many_takes_any_iterable_and_none_at_all(memory) -> None:
    assert enqueue_many([]) == []
    assert len(enqueue_many(note.prepare(str(number)) for number in range(3))) == 3
    assert waiting(memory) == ["0", "1", "2"]


async def test_aenqueue_many_does_the_same(memory) -> None:
    handles = await aenqueue_many([note.prepare("a"), note.prepare("b")])
    assert [handle.id for handle in handles] == [item.job_id for item in memory.pending("default")]
    assert await aenqueue_many([]) == []


@pytest.mark.contract(47, 48)
@override_settings(
    JOBQ={"default": {**MEMORY, "QUEUES": ["default"], "OPTIONS": {"max_payload": 1000}}}
)
@pytest.mark.parametrize(
    ("refused", "error"),
    [
        (lambda: note.using(queue="missing").prepare("x"), UnknownQueue),
        (lambda: note.using(priority=10).prepare("x"), InvalidJob),
        (lambda: note.prepare("x" * 1000), PayloadTooLarge),
        (lambda: note.using(delay=dt.timedelta.max).prepare("x"), InvalidDuration),
        (lambda: job(name="far", backend="missing")(answer).prepare("x"), UnknownBackend),
    ],
)
def test_one_refusal_keeps_all_from_being_sent(refused: Callable[[], Any], error: type) -> None:
    with pytest.raises(error):
        enqueue_many([note.prepare("first"), refused(), note.prepare("last")])
    assert backends["default"].counts("default").ready == 0
