"""Names, arguments and routes on the broker: pure functions of the configuration.

Publishers know two entrances: the direct exchange, by the logical name of a queue, and the holds.
A hold is a fixed ladder of queues, shared by all work queues. A delay of d whole seconds is written
as five hexadecimal digits; each digit above zero is one queue whose TTL is what the digit is worth:

    hold.4 ─▶ hold.4.<digit> ─▶ hold.3 ─▶ hold.3.<digit> ─▶ … ─▶ hold.0.<digit> ─▶ return ─▶ queue

A zero digit goes straight on, exchange to exchange. The key ``d4.d3.d2.d1.d0.<queue>`` stays the
same all the way, so no number of delays makes another queue. What leaves the ladder and finds no
work queue takes the alternate exchange to ``lost``.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Literal

from django_jobq.queues import QueueConfig

QueueType = Literal["classic", "quorum"]
Arguments = Mapping[str, str | int]

LEVELS = 5
RADIX = 16
MAX_HOLD = RADIX**LEVELS - 1
MAX_NAME_BYTES = 255
# Revisions count up by one, and an older release is rarely further behind.
_OLDER_REVISIONS = 5
# Brokers before 4.0 drop at the first requeue with -1, so "no limit" is a large number.
_NO_DELIVERY_LIMIT = 1_000_000
# Brokers 4.0 to 4.2 know two classes on a quorum queue, 0 to 4 and from 5 upwards; a hold blocks
# what is in one behind what is in the other.
_LEAST_HIGH_PRIORITY = 5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Describe a durable exchange."""

    name: str
    kind: Literal["direct", "fanout", "topic"]
    arguments: Arguments = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """Describe a durable queue."""

    name: str
    arguments: Arguments


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Binding:
    """Describe a binding to a queue, or to another exchange."""

    source: str
    target: str
    key: str
    to_exchange: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Unbinding:
    """Name a binding to a queue that is to be gone, if either ever existed."""

    source: str
    target: str
    key: str


