"""The job: a function under a stable name, and the ways to enqueue it."""

from __future__ import annotations

import dataclasses
import datetime as dt
import inspect
import time
import uuid
from collections.abc import Callable, Iterable
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    NoReturn,
    ParamSpec,
    TypeVar,
    cast,
)

from asgiref.sync import async_to_sync, iscoroutinefunction, sync_to_async

from django_jobq import conf, producer
from django_jobq.arguments import bind, signature_of
from django_jobq.call_options import CallOptions, parse_named
from django_jobq.context import JobContext, current_job
from django_jobq.durations import Duration
from django_jobq.envelope import Envelope
from django_jobq.exceptions import InvalidJob
from django_jobq.publication import EnqueuedJob, Publication
from django_jobq.queues import DEFAULT_QUEUE
from django_jobq.retry import RetryDeclaration, RetryPolicy
from django_jobq.serialization import JSON

P = ParamSpec("P")
R = TypeVar("R")

ExceptionTypes = tuple[type[BaseException], ...]
_NO_OPTIONS = CallOptions()
# What other libraries call enqueueing.
_FOREIGN_NAMES = frozenset(
    {
        "apply_async",
        "delay",
        "delay_on_commit",
        "perform_async",
        "perform_later",
        "push",
        "schedule",
        "send",
        "send_with_options",
    }
)


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
    options: CallOptions = _NO_OPTIONS

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

        def __getattr__(self, name: str) -> NoReturn:
            """Tell what other queues' names are called here."""
            called = vars(self).get("__name__", "job")
            hint = (
                f": use {called}.enqueue(...), or {called}.using(delay='5m').enqueue(...) with"
                " options"
            )
            raise AttributeError(
                f"job {vars(self).get('name')} has no attribute {name!r}"
                f"{hint if name in _FOREIGN_NAMES else ''}",
                name=name,
                obj=self,
            )

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
        return signature_of(self.func, takes_context=self.takes_context)

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
        options = self.options.changed(
            queue=queue,
            priority=priority,
            retry=retry,
            timeout=timeout,
            delay=delay,
            run_after=run_after,
            front=front,
            correlation_id=correlation_id,
            database=database,
            on_commit=on_commit,
        )
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
        trees = bind(self.name, self.func, args, kwargs, takes_context=self.takes_context)
        return PreparedJob(job=self, args=trees[0], kwargs=trees[1])

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
        return self.using(delay=dt.timedelta(seconds=parse_named("delay", delay)))

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
