"""The contract between the library and a transport.

A backend has two halves. The publishing half is synchronous and thread-safe, for web processes and
workers alike; the consuming half lives on the worker's event loop. The invariants:

1. A future that `publish()` or `defer()` returned resolves when the job is durably accepted.
2. A delivery is settled once. Its successor is durable *before* the original is removed; if the
   successor cannot be stored, the call raises and the original stays with the backend.
3. What is delivered and never settled is delivered again.
4. A delay never fires early; what was deferred comes back at the queue's top level.
5. Constructors never connect, and nothing connects before the first call that must.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from django_jobq import conf, durations
from django_jobq.conf import AliasSettings
from django_jobq.envelope import Envelope, log_fields
from django_jobq.exceptions import AlreadySettled, EnvelopeError, UnknownQueue
from django_jobq.queues import QueueConfig
from django_jobq.registry import registry

if TYPE_CHECKING:
    from django_jobq.store.filing import NewLetter

Cause = Literal[
    "no_handler",
    "decode",
    "fatal",
    "exhausted",
    "delivery_limit",
    "expired",
    "rejected",
    "no_queue",
]

MAX_REASON = 4_000
_DEATHS_AFTER_A_RUN = ("exhausted", "fatal")


def clip(text: str, limit: int = MAX_REASON) -> str:
    """Return text of at most ``limit`` characters, marked where it was cut."""
    if len(text) <= limit:
        return text
    mark = f" … [{len(text):,} characters]"
    return text[: limit - len(mark)] + mark


def attempts_made(envelope: Envelope | None, cause: Cause) -> int:
    """Return how many attempts a dead letter had; some causes strike before the last one runs."""
    if envelope is None:
        return 0
    return envelope.attempt if cause in _DEATHS_AFTER_A_RUN else envelope.attempt - 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Count the jobs of a queue and who consumes it; None where the transport cannot tell."""

    ready: int | None = None
    held: int | None = None
    reserved: int | None = None
    dead: int | None = None
    consumers: int | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BackendOptions:
    """Hold the OPTIONS that every backend has; sizes are bytes and durations seconds."""

    max_payload: int = conf.option(128 * 1024, conf.read_positive_int)
    publish_timeout: float = conf.option(5.0, durations.parse_positive)
    unknown_job_grace: float = conf.option(300.0, durations.parse_setting)


class DeliveryLimitReached(Exception):
    """Report a job that was started ``starts`` times and came to nothing."""

    def __init__(self, starts: int) -> None:
        self.starts = starts
        super().__init__(f"started {starts} times without any outcome; it may kill its worker")


class Delivery(abc.ABC):
    """Hold one received body until it is settled, once.

    ``deliveries`` counts how often the body was handed out, this time included; ``is_counted`` is
    set if the database counts its start. Subclasses implement the underscored halves.
    """

    def __init__(self, queue: str, body: bytes, deliveries: int) -> None:
        self.queue, self.body, self.deliveries = queue, body, deliveries
        self.settled = self.is_counted = False
        self._envelope: Envelope | None = None

    @property
    def envelope(self) -> Envelope:
        """Return the decoded body, or raise EnvelopeError."""
        if self._envelope is None:
            self._envelope = Envelope.decode(self.body)
        return self._envelope

    @property
    def known_envelope(self) -> Envelope | None:
        """Return the decoded body, or None if it is no envelope."""
        try:
            return self.envelope
        except EnvelopeError:
            return None

    @property
    def log_fields(self) -> dict[str, Any]:
        """Return the ``extra`` of every log record about this delivery."""
        return log_fields(self.known_envelope, self.queue)

    @property
    def is_lost(self) -> bool:
        """Return whether the backend has taken the delivery back: it can no longer be settled."""
        return False

    @property
    def starts(self) -> int:
        """Return how often the job was started without any outcome, where a message tells that."""
        return 0

    async def begin(self, start: int | None = None) -> bool:
        """Note that the job is about to start; return False if it must not start from here.

        That is so when it is no longer this consumer's, or was put back to be counted. ``start`` is
        which start of a redelivered job it is, if that has been counted already. Raise
        DeliveryLimitReached for a job that was started too often.
        """
        return True

    async def ack(self) -> None:
        """Remove the job: it is done."""
        with self._settling():
            await self._ack()

    async def retry(self, successor: Envelope, delay: float) -> None:
        """Store ``successor`` for ``delay`` seconds at its own priority, then remove this one."""
        with self._settling():
            await self._replace(self.at_home(successor), delay, front=False)

    async def defer(self, successor: Envelope, delay: float) -> None:
        """Store ``successor`` for ``delay`` seconds at the top level, then remove this one."""
        with self._settling():
            await self._replace(self.at_home(successor), delay, front=True)

    async def dead_letter(self, cause: Cause, reason: str, final: Envelope | None = None) -> None:
        """File the job as a dead letter, then remove it; ``final`` carries its last errors."""
        with self._settling():
            await self._dead_letter(cause, clip(reason), final)

    async def release(self) -> None:
        """Hand the job back, uncounted and at its old place."""
        with self._settling():
            await self._release()

    def at_home(self, successor: Envelope) -> Envelope:
        """Return a successor for the queue it came from, whatever a foreign body says of it."""
        if successor.queue == self.queue:
            return successor
        return dataclasses.replace(successor, queue=self.queue)

    def _settling(self) -> _Settling:
        return _Settling(self)

    @abc.abstractmethod
    async def _ack(self) -> None: ...

    @abc.abstractmethod
    async def _replace(self, successor: Envelope, delay: float, *, front: bool) -> None: ...

    @abc.abstractmethod
    async def _dead_letter(self, cause: Cause, reason: str, final: Envelope | None) -> None: ...

    @abc.abstractmethod
    async def _release(self) -> None: ...


