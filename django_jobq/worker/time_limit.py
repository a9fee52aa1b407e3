"""Interrupting Python code in another thread: the time limit of sync jobs.

CPython can raise an exception in a thread from outside, between two bytecodes. That cannot end a
blocking C call; the worker finds a thread that does not return by itself. The exception is possible
only inside `call()`:

1. the thread notes its id; from here the timer may fire;
2. the function runs;
3. the thread clears its id under the lock; from here the timer does nothing;
4. an exception that was sent and has not arrived yet arrives, still inside `call()`.

Taking an exception back (sending NULL) is no way out: it leaves CPython's flag for pending work set
for good, which slows every thread down and never ends a traced one.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable
from typing import TypeVar

from django_jobq.control import JobTimeout

R = TypeVar("R")

# What was sent arrives when a loop goes back; once is enough.
_STEPS = 3


class TimeLimit:
    """Bound one call in one thread; ``start_timer`` arranges that `expire()` is called in time."""

    def __init__(self, start_timer: Callable[[Callable[[], None]], None]) -> None:
        self._start_timer = start_timer
        self._lock = threading.Lock()
        self._thread: int | None = None

    def call(self, func: Callable[[], R]) -> R:
        """Return what ``func`` returns, or raise JobTimeout if it was interrupted."""
        try:
            self._thread = threading.get_ident()
            self._start_timer(self.expire)
            return func()
        finally:
            # The exception arrives once at most, so the second call is not interrupted again.
            with contextlib.suppress(JobTimeout):
                self._disarm()
            self._disarm()
            for _ in range(_STEPS):
                pass

    def expire(self) -> None:
        """Interrupt the call, if it still runs; called from another thread."""
        with self._lock:
            if self._thread is not None:
                _raise_in(self._thread, JobTimeout)
                self._thread = None

    def _disarm(self) -> None:
        with self._lock:
            self._thread = None


def _raise_in(thread: int, error: type[BaseException]) -> None:
    """Set the exception that a thread raises at its next step of Python code."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(error))