Declaration = Exchange | Queue | Binding | Unbinding


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Tell where to publish; ``held`` is the seconds after which the message returns."""

    exchange: str
    key: str
    held: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """Build everything from the prefix and the types of work queues and holds."""

    prefix: str = "jobq"
    queue_type: QueueType = "classic"
    hold_type: QueueType = "classic"

    @property
    def entrance(self) -> str:
        """Return the name of the exchange that takes jobs without a delay."""
        return self.prefix

    @property
    def dead(self) -> str:
        """Return the name of the queue in which dead letters wait to be filed."""
        return f"{self.prefix}.dead"

    @property
    def dead_exchange(self) -> str:
        """Return the name of the exchange in front of it."""
        return f"{self.prefix}.dlx"

    @property
    def lost(self) -> str:
        """Return the name of the queue for what returned from a hold and found no work queue."""
        return f"{self.prefix}.lost"

    def work_queue(self, config: QueueConfig) -> str:
        """Return the physical name of a work queue."""
        return f"{self.prefix}.q.{config.name}.{config.revision}"

    def logical_name(self, work_queue: str) -> str | None:
        """Return the name of a work queue in the settings, or None if it is none of ours."""
        start = f"{self.prefix}.q."
        name, _, revision = work_queue.removeprefix(start).rpartition(".")
        return name if work_queue.startswith(start) and name and revision.isdigit() else None

    def route(self, queue: str, delay: float = 0.0) -> Route:
        """Return the way of a message; a delay is rounded up, and cut at MAX_HOLD."""
        seconds = min(math.ceil(delay), MAX_HOLD)
        if seconds <= 0:
            return Route(exchange=self.entrance, key=queue)
        digits = f"{seconds:0{LEVELS}x}"
        level = LEVELS - 1 - next(i for i, digit in enumerate(digits) if digit != "0")
        key = ".".join([*digits, queue])
        return Route(exchange=self._hold(level), key=key, held=seconds)

    def priority(self, level: int, *, held: bool = False, top: bool = False) -> int:
        """Return the priority property of a message at a queue's level; ``top`` is its highest."""
        if (held and self.hold_type == "quorum") or (top and self.queue_type == "quorum"):
            return max(level, _LEAST_HIGH_PRIORITY)
        return level

    def shared(self) -> Iterator[Declaration]:
        """Yield what all work queues share, in the order of declaration."""
        yield Exchange(name=self.entrance, kind="direct")
        yield Exchange(name=self.dead_exchange, kind="fanout")
        yield Queue(name=self.dead, arguments=self._inbox())
        yield Binding(source=self.dead_exchange, target=self.dead, key="")
        lost_exchange = f"{self.prefix}.lost"
        yield Exchange(name=lost_exchange, kind="fanout")
        yield Queue(name=self.lost, arguments=self._inbox())
        yield Binding(source=lost_exchange, target=self.lost, key="")
        yield Exchange(
            name=self._return, kind="topic", arguments={"alternate-exchange": lost_exchange}
        )
        for level in range(LEVELS):
            yield from self._rung(level)

    def work(self, config: QueueConfig) -> Iterator[Declaration]:
        """Yield one work queue, its two bindings, and the end of those of its older revisions."""
        name = self.work_queue(config)
        yield Queue(name=name, arguments=self._work_arguments(config))
        # One star a digit: '#' would also match a queue whose dotted name ends like this one.
        ways = ((self.entrance, config.name), (self._return, "*." * LEVELS + config.name))
        for source, key in ways:
            yield Binding(source=source, target=name, key=key)
        # Or every job would be in both queues. Bound first, for the other order leaves a moment in
        # which a process of the older release finds no queue, and declares its own again.
        for older in self.older(config):
            for source, key in ways:
                yield Unbinding(source=source, target=older, key=key)

    def older(self, config: QueueConfig) -> list[str]:
        """Return the physical names of the last few revisions before this one."""
        first = max(1, config.revision - _OLDER_REVISIONS)
        return [
            self.work_queue(dataclasses.replace(config, revision=revision))
            for revision in range(first, config.revision)
        ]

    def check_name(self, config: QueueConfig) -> str | None:
        """Return what is wrong with a queue's name on this broker, or None."""
        longest = max(
            len(self.work_queue(config).encode()), len(("f." * LEVELS + config.name).encode())
        )
        if longest <= MAX_NAME_BYTES:
            return None
        return (
            f"queue {config.name!r} makes a name of {longest} bytes on the broker, which allows"
            f" {MAX_NAME_BYTES}"
        )

    @property
    def _return(self) -> str:
        return f"{self.prefix}.return"

    def _hold(self, level: int) -> str:
        return f"{self.prefix}.hold.{level}"

    def _rung(self, level: int) -> Iterator[Declaration]:
        """Yield one exchange of the ladder and the fifteen queues of its digit."""
        source = self._hold(level)
        below = self._hold(level - 1) if level else self._return
        stars = "*." * (LEVELS - 1 - level)
        yield Exchange(name=source, kind="topic")
        yield Binding(source=source, target=below, key=f"{stars}0.#", to_exchange=True)
        for digit in range(1, RADIX):
            name = f"{source}.{digit:x}"
            ttl = digit * RADIX**level * 1000
            yield Queue(name=name, arguments=self._hold_arguments(ttl, below))
            yield Binding(source=source, target=name, key=f"{stars}{digit:x}.#")

    def _hold_arguments(self, ttl: int, target: str) -> Arguments:
        arguments: dict[str, str | int] = {
            "x-queue-type": self.hold_type,
            "x-message-ttl": ttl,
            "x-dead-letter-exchange": target,
        }
        return arguments | (_LOSSLESS if self.hold_type == "quorum" else {})

    def _work_arguments(self, config: QueueConfig) -> Arguments:
        arguments: dict[str, str | int] = {
            "x-queue-type": self.queue_type,
            "x-dead-letter-exchange": self.dead_exchange,
            "x-dead-letter-routing-key": config.name,
        }
        if config.message_ttl is not None:
            arguments["x-message-ttl"] = math.ceil(config.message_ttl * 1000)
        if self.queue_type == "quorum":
            return arguments | _LOSSLESS
        if config.max_priority:
            arguments["x-max-priority"] = config.max_priority
        return arguments

    def _inbox(self) -> Arguments:
        arguments: dict[str, str | int] = {"x-queue-type": self.queue_type}
        if self.queue_type == "quorum":
            arguments["x-delivery-limit"] = _NO_DELIVERY_LIMIT
        return arguments


# Without reject-publish the broker silently falls back to dead-lettering at most once.
_LOSSLESS: dict[str, str | int] = {
    "x-delivery-limit": _NO_DELIVERY_LIMIT,
    "x-dead-letter-strategy": "at-least-once",
    "x-overflow": "reject-publish",
}
