"""A clock that moves when told to, for delays without waiting."""

from __future__ import annotations

from collections.abc import Callable


class ManualClock:
    """Tell a time that only `advance()` changes; seconds."""

    def __init__(self, start: float = 0.0) -> None:
        self._now = start
        self._listeners: list[Callable[[], None]] = []

    def __call__(self) -> float:
        """Return the time."""
        return self._now

    def advance(self, seconds: float) -> None:
        """Move on, and wake what waits for a time."""
        self._now += seconds
        for listener in self._listeners:
            listener()

    def subscribe(self, listener: Callable[[], None]) -> None:
        """Call ``listener`` at every advance."""
        self._listeners.append(listener)
