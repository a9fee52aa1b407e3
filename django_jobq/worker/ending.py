"""The end of a worker: whether it was asked for, until when, and what wakes those who wait."""

from __future__ import annotations

import asyncio
from functools import partial


class Ending:
    """Know whether a worker is to end; what is not done ``patience`` seconds later is late."""

    def __init__(self, patience: float) -> None:
        self.requested = False
        self._patience = patience
        self._deadline: float | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._news = asyncio.Event()

    def attach(self) -> None:
        """Take the running loop as the one that the worker lives on."""
        self._loop = asyncio.get_running_loop()

    def ask(self) -> None:
        """Ask for the end, from any thread and before there is a loop."""
        self.requested = True
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(partial(self.begin, with_deadline=True))

    def begin(self, *, with_deadline: bool) -> None:
        """Begin to end; the first deadline counts."""
        assert self._loop is not None
        self.requested = True
        if with_deadline and self._deadline is None:
            self._deadline = self._loop.time() + self._patience
        self.notice()

    def notice(self) -> None:
        """Wake who waits, to look at what has changed."""
        self._news.set()

    async def wait(self, longest: float | None = None) -> None:
        """Return when something has changed, or at the deadline or after ``longest`` seconds."""
        left = longest if self._deadline is None else max(0.0, self.time_left)
        try:
            await asyncio.wait_for(self._news.wait(), left)
        except TimeoutError:
            return
        self._news.clear()

    @property
    def time_left(self) -> float:
        """Return the seconds until the deadline, or all of the patience if there is none."""
        assert self._loop is not None
        return self._patience if self._deadline is None else self._deadline - self._loop.time()

    @property
    def is_late(self) -> bool:
        """Return whether the deadline has passed."""
        return self._deadline is not None and self.time_left <= 0
