"""The time limit of sync jobs: it interrupts the call and nothing after it."""

import asyncio
import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue

import pytest

from django_jobq import JobContext, JobTimeout, job
from django_jobq.worker import time_limit
from django_jobq.worker.attempt import Attempt
from django_jobq.worker.executor import LaneExecutor
from django_jobq.worker.time_limit import TimeLimit

DEADLINE = 20.0
RACES = 20_000


def never(expire: Callable[[], None]) -> None:
    """Start no timer."""


def run_in_thread(func: Callable[[], object]) -> list[object]:
    """Return what ``func`` returned or raised in a thread of its own."""
    ended: list[object] = []

    def run() -> None:
        try:
            ended.append(func())
        except BaseException as error:  # noqa: BLE001
            ended.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(DEADLINE)
    assert not thread.is_alive(), "the call was not interrupted"
    return ended


def spin_until(condition: Callable[[], bool]) -> None:
    """Run bytecode until a condition holds, so that an exception from outside can arrive."""
    give_up = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < give_up, "nothing happened"


@pytest.fixture
def _hasty_threads() -> Iterator[None]:
    """Switch threads as often as the interpreter can, and keep finalisers out of the way.

    An exception that arrives in a finaliser is lost, as any raised there is.
    """
    before = sys.getswitchinterval()
    gc.collect()
    gc.disable()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
    gc.enable()


def test_result_is_returned() -> None:
    assert TimeLimit(never).call(lambda: "done") == "done"


def test_own_exception_passes() -> None:
    with pytest.raises(ZeroDivisionError):
        TimeLimit(never).call(lambda: 1 / 0)


def test_timer_is_started_before_the_function() -> None:
    order: list[str] = []

    TimeLimit(lambda expire: order.append("timer")).call(lambda: order.append("function"))

    assert order == ["timer", "function"]


@pytest.mark.contract(61)
def test_running_call_is_interrupted() -> None:
    reached: list[str] = []

    def func() -> None:
        reached.append("started")
        threading.Thread(target=limit.expire, daemon=True).start()
        spin_until(lambda: False)
        reached.append("not interrupted")

    limit = TimeLimit(never)
    (ended,) = run_in_thread(lambda: limit.call(func))

    assert isinstance(ended, JobTimeout)
    assert reached == ["started"]


def test_except_exception_does_not_swallow_it() -> None:
    def func() -> None:
        threading.Thread(target=limit.expire, daemon=True).start()
        try:
            spin_until(lambda: False)
        except Exception:  # noqa: BLE001 - what a job may well do
            return

    limit = TimeLimit(never)
    (ended,) = run_in_thread(lambda: limit.call(func))

    assert isinstance(ended, JobTimeout)


def test_finally_of_the_function_runs() -> None:
    cleaned: list[bool] = []

    def func() -> None:
        try:
            threading.Thread(target=limit.expire, daemon=True).start()
            spin_until(lambda: False)
        finally:
            cleaned.append(True)

    limit = TimeLimit(never)
    run_in_thread(lambda: limit.call(func))

    assert cleaned == [True]


@pytest.mark.parametrize("times", [1, 3])
def test_expiring_after_the_end_does_nothing(times: int) -> None:
    limit = TimeLimit(never)

    def func() -> str:
        assert limit.call(lambda: "done") == "done"
        for _ in range(times):
            limit.expire()
        count = 0
        for _ in range(10_000):
            count += 1
        return f"went on to {count}"

    assert run_in_thread(func) == ["went on to 10000"]


def test_expiring_before_the_call_does_nothing() -> None:
    limit = TimeLimit(never)
    limit.expire()

    assert limit.call(lambda: sum(range(10_000))) == 49_995_000


def test_expiring_twice_interrupts_once() -> None:
    interruptions: list[str] = []
    both_sent = threading.Event()

    def expire_twice() -> None:
        limit.expire()
        limit.expire()
        both_sent.set()

    def func() -> str:
        try:
            threading.Thread(target=expire_twice, daemon=True).start()
            spin_until(lambda: False)
        except JobTimeout:
            interruptions.append("first")
        spin_until(both_sent.is_set)
        for _ in range(10_000):
            pass
        return "survived"

    limit = TimeLimit(never)

    assert run_in_thread(lambda: limit.call(func)) == ["survived"]
    assert interruptions == ["first"]


def test_only_the_calling_thread_is_interrupted() -> None:
    stop = threading.Event()
    laps: list[int] = []

    def bystander() -> str:
        while not stop.is_set():
            laps.append(1)
        return "undisturbed"

    def func() -> None:
        threading.Thread(target=limit.expire, daemon=True).start()
        spin_until(lambda: False)

    limit = TimeLimit(never)
    seen: list[list[object]] = []
    other = threading.Thread(target=lambda: seen.append(run_in_thread(bystander)), daemon=True)
    other.start()
    spin_until(lambda: bool(laps))
    (ended,) = run_in_thread(lambda: limit.call(func))
    after = len(laps)
    spin_until(lambda: len(laps) > after)
    stop.set()
    other.join(DEADLINE)

    assert isinstance(ended, JobTimeout)
    assert seen == [["undisturbed"]]


