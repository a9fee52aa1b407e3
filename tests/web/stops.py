"""Points at which a web process kills itself, as the kernel does when memory is short."""

import functools
import os
import signal
from collections.abc import Callable
from typing import Any, NoReturn

import pika.adapters.utils.io_services_utils as transport
from django.db.backends.base.base import BaseDatabaseWrapper

from django_jobq import deposits
from django_jobq.publication import Batch
from django_jobq.store import outbox

# The jobs of the test say this in their arguments, and nothing else that is written does.
MARK = b"order-"


def die(*_: Any) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("killed processes do not go on")


def after(owner: Any, name: str, when: Callable[..., bool] = lambda *_: True) -> None:
    """Let the process die once a function has returned."""
    original = getattr(owner, name)

    @functools.wraps(original)
    def stop(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        return die() if when(*args) else result

    setattr(owner, name, staticmethod(stop) if owner is transport._AsyncTransportBase else stop)


def _is_a_job(_socket: Any, data: bytes) -> bool:
    return MARK in bytes(data)


def _is_answered(batch: Batch) -> bool:
    return any(item.future is not None and item.future.done() for item in batch.items)


STOPS: dict[str, Callable[[], None]] = {
    "never": lambda: None,
    "insert": lambda: after(deposits, "store"),
    "commit": lambda: after(BaseDatabaseWrapper, "_commit"),
    "read": lambda: after(outbox, "present"),
    "write": lambda: after(transport._AsyncTransportBase, "_sigint_safe_send", _is_a_job),
    "confirm": lambda: after(Batch, "wait", _is_answered),
    "delete": lambda: after(outbox, "remove"),
}
