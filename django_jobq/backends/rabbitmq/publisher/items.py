"""What callers hand to the publisher's thread: a message, or operations that want answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

from django_jobq.backends.rabbitmq.codec import Message
from django_jobq.backends.rabbitmq.operations import Operation
from django_jobq.backends.rabbitmq.publisher.errors import copy_of
from django_jobq.backends.rabbitmq.url import BrokerAddress
from django_jobq.exceptions import BackendError, BackendUnavailable, PublishFailed

Recover = Callable[["Publish", PublishFailed], None]


class Publish:
    """Hold one message until its confirm.

    ``recover`` is called once instead of failing a message that found no place; it hands the
    message in again or fails it.
    """

    def __init__(
        self,
        exchange: str,
        key: str,
        message: Message,
        deadline: float,
        recover: Recover | None = None,
    ) -> None:
        self.exchange, self.key, self.message, self.deadline = exchange, key, message, deadline
        self.recover = recover
        self.future: Future[None] = Future()
        self.is_sent = False
        self.returned: str | None = None

    def succeed(self) -> None:
        """Tell the caller that the broker has the message."""
        if not self.future.done():
            self.future.set_result(None)

    def fail(self, error: BackendError) -> None:
        """Tell the caller what became of the message, if it cannot be mended."""
        if self.future.done():
            return
        recover, self.recover = self.recover, None
        if recover is not None and isinstance(error, PublishFailed):
            self.is_sent, self.returned = False, None
            recover(self, error)
        else:
            self.future.set_exception(copy_of(error))

    def late(self, address: BrokerAddress, limit: float) -> BackendUnavailable:
        """Return the error of a message that was not confirmed in time."""
        if not self.is_sent:
            return _no_connection(address, limit)
        return BackendUnavailable(
            f"{address} did not confirm a publish within {limit:g} s; whether it has the job is not"
            " known"
        )


class Call:
    """Hold declarations or questions for a channel of their own.

    Once they are sent, the broker has ``patience`` seconds, if that is later than the deadline.
    """

    def __init__(
        self, operations: Sequence[Operation], deadline: float, patience: float = 0.0
    ) -> None:
        self.operations, self.deadline = operations, deadline
        self.patience = patience
        self.future: Future[list[Any]] = Future()
        self.is_sent = False

    def succeed(self, answers: list[Any]) -> None:
        """Give the caller the answers."""
        if not self.future.done():
            self.future.set_result(answers)

    def fail(self, error: BackendError) -> None:
        """Tell the caller why there is no answer."""
        if not self.future.done():
            self.future.set_exception(copy_of(error))

    def late(self, address: BrokerAddress, limit: float) -> BackendUnavailable:
        """Return the error of operations that were not answered in time."""
        if not self.is_sent:
            return _no_connection(address, limit)
        return BackendUnavailable(f"{address} did not answer within {limit:g} s")


Item = Publish | Call


def _no_connection(address: BrokerAddress, limit: float) -> BackendUnavailable:
    return BackendUnavailable(f"no connection to {address} within {limit:g} s")