def test_own_error_passes_however_late_the_timer() -> None:

    def func() -> None:
        raise ValueError("own")

    for _ in range(200):
        limit = TimeLimit(never)
        with pytest.raises(ValueError, match="own"):
            limit.call(func)
        limit.expire()


@pytest.mark.contract(57)
def test_call_does_not_end_while_its_timer_is_firing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A timer that has decided to fire and is then slow still hits the call, not later code."""
    firing, left = threading.Event(), threading.Event()
    raise_in = time_limit._raise_in

    def raise_slowly(thread: int, error: type[BaseException] | None) -> None:
        if error is not None:
            firing.set()
            left.wait(0.3)
        raise_in(thread, error)

    def func() -> None:
        timer.start()
        assert firing.wait(DEADLINE)

    def call() -> str:
        try:
            limit.call(func)
            ended = "ended"
        except JobTimeout:
            ended = "interrupted"
        left.set()
        spin_until(lambda: not timer.is_alive())
        return ended

    monkeypatch.setattr(time_limit, "_raise_in", raise_slowly)
    limit = TimeLimit(never)
    timer = threading.Thread(target=limit.expire, daemon=True)

    assert run_in_thread(call) in (["interrupted"], ["ended"])


@pytest.mark.slow
@pytest.mark.contract(57, 61)
@pytest.mark.usefixtures("_hasty_threads")
@pytest.mark.parametrize("how", ["returns", "raises", "swallows"])
def test_timer_that_fires_as_the_function_ends_never_leaks(how: str) -> None:
    """Expire thousands of limits within microseconds of the end of their calls.

    Two threads share a queue: one makes calls, the other expires each as soon as it sees it. An
    exception that arrives anywhere but inside ``call()`` ends the calling thread's loop early or is
    seen in the code after it.
    """
    armed: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
    counts = {"interrupted": 0, "ended": 0, "own": 0, "leaked": 0, "rounds": 0}

    def expire_all() -> None:
        while (expire := armed.get()) is not None:
            expire()

    def func(length: int) -> str:
        for _ in range(length):
            pass
        if how == "raises":
            raise ValueError
        if how == "swallows":
            try:
                for _ in range(length):
                    pass
            except JobTimeout:
                pass
        return "done"

    def one_round(length: int) -> str:
        limit = TimeLimit(armed.put)
        try:
            limit.call(lambda: func(length))
        except JobTimeout:
            return "interrupted"
        except ValueError:
            return "own"
        return "ended"

    def later_code() -> None:
        total = 0
        for number in range(60):
            total += len(str(number))
        assert total == 110

    def call_all() -> str:
        length = 100
        for _ in range(RACES):
            end = one_round(length)
            # Stay at the boundary: longer after a call that ended, shorter after one that did not.
            length = max(1, length - length // 8 if end == "interrupted" else length + 8)
            counts[end] += 1
            try:
                later_code()
            except JobTimeout:
                counts["leaked"] += 1
            counts["rounds"] += 1
        return "complete"

    timer = threading.Thread(target=expire_all, daemon=True)
    timer.start()
    try:
        assert run_in_thread(call_all) == ["complete"]
    finally:
        armed.put(None)
        timer.join(DEADLINE)

    assert counts["leaked"] == 0
    assert counts["rounds"] == RACES
    # Both sides of the boundary were met, or the test has shown nothing.
    assert counts["interrupted"] > 0
    assert counts["own" if how == "raises" else "ended"] > 0


@pytest.mark.slow
@pytest.mark.contract(57, 61)
@pytest.mark.usefixtures("_hasty_threads")
async def test_jobs_that_take_as_long_as_their_timeout_leave_the_thread_clean() -> None:
    """One thread runs job after job at the boundary; what follows each runs undisturbed."""
    intervals = iter([0.0006, 0.0009, 0.001, 0.0011, 0.0013] * 200)

    @job(name="tests.boundary", timeout="1ms")
    def boundary(seconds: float) -> None:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass

    def follow() -> None:
        assert sum(len(str(number)) for number in range(300)) == 790

    executor = LaneExecutor(1)
    executor.start()
    ended = {"returned": 0, "timed out": 0}
    try:
        for seconds in intervals:
            attempt = Attempt(
                job=boundary,
                context=JobContext(job=boundary.name),
                args=[seconds],
                kwargs={},
                timeout=0.001,
            )
            execution = await asyncio.wait_for(executor.run(attempt), DEADLINE)
            assert not execution.stuck
            assert execution.error is None or str(execution.error) == "timed out after 1 ms"
            ended["returned" if execution.error is None else "timed out"] += 1
            await asyncio.wait_for(executor.call(follow), DEADLINE)
    finally:
        await executor.stop()

    assert sum(ended.values()) == 1_000
    assert ended["returned"] > 0
    assert ended["timed out"] > 0