class _Settling:
    """Mark a delivery as settled for the length of the call, and for good if it succeeds."""

    def __init__(self, delivery: Delivery) -> None:
        self._delivery = delivery

    def __enter__(self) -> None:
        if self._delivery.settled:
            raise AlreadySettled(f"a delivery of queue {self._delivery.queue!r} is settled twice")
        self._delivery.settled = True

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._delivery.settled = kind is None


class Consumer(abc.ABC):
    """Stream the deliveries of one queue: ``async for delivery in consumer``.

    It reconnects inside; it ends when it is stopped, when the backend is closed, or when it gives
    up, which raises.
    """

    def __aiter__(self) -> Self:
        return self

    @abc.abstractmethod
    async def __anext__(self) -> Delivery:
        """Wait for the next delivery, or raise StopAsyncIteration at the end."""

    @abc.abstractmethod
    async def stop(self) -> None:
        """End the stream; deliveries already handed out may still be settled."""

    @abc.abstractmethod
    async def aclose(self) -> None:
        """End the stream and give back every delivery that is not settled."""


class DeadLetterSource(abc.ABC):
    """Give the dead letters that a transport keeps until they are filed in the database."""

    @abc.abstractmethod
    async def letters(self) -> Sequence[NewLetter]:
        """Return letters that wait, perhaps none; the same again as long as they are not removed.

        Raise BackendUnavailable if the transport cannot be read just now.
        """

    @abc.abstractmethod
    async def remove(self) -> None:
        """Remove the letters that were returned last: they are filed."""

    @abc.abstractmethod
    async def aclose(self) -> None:
        """Give back what is not removed."""


class Backend(abc.ABC):
    """Connect one alias of JOBQ to a transport."""

    driver: ClassVar[str]
    options_class: ClassVar[type[BackendOptions]] = BackendOptions
    settle_patience: ClassVar[float] = 0.0
    """How long a worker repeats a settle that fails before it hands the job back; seconds."""
    shared: ClassVar[bool] = True
    """Whether other processes see the jobs that this one publishes."""
    leaves_storing: ClassVar[bool] = False
    """Whether the outbox and the holds of the database serve this transport; see OUTBOX, HOLDS."""

    def __init__(self, settings: AliasSettings) -> None:
        self.alias = settings.alias
        self.settings = settings
        self.options = conf.build_options(self.options_class, settings)

    @property
    def uses_outbox(self) -> bool:
        """Return whether the database remembers a job until the transport has confirmed it."""
        return self.leaves_storing and self.settings.outbox == "always"

    @property
    def uses_holds(self) -> bool:
        """Return whether jobs that are not due yet wait in the database."""
        return self.leaves_storing and self.settings.holds == "database"

    @property
    def stores_jobs(self) -> bool:
        """Return whether the database remembers jobs of this alias at all."""
        return self.uses_outbox or self.uses_holds

    @property
    def databases(self) -> list[str]:
        """Return the aliases of the databases that may store jobs, the one of holds first."""
        return list(dict.fromkeys([self.settings.database, *self.settings.outbox_databases]))

    @property
    def queues(self) -> Mapping[str, QueueConfig]:
        """Return the queues of this alias by name: the configured ones, or those that jobs name."""
        if self.settings.queues is not None:
            return self.settings.queues
        return {name: QueueConfig(name=name) for name in sorted(registry.queue_names(self.alias))}

    def queue(self, name: str) -> QueueConfig:
        """Return one queue of this alias, or raise UnknownQueue."""
        configured = self.settings.queues
        if configured is not None and name in configured:
            return configured[name]
        if configured is None and name in registry.queue_names(self.alias):
            return QueueConfig(name=name)
        raise UnknownQueue(name, self.alias, self.queues, configured=configured is not None)

    def check_queue(self, config: QueueConfig) -> str | None:
        """Return what the transport cannot do for a queue of this name, or None; do not connect."""
        return None

    @abc.abstractmethod
    def declare(self, queues: Iterable[QueueConfig]) -> None:
        """Make sure that the queues and their dead-letter store exist; harmless when repeated."""

    def publish(self, envelope: Envelope, delay: float = 0.0) -> Future[None]:
        """Store a job at its own priority, to be delivered once ``delay`` seconds have passed.

        Raise UnknownQueue and ShutDown at once; what the transport says is in the future.
        """
        return self._submit(envelope, delay, front=False)

    def defer(self, envelope: Envelope, delay: float = 0.0) -> Future[None]:
        """Store a job at the queue's top level. See publish()."""
        return self._submit(envelope, delay, front=True)

    @abc.abstractmethod
    def _submit(self, envelope: Envelope, delay: float, *, front: bool) -> Future[None]: ...

    @abc.abstractmethod
    def consume(self, queue: str, prefetch: int) -> Consumer:
        """Return a consumer with at most ``prefetch`` unsettled deliveries; 0 means no limit.

        On a closed backend the consumer has ended already.
        """

    def dead_letters_to_file(self) -> DeadLetterSource | None:
        """Return where dead letters wait to be filed, or None if they stay with the transport.

        Call it on the loop that will read it.
        """
        return None

    @abc.abstractmethod
    def counts(self, queue: str) -> Counts:
        """Count the jobs of a queue."""

    def unfiled(self) -> int | None:
        """Count the dead letters beside all queues, which wait to be filed; None without such."""
        return None

    @abc.abstractmethod
    def clear(self, queue: str) -> int:
        """Remove the ready jobs of a queue and return how many; what is held stays."""

    @abc.abstractmethod
    def close(self) -> None:
        """End consumers and refuse what comes after; harmless when repeated."""
