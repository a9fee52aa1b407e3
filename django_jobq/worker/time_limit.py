"""Interrupting Python code in another thread: the time limit of sync jobs.

CPython can raise an exception in a thread from outside, between two bytecodes. That cannot end a
blocking C call; the worker finds a thread that does not return by itself. The exception is possible
only inside `call()`:

1. the thread notes its id; from here the timer may fire;
2. the function runs;
3. the thread clears its id under the lock; from here the timer does nothing;
4. an exception that was sent and has not arrived yet is taken back.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Callable
from typing import TypeVar

from django_jobq.control import JobTimeout

R = TypeVar("R")


class TimeLimit:
    """Bound one call in one thread; ``start_timer`` arranges that `expire()` is called in time."""

    def __init__(self, start_timer: Callable[[Callable[[], None]], None]) -> None:
        self._start_timer = start_timer
        self._lock = threading.Lock()
        self._thread: int | None = None

    def call(self, func: Callable[[], R]) -> R:
        """Return what ``func`` returns, or raise JobTimeout if it was interrupted."""
        me = threading.get_ident()
        try:
            self._thread = me
            self._start_timer(self.expire)
            return func()
        finally:
            # The exception arrives once at most, so the second call is not interrupted again.
            with contextlib.suppress(JobTimeout):
                self._disarm()
            self._disarm()
            _raise_in(me, None)

    def expire(self) -> None:
        """Interrupt the call, if it still runs; called from another thread."""
        with self._lock:
            if self._thread is not None:
                _raise_in(self._thread, JobTimeout)
                self._thread = None

    def _disarm(self) -> None:
        with self._lock:
            self._thread = None


def _raise_in(thread: int, error: type[BaseException] | None) -> None:
    """Set the pending exception of a thread; None takes back one that has not arrived."""
    target = None if error is None else ctypes.py_object(error)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), target)
