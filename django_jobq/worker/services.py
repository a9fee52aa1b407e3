"""What a worker does beside running jobs: services, each with a thread for what blocks.

A service works in passes. An outage is told once and waited out, in growing pauses; whatever else a
pass raises ends the worker.
"""

from __future__ import annotations

import abc
import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import partial
from typing import Any, ClassVar, Protocol, TypeVar

from django_jobq.worker.databases import OUTAGES, with_fresh_connections
from django_jobq.worker.lanes import ThreadLanes

logger = logging.getLogger("django_jobq.worker")

_FIRST_PAUSE = 0.5
_LONGEST_PAUSE = 15.0

R = TypeVar("R")


class Call(Protocol):
    """Call functions on a thread that may use the ORM."""

    def __call__(self, func: Callable[[], R], /) -> Awaitable[R]:
        """Return what the function returns, or raise what it raises."""


class Service(abc.ABC):
    """Do one kind of work beside the jobs."""

    name: ClassVar[str]

    @abc.abstractmethod
    async def work(self, call: Call) -> float:
        """Do what there is to do, and return after how many seconds to look again."""

    async def close(self) -> None:  # noqa: B027 - not every service holds something
        """Give up what the service holds; called once it works no more."""


class Services:
    """Keep the services of a worker going, or let each do a pass when it is asked for one."""

    def __init__(self, services: Iterable[Service]) -> None:
        self._services = list(services)
        self._loops: list[ServiceLoop] = []

    def start(self) -> list[Coroutine[Any, Any, None]]:
        """Return what is to run until the worker stops; it raises what is no outage."""
        self._loops = [ServiceLoop(service) for service in self._services]
        return [loop.run() for loop in self._loops]

    def wake(self) -> None:
        """Let the services look again without waiting for the end of their pauses."""
        for loop in self._loops:
            loop.wake()

    async def work_once(self, call: Call) -> None:
        """Let each service do one pass."""
        for service in self._services:
            await service.work(call)

    async def stop(self, timeout: float) -> None:
        """Let the passes that are under way end; wait at most ``timeout`` seconds for each."""
        for loop in self._loops:
            await loop.stop(timeout)
        for service in self._services:
            await service.close()


class ServiceLoop:
    """Let a service work, pass after pass, on the running loop."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._news = asyncio.Event()
        self._failures = 0
        # Of its own: jobs that fill every lane must not keep a service from working.
        self._lane = ThreadLanes(1)

    def wake(self) -> None:
        """Let the service look again without waiting for the end of its pause."""
        self._news.set()

    async def run(self) -> None:
        """Work until cancelled; raise what is no outage."""
        self._lane.start()
        while True:
            self._news.clear()
            pause = await self._work_once()
            try:
                await asyncio.wait_for(self._news.wait(), pause)
            except TimeoutError:
                continue

    async def stop(self, timeout: float) -> None:
        """Let a pass that is under way end; wait at most ``timeout`` seconds."""
        await self._lane.stop(timeout)

    async def _work_once(self) -> float:
        try:
            pause = await self._service.work(self._call)
        except OUTAGES as error:
            if not self._failures:
                logger.warning("The %s waits for an outage to end: %s", self._service.name, error)
            pause = min(_FIRST_PAUSE * 2.0 ** min(self._failures, 10), _LONGEST_PAUSE)
            self._failures += 1
            return pause
        if self._failures:
            logger.info("The %s works again", self._service.name)
        self._failures = 0
        return pause

    async def _call(self, func: Callable[[], R]) -> R:
        return await self._lane.submit(partial(with_fresh_connections, func)).future
