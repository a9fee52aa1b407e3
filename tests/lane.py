"""Which RabbitMQ the tests run on and what it can do: asked here and nowhere else.

`make test-rabbitmq` sets two variables. JOBQ_TEST_RABBITMQ is a version that `scripts/rabbitmq4`
installs, whose nodes run all tests; without it they take the broker there is. JOBQ_TEST_QUEUE_TYPE
is the type of the queues, classic by default.
"""

import dataclasses
import functools
import os
from collections.abc import Callable, Iterable
from typing import Literal, TypeVar, cast

import pika
import pytest

T = TypeVar("T")
QueueType = Literal["classic", "quorum"]


def wanted_version() -> str:
    """Return the version whose nodes run the tests, or nothing for the broker there is."""
    return os.environ.get("JOBQ_TEST_RABBITMQ", "")


def enter() -> list[str]:
    """Return the words before a command of the wanted version; none for what is installed here."""
    version = wanted_version()
    return ["scripts/rabbitmq4", "run", version] if version else []


def queue_type() -> QueueType:
    """Return the type of the queues under test."""
    wanted = os.environ.get("JOBQ_TEST_QUEUE_TYPE") or "classic"
    if wanted not in ("classic", "quorum"):
        pytest.exit(f"JOBQ_TEST_QUEUE_TYPE is {wanted!r}, and neither classic nor quorum.", 1)
    return cast(QueueType, wanted)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lane:
    """Tell what a broker can do with queues of the type under test."""

    version: tuple[int, int]
    queue_type: QueueType

    @property
    def priorities(self) -> Literal["strict", "two classes", "none"]:
        """Return how priorities order the jobs of a queue."""
        if self.queue_type == "classic" or self.version >= (4, 3):
            return "strict"
        return "two classes" if self.version >= (4, 0) else "none"

    @property
    def held_level(self) -> int:
        """Return the level that what comes back from a delay or a retry has at least."""
        return 5 if self.queue_type == "quorum" else 0

    @property
    def times_out_jobs(self) -> bool:
        """Return whether the broker takes a message back that is not settled for too long."""
        return self.queue_type == "quorum" or self.version < (4, 3)

    def in_order(
        self, published: Iterable[T], level: Callable[[T], int], *, since_low: int = 0
    ) -> list[T]:
        """Return what was published in the order in which it is delivered.

        ``since_low`` of the high class have gone since the last of the low one, if there are two.
        """
        items = list(published)
        match self.priorities:
            case "strict":
                return sorted(items, key=lambda item: -level(item))
            case "none":
                return items
        low = [item for item in items if level(item) < 5]
        high = [item for item in items if level(item) >= 5]
        mixed = []
        while low and high:  # two of the high class, one of the low
            number, since_low = 2 - since_low, 0
            mixed += [*high[:number], low.pop(0)]
            del high[:number]
        return [*mixed, *high, *low]


@functools.cache
def lane(url: str) -> Lane:
    """Return what the broker can do; it tells its version when a client connects."""
    connection = pika.BlockingConnection(pika.URLParameters(url))
    version = connection._impl.server_properties["version"].split(".")
    connection.close()
    return Lane(version=(int(version[0]), int(version[1])), queue_type=queue_type())
