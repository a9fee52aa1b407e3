"""The job definition: what `@job` makes of a function, and how it is enqueued."""

from __future__ import annotations

import dataclasses
import datetime as dt
import inspect
import time
import uuid
from collections.abc import Callable, Coroutine, Iterable
from functools import cache
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    NoReturn,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    overload,
)

from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async

from django_jobq import conf, durations, producer
from django_jobq.context import JobContext, current_job
from django_jobq.durations import Duration
from django_jobq.envelope import Envelope
from django_jobq.exceptions import InvalidArguments, InvalidDuration, InvalidJob
from django_jobq.publication import EnqueuedJob, Publication
from django_jobq.queues import DEFAULT_QUEUE, check_queue_name
from django_jobq.registry import registry
from django_jobq.retry import RetryDeclaration, RetryPolicy
from django_jobq.serialization import JSON, dump

P = ParamSpec("P")
R = TypeVar("R")

ExceptionTypes = tuple[type[BaseException], ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """Hold what `Job.using()` set; None is the job's own value. Durations are seconds."""

    queue: str | None = None
    priority: int | None = None
    retry: RetryPolicy | None = None
    timeout: float | None = None
    delay: float | None = None
    run_after: dt.datetime | None = None
    front: bool | None = None
    correlation_id: str | None = None
    database: str | None = None
    on_commit: bool | None = None

    def seconds_to_wait(self) -> float:
        """Return the delay from now on; a moment that has passed is 0."""
        if self.run_after is None:
            return self.delay or 0.0
        return max(0.0, self.run_after.timestamp() - time.time())


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Job(Generic[P, R]):
    """Define a background job: a function under a stable name, with its defaults.

    It is made by `@job` and never changes; `using()` returns a copy with options for one call.
    ``timeout`` is seconds. Calling it is an error: `enqueue()` runs it in a worker, `call()` here.
    """

    func: Callable[..., Any]
    name: str
    queue: str = DEFAULT_QUEUE
    backend: str = conf.DEFAULT_ALIAS
    retry: RetryPolicy | None = None
    timeout: float | None = None
    priority: int = 0
    takes_context: bool = False
    retry_on: ExceptionTypes = ()
    fatal_on: ExceptionTypes = ()
    options: CallOptions = CallOptions()

    def __post_init__(self) -> None:
        func = self.func
        vars(self).update(
            __doc__=func.__doc__,
            __module__=func.__module__,
            __name__=func.__name__,
            __qualname__=func.__qualname__,
            __wrapped__=func,
        )

    def __repr__(self) -> str:
        return f"<Job {self.name}>"

    if not TYPE_CHECKING:

        def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
            """Refuse to be called."""
            raise TypeError(
                f"{self.name} is a job: use {self.__name__}.enqueue(...) to run it in a worker, or"
                f" {self.__name__}.call(...) to run it here"
            )

    @property
    def is_async(self) -> bool:
        """Return whether the function is a coroutine function."""
        return iscoroutinefunction(self.func)

    @property
    def signature(self) -> inspect.Signature:
        """Return the signature that arguments are bound to, without the context."""
        return _signature_of(self.func, takes_context=self.takes_context)

    def using(
        self,
        *,
        queue: str | None = None,
        priority: int | None = None,
        retry: RetryDeclaration | None = None,
        timeout: Duration | None = None,
        delay: Duration | None = None,
        run_after: dt.datetime | None = None,
        front: bool | None = None,
        correlation_id: str | None = None,
        database: str | None = None,
        on_commit: bool | None = None,
    ) -> Job[P, R]:
        """Return the job with options for the calls made on the copy; None keeps what is set.

        ``delay`` counts from the enqueue call, ``run_after`` is an aware datetime; ``front`` puts
        the job ahead of the backlog; ``database`` names the alias whose commit releases the job,
        and ``on_commit=False`` does not wait for one.
        """
        given: dict[str, Any] = {
            "queue": queue,
            "priority": None if priority is None else _check_priority(priority),
            "retry": None if retry is None else RetryPolicy.parse(retry),
            "timeout": None
            if timeout is None
            else _parse_named("timeout", timeout, durations.parse_positive),
            "delay": None if delay is None else _parse_named("delay", delay),
            "run_after": None if run_after is None else _check_moment(run_after),
            "front": front,
            "correlation_id": _check_text("correlation_id", correlation_id),
            "database": database,
            "on_commit": on_commit,
        }
        given = {key: value for key, value in given.items() if value is not None}
        options = dataclasses.replace(self.options, **given)
        if options.delay is not None and options.run_after is not None:
            raise InvalidJob(f"{self.name}: give either delay or run_after, not both")
        return dataclasses.replace(self, options=options)

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> EnqueuedJob:
        """Store the job; it runs when the current transaction has committed.

        Raise InvalidArguments before anything is stored if the arguments do not fit.
        """
        return producer.enqueue([self.prepare(*args, **kwargs).publication()])[0]

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> EnqueuedJob:
        """Store the job from an event loop. See enqueue()."""
        return (await producer.aenqueue([self.prepare(*args, **kwargs).publication()]))[0]

    def enqueue_after(self, delay: Duration, /, *args: P.args, **kwargs: P.kwargs) -> EnqueuedJob:
        """Store the job to run after ``delay``, behind the backlog by then. See enqueue()."""
        return self._delayed(delay).enqueue(*args, **kwargs)

    def defer(self, delay: Duration, /, *args: P.args, **kwargs: P.kwargs) -> EnqueuedJob:
        """Store the job to run after ``delay``, ahead of the backlog by then. See enqueue()."""
        return self._delayed(delay).using(front=True).enqueue(*args, **kwargs)

    def prepare(self, /, *args: P.args, **kwargs: P.kwargs) -> PreparedJob:
        """Return the job with its arguments bound and checked, for enqueue_many()."""
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidArguments(f"{self.name}{self.signature}: {error}") from None
        names = _positional_names(self.func, takes_context=self.takes_context)
        return PreparedJob(
            job=self,
            args=[
                dump(value, self._argument(names[i] if i < len(names) else f"number {i + 1}"))
                for i, value in enumerate(args)
            ],
            kwargs={key: dump(value, self._argument(key)) for key, value in kwargs.items()},
        )

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function here and now, and return what it returns."""
        if self.is_async:
            return cast(R, async_to_sync(self.func)(*self._context_argument(), *args, **kwargs))
        return cast(R, self.func(*self._context_argument(), *args, **kwargs))

    async def acall(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function on this event loop, a sync one in a thread. See call()."""
        if self.is_async:
            return cast(R, await self.func(*self._context_argument(), *args, **kwargs))
        return cast(R, await sync_to_async(self.func)(*self._context_argument(), *args, **kwargs))

    def _delayed(self, delay: Duration) -> Job[P, R]:
        # Unlike in using(), None would not mean "keep what is set" here: it is refused.
        return self.using(delay=dt.timedelta(seconds=_parse_named("delay", delay)))

    def _argument(self, name: str) -> str:
        return f"{self.name}: argument {name}"

    def _context_argument(self) -> tuple[JobContext, ...]:
        if not self.takes_context:
            return ()
        attempts = self.retry.max_attempts if self.retry else 1
        neutral = JobContext(job=self.name, queue=self.queue, max_attempts=attempts)
        return (current_job() or neutral,)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PreparedJob:
    """Hold a job and its arguments as JSON trees, ready for enqueue_many()."""

    job: Job[..., Any]
    args: list[JSON]
    kwargs: dict[str, JSON]

    def publication(self) -> Publication:
        """Return a new enqueued job, under an id of its own, for the producer."""
        job, options = self.job, self.job.options
        headers: dict[str, Any] = {}
        if options.retry is not None:
            headers["retry"] = options.retry.to_json()
        if options.timeout is not None:
            headers["timeout"] = options.timeout
        envelope = Envelope(
            job_id=uuid.uuid4(),
            job=job.name,
            queue=job.queue if options.queue is None else options.queue,
            priority=job.priority if options.priority is None else options.priority,
            enqueued_at=time.time_ns() // 1_000_000,
            correlation_id=options.correlation_id,
            args=self.args,
            kwargs=self.kwargs,
            headers=headers,
        )
        return Publication(
            envelope=envelope,
            backend=job.backend,
            database=options.database,
            on_commit=options.on_commit is not False,
            delay=options.seconds_to_wait(),
            front=bool(options.front),
        )


def enqueue_many(prepared: Iterable[PreparedJob]) -> list[EnqueuedJob]:
    """Store several jobs with one round trip; all are checked before the first is stored."""
    return producer.enqueue([item.publication() for item in prepared])


async def aenqueue_many(prepared: Iterable[PreparedJob]) -> list[EnqueuedJob]:
    """Store several jobs from an event loop. See enqueue_many()."""
    return await producer.aenqueue([item.publication() for item in prepared])


class JobDecorator(Protocol):
    """Turn a function into a job."""

    @overload
    def __call__(self, func: Callable[P, Coroutine[Any, Any, R]], /) -> Job[P, R]: ...
    @overload
    def __call__(self, func: Callable[P, R], /) -> Job[P, R]: ...


class ContextJobDecorator(Protocol):
    """Turn a function whose first parameter is the context into a job without that parameter."""

    @overload
    def __call__(
        self, func: Callable[Concatenate[JobContext, P], Coroutine[Any, Any, R]], /
    ) -> Job[P, R]: ...
    @overload
    def __call__(self, func: Callable[Concatenate[JobContext, P], R], /) -> Job[P, R]: ...


@overload
def job(
    *,
    name: str | None = ...,
    queue: str = ...,
    backend: str = ...,
    retry: RetryDeclaration | None = ...,
    timeout: Duration | None = ...,
    priority: int = ...,
    takes_context: Literal[True],
    retry_on: type[BaseException] | ExceptionTypes = ...,
    fatal_on: type[BaseException] | ExceptionTypes = ...,
) -> ContextJobDecorator: ...
@overload
def job(
    *,
    name: str | None = ...,
    queue: str = ...,
    backend: str = ...,
    retry: RetryDeclaration | None = ...,
    timeout: Duration | None = ...,
    priority: int = ...,
    takes_context: Literal[False] = ...,
    retry_on: type[BaseException] | ExceptionTypes = ...,
    fatal_on: type[BaseException] | ExceptionTypes = ...,
) -> JobDecorator: ...
@overload
def job(
    func: Callable[P, Coroutine[Any, Any, R]],
    /,
    *,
    name: str | None = ...,
    queue: str = ...,
    backend: str = ...,
    retry: RetryDeclaration | None = ...,
    timeout: Duration | None = ...,
    priority: int = ...,
    retry_on: type[BaseException] | ExceptionTypes = ...,
    fatal_on: type[BaseException] | ExceptionTypes = ...,
) -> Job[P, R]: ...
@overload
def job(
    func: Callable[P, R],
    /,
    *,
    name: str | None = ...,
    queue: str = ...,
    backend: str = ...,
    retry: RetryDeclaration | None = ...,
    timeout: Duration | None = ...,
    priority: int = ...,
    retry_on: type[BaseException] | ExceptionTypes = ...,
    fatal_on: type[BaseException] | ExceptionTypes = ...,
) -> Job[P, R]: ...
def job(
    func: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    queue: str = DEFAULT_QUEUE,
    backend: str = conf.DEFAULT_ALIAS,
    retry: RetryDeclaration | None = None,
    timeout: Duration | None = None,
    priority: int = 0,
    takes_context: bool = False,
    retry_on: type[BaseException] | ExceptionTypes = (),
    fatal_on: type[BaseException] | ExceptionTypes = (),
) -> Any:
    """Make a background job of a module-level function; use it bare or with options.

    ``name`` is stable for life and defaults to module and function. ``retry`` is a number of
    attempts, a dict of retry keys or a RetryPolicy; ``retry_on`` limits retries to some exceptions
    and ``fatal_on`` excludes some. With ``takes_context`` the first parameter, called ``context``,
    receives the JobContext. Raise InvalidJob if the definition is refused.
    """

    def decorate(function: Callable[..., Any]) -> Job[..., Any]:
        made: Job[..., Any] = Job(
            func=_check_function(function, name, takes_context=takes_context),
            name=_check_name(name) or f"{function.__module__}.{function.__qualname__}",
            queue=check_queue_name(queue, "queue"),
            backend=backend,
            retry=None if retry is None else RetryPolicy.parse(retry),
            timeout=None if timeout is None else _parse_timeout(timeout),
            priority=_check_priority(priority),
            takes_context=takes_context,
            retry_on=_exception_types("retry_on", retry_on),
            fatal_on=_exception_types("fatal_on", fatal_on),
        )
        registry.register(made)
        return made

    return decorate if func is None else decorate(func)


# Kept by function, since using() makes a new Job for every call.
@cache
def _signature_of(func: Callable[..., Any], *, takes_context: bool) -> inspect.Signature:
    signature = inspect.signature(func)
    if not takes_context:
        return signature
    return signature.replace(parameters=list(signature.parameters.values())[1:])


@cache
def _positional_names(func: Callable[..., Any], *, takes_context: bool) -> list[str]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = _signature_of(func, takes_context=takes_context).parameters
    return [name for name, item in parameters.items() if item.kind in kinds]


def _check_function(
    func: Callable[..., Any], name: str | None, *, takes_context: bool
) -> Callable[..., Any]:
    if not inspect.isfunction(func):
        raise InvalidJob(f"@job takes a function, not {func!r}; options are keywords")
    if inspect.isgeneratorfunction(func) or inspect.isasyncgenfunction(func):
        raise InvalidJob(f"{func.__qualname__} is a generator: its body would never run as a job")
    if name is None and "<" in func.__qualname__:
        raise InvalidJob(
            f"{func.__qualname__} is not at module level, so a worker cannot import it; move it, or"
            " give it a name= and define it at import"
        )
    if takes_context and _positional_names(func, takes_context=False)[:1] != ["context"]:
        raise InvalidJob(f"{func.__qualname__} takes_context, so its first parameter is 'context'")
    return func


def _check_name(name: object) -> str | None:
    if name is not None and (not isinstance(name, str) or not name.strip()):
        raise InvalidJob(f"name {name!r} is no text")
    return name


def _check_priority(priority: object) -> int:
    if not isinstance(priority, int) or isinstance(priority, bool) or not 0 <= priority < 255:
        raise InvalidJob(f"priority {priority!r} is no whole number from 0 to 254")
    return priority


def _parse_timeout(timeout: Duration) -> float:
    try:
        return durations.parse_positive(timeout)
    except InvalidDuration as error:
        raise InvalidJob(f"timeout: {error}") from error


def _parse_named(
    name: str, value: object, parse: Callable[[object], float] = durations.parse
) -> float:
    try:
        return parse(value)
    except InvalidDuration as error:
        raise InvalidDuration(f"{name}: {error}") from error


def _check_moment(moment: dt.datetime) -> dt.datetime:
    if not isinstance(moment, dt.datetime) or moment.utcoffset() is None:
        raise InvalidDuration(
            f"run_after is an aware datetime, such as timezone.now() + timedelta(hours=1), not"
            f" {moment!r}"
        )
    return moment


def _check_text(key: str, value: str | None) -> str | None:
    if value is not None and not isinstance(value, str):
        raise InvalidArguments(f"{key} is text, not {type(value).__name__}")
    return value


def _exception_types(key: str, value: type[BaseException] | ExceptionTypes) -> ExceptionTypes:
    types = value if isinstance(value, tuple) else (value,)
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in types):
        raise InvalidJob(f"{key}: {value!r} is no exception class or tuple of them")
    return types
