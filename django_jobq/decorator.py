"""The decorator `@job`: what it takes, what it refuses, and the job that it registers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar, overload

from django_jobq import conf, durations
from django_jobq.arguments import positional_names
from django_jobq.call_options import check_priority
from django_jobq.context import JobContext
from django_jobq.durations import Duration
from django_jobq.exceptions import InvalidDuration, InvalidJob
from django_jobq.jobs import ExceptionTypes, Job
from django_jobq.queues import DEFAULT_QUEUE, check_queue_name
from django_jobq.registry import registry
from django_jobq.retry import RetryDeclaration, RetryPolicy

P = ParamSpec("P")
R = TypeVar("R")


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
            priority=check_priority(priority),
            takes_context=takes_context,
            retry_on=_exception_types("retry_on", retry_on),
            fatal_on=_exception_types("fatal_on", fatal_on),
        )
        registry.register(made)
        return made

    return decorate if func is None else decorate(func)


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
    if takes_context and positional_names(func, takes_context=False)[:1] != ["context"]:
        raise InvalidJob(f"{func.__qualname__} takes_context, so its first parameter is 'context'")
    return func


def _check_name(name: object) -> str | None:
    if name is not None and (not isinstance(name, str) or not name.strip()):
        raise InvalidJob(f"name {name!r} is no text")
    return name


def _parse_timeout(timeout: Duration) -> float:
    try:
        return durations.parse_positive(timeout)
    except InvalidDuration as error:
        raise InvalidJob(f"timeout: {error}") from error


def _exception_types(key: str, value: type[BaseException] | ExceptionTypes) -> ExceptionTypes:
    types = value if isinstance(value, tuple) else (value,)
    if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in types):
        raise InvalidJob(f"{key}: {value!r} is no exception class or tuple of them")
    return types
