"""Deliveries that were pulled and wait for a free slot, queue by queue in turn."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from django_jobq.backends.base import Delivery


class RoundRobinBuffer:
    """Serve several queues in turn; prefetch bounds what each may hold here."""

    def __init__(self, queues: Iterable[str]) -> None:
        self._waiting: dict[str, deque[Delivery]] = {name: deque() for name in queues}
        self._turn = deque(self._waiting)
        self._filled = asyncio.Event()

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def put(self, queue: str, delivery: Delivery) -> None:
        """Add a delivery behind those of its queue."""
        self._waiting[queue].append(delivery)
        self._filled.set()

    async def get(self) -> Delivery:
        """Wait for a delivery; a cancelled call has taken none."""
        while True:
            for _ in range(len(self._turn)):
                name = self._turn[0]
                self._turn.rotate(-1)
                if self._waiting[name]:
                    return self._waiting[name].popleft()
            self._filled.clear()
            await self._filled.wait()

    def drain(self) -> list[Delivery]:
        """Take everything, each queue in its order."""
        taken = [delivery for waiting in self._waiting.values() for delivery in waiting]
        for waiting in self._waiting.values():
            waiting.clear()
        return taken
