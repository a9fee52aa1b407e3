"""Exceptions as text: whatever a job raised, described without raising again.

Exception objects are never stored: their classes may be local, their state locks or sockets, and
their ``__str__`` may itself fail.
"""

from __future__ import annotations

import dataclasses
import sysconfig
import time
import traceback
from pathlib import PurePath
from types import FrameType, TracebackType
from typing import Any

from django_jobq.backends.base import clip

MAX_MESSAGE = 1_000
MAX_TRACEBACK = 8_000
MAX_CHAIN = 10
MAX_PLACE = 255
_STDLIB = sysconfig.get_path("stdlib")
_INSTALLED = {"site-packages", "dist-packages"}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Describe an exception; ``kind`` is the path of its class.

    ``place`` is the module and function of the innermost frame that belongs to the project.
    """

    kind: str
    message: str
    traceback: str
    place: str = ""

    @property
    def text(self) -> str:
        """Return the failure in one line."""
        kind = self.kind.removeprefix("builtins.").removeprefix("django_jobq.control.")
        return f"{kind}: {self.message}"

    def to_json(self, attempt: int, *, with_traceback: bool) -> dict[str, Any]:
        """Return the entry for an envelope's history; ``at`` is the epoch in milliseconds."""
        entry = {
            "attempt": attempt,
            "at": time.time_ns() // 1_000_000,
            "type": self.kind,
            "message": self.message,
            "place": self.place,
        }
        return {**entry, "traceback": self.traceback} if with_traceback else entry


def describe(error: BaseException) -> Failure:
    """Return the description of an exception."""
    kind = type(error)
    return Failure(
        kind=f"{kind.__module__}.{kind.__qualname__}",
        message=clip(_message(error), MAX_MESSAGE),
        traceback=_clip_middle(_traceback(error)),
        place=_place(error),
    )


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as second:  # noqa: BLE001 - the job's own __str__ may raise anything
        return f"<its message cannot be shown: {type(second).__qualname__}>"


def _traceback(error: BaseException) -> str:
    try:
        parts: list[str] = []
        link: BaseException | None = error
        while link is not None and len(parts) < MAX_CHAIN:
            own_frames_skipped = link.with_traceback(_skip_own_frames(link.__traceback__))
            parts.append(
                "".join(traceback.format_exception(own_frames_skipped, limit=-50, chain=False))
            )
            link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)
        if link is not None:
            parts.append("… [more causes]\n")
        return "\nwhich was caused by:\n\n".join(parts)
    except BaseException as second:  # noqa: BLE001 - as above, while formatting
        return f"<its traceback cannot be shown: {type(second).__qualname__}>"


def _place(error: BaseException) -> str:
    """Return where the project's own code failed, or else where anything did."""
    frames = [frame for frame, _ in traceback.walk_tb(_skip_own_frames(error.__traceback__))]
    if not frames:
        return ""
    own = [frame for frame in frames if _is_of_the_project(frame.f_code.co_filename)]
    return clip(_name_of((own or frames)[-1]), MAX_PLACE)


def _is_of_the_project(filename: str) -> bool:
    if filename.startswith((_STDLIB, "<frozen ")):
        return False
    return _INSTALLED.isdisjoint(PurePath(filename).parts)


def _name_of(frame: FrameType) -> str:
    return f"{frame.f_globals.get('__name__', '?')}:{frame.f_code.co_qualname}"


def _skip_own_frames(trace: TracebackType | None) -> TracebackType | None:
    while trace and trace.tb_frame.f_globals.get("__name__", "").startswith("django_jobq.worker"):
        trace = trace.tb_next
    return trace


def _clip_middle(text: str) -> str:
    """Keep both ends of a long traceback: where it was called and what was raised."""
    if len(text) <= MAX_TRACEBACK:
        return text
    half = MAX_TRACEBACK // 2
    return f"{text[:half]}\n… [{len(text):,} characters]\n{text[-half:]}"
