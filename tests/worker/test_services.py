"""Services: passes, pauses that can be cut short, outages that are waited out, and faults."""

import asyncio
import logging
from collections.abc import Callable

import pytest
from django.db import InterfaceError, InternalError, OperationalError

from django_jobq.exceptions import BackendUnavailable
from django_jobq.worker import services as services_module
from django_jobq.worker.services import Call, Service, Services

PATIENCE = 30.0


class Scripted(Service):
    """Do one thing after the other: return a pause, or raise."""

    name = "scripted service"

    def __init__(self, *steps: float | Exception) -> None:
        self.steps = list(steps)
        self.passes = 0
        self.is_closed = False

    async def work(self, call: Call) -> float:
        return await call(self.step)

    def step(self) -> float:
        self.passes += 1
        step = self.steps.pop(0) if self.steps else 600.0
        if isinstance(step, Exception):
            raise step
        return step

    async def close(self) -> None:
        self.is_closed = True


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services_module, "_FIRST_PAUSE", 0.01)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - threads tell nobody
            await asyncio.sleep(0.005)


async def run_until(services: Services, condition: Callable[[], bool]) -> None:
    """Let services work until a state is reached; raise what ends one of them."""
    tasks = [asyncio.create_task(work) for work in services.start()]
    reached = asyncio.create_task(until(condition))
    done, _ = await asyncio.wait([*tasks, reached], return_when=asyncio.FIRST_COMPLETED)
    for task in (*tasks, reached):
        task.cancel()
    await asyncio.gather(*tasks, reached, return_exceptions=True)
    await services.stop(5)
    for task in done:
        task.result()


async def test_a_service_works_again_after_its_pause_and_is_closed() -> None:
    service = Scripted(0.0, 0.01, 0.0)
    await run_until(Services([service]), lambda: service.passes == 4)

    assert service.is_closed


async def test_a_call_cuts_the_pause_short() -> None:
    service = Scripted()
    services = Services([service])

    def has_worked_twice() -> bool:
        if service.passes == 1:
            services.wake()
        return service.passes == 2

    await run_until(services, has_worked_twice)


@pytest.mark.parametrize(
    "outage",
    [OperationalError("x"), InterfaceError("x"), InternalError("x"), BackendUnavailable("x")],
    ids=lambda error: type(error).__name__,
)
async def test_an_outage_is_told_once_and_waited_out(
    outage: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    service = Scripted(outage, outage, outage, 0.0)
    with caplog.at_level(logging.INFO):
        await run_until(Services([service]), lambda: service.passes == 5)

    assert [record.getMessage() for record in caplog.records] == [
        "The scripted service waits for an outage to end: x",
        "The scripted service works again",
    ]


async def test_a_fault_is_raised_and_others_are_closed() -> None:
    faulty, other = Scripted(KeyError("a fault")), Scripted()
    with pytest.raises(KeyError, match="a fault"):
        await run_until(Services([faulty, other]), lambda: False)

    assert faulty.is_closed
    assert other.is_closed


async def test_each_does_one_pass_when_it_is_asked_for_one() -> None:
    services = [Scripted(), Scripted()]

    async def call(func: Callable[[], float]) -> float:
        return func()

    await Services(services).work_once(call)  # type: ignore[arg-type]

    assert [service.passes for service in services] == [1, 1]
