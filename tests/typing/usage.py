"""What a type checker must accept and refuse; an ignore that is not needed is an error itself."""

from typing import assert_type

from django_jobq import EnqueuedJob, JobContext, RetryPolicy, enqueue_many, job


@job
def plain(number: int, text: str = "") -> float:
    return number * 1.0


@job(queue="email", retry=RetryPolicy.exponential(5, base="1s"), timeout="30s")
def with_options(number: int) -> None: ...


@job
async def coroutine(number: int) -> str:
    return str(number)


@job(retry=3, takes_context=True)
def with_context(context: JobContext, sku: str) -> int:
    return context.attempt


@job(takes_context=True)
async def async_with_context(context: JobContext, sku: str) -> int:
    return context.attempt


def undecorated(number: int) -> bool:
    return bool(number)


made = job(undecorated, queue="bulk")


def enqueue_everything() -> None:
    assert_type(plain.enqueue(1), EnqueuedJob)
    plain.enqueue(1, text="x")
    plain.enqueue("1")  # type: ignore[arg-type]
    plain.enqueue()  # type: ignore[call-arg]
    plain.enqueue(1, colour="red")  # type: ignore[call-arg]
    plain.using(priority=9).enqueue(1)
    plain.using(priority=9).enqueue("1")  # type: ignore[arg-type]
    plain.using(colour="red")  # type: ignore[call-arg]
    plain.enqueue_after("5m", 1)
    plain.enqueue_after("5m", "1")  # type: ignore[arg-type]
    plain.enqueue_after(5, 1)  # type: ignore[arg-type]
    plain.defer("30s", 1)
    plain.defer("30s", "1")  # type: ignore[arg-type]
    plain.prepare("1")  # type: ignore[arg-type]
    enqueue_many([plain.prepare(1), with_context.prepare("sku")])
    plain(1)  # type: ignore[operator]
    with_options.enqueue(2)
    with_context.enqueue("sku")
    with_context.enqueue(3)  # type: ignore[arg-type]
    made.enqueue(1)


def call_everything() -> None:
    assert_type(plain.call(1), float)
    assert_type(coroutine.call(1), str)
    assert_type(with_context.call("sku"), int)


async def await_everything() -> None:
    assert_type(await plain.aenqueue(1), EnqueuedJob)
    await plain.aenqueue("1")  # type: ignore[arg-type]
    assert_type(await coroutine.acall(1), str)
    await coroutine.acall("1")  # type: ignore[arg-type]
    await async_with_context.aenqueue("sku")
    await async_with_context.aenqueue(3)  # type: ignore[arg-type]
    assert_type(await async_with_context.acall("sku"), int)
