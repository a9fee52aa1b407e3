"""The RabbitMQ backend: what joins topology, publisher and consumer."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from django_jobq.backends.base import Backend, Cause, Counts
from django_jobq.backends.rabbitmq import codec, operations
from django_jobq.backends.rabbitmq.consumer import (
    Inbox,
    Link,
    RabbitMQConsumer,
    RabbitMQDelivery,
)
from django_jobq.backends.rabbitmq.letters import RabbitMQLetters
from django_jobq.backends.rabbitmq.operations import Operation
from django_jobq.backends.rabbitmq.options import RabbitMQOptions
from django_jobq.backends.rabbitmq.publisher import Publish, Publisher
from django_jobq.backends.rabbitmq.topology import MAX_HOLD, Declaration, Route, Topology
from django_jobq.backends.rabbitmq.url import parse_url
from django_jobq.conf import AliasSettings
from django_jobq.envelope import Envelope
from django_jobq.exceptions import (
    BackendError,
    BackendUnavailable,
    InvalidJob,
    PublishFailed,
    ShutDown,
)
from django_jobq.queues import QueueConfig

logger = logging.getLogger("django_jobq.rabbitmq")


class RabbitMQBackend(Backend):
    """Keep jobs on a RabbitMQ broker."""

    driver = "rabbitmq"
    settle_patience = 60.0
    leaves_storing = True
    options_class = RabbitMQOptions
    options: RabbitMQOptions

    def __init__(self, settings: AliasSettings) -> None:
        super().__init__(settings)
        self.address = parse_url(settings.url, f"{settings.path}['URL']")
        options = self.options
        self.topology = Topology(
            prefix=options.prefix,
            queue_type=options.queue_type,
            hold_type=options.hold_type or options.queue_type,
        )
        self.is_closed = False
        self._publisher = Publisher(self.address, options)
        self._declared: set[str] = set()
        self._declaring = threading.Lock()
        self._links: dict[asyncio.AbstractEventLoop, Link] = {}
        self._consumers: set[RabbitMQConsumer] = set()
        self._inboxes: set[Inbox] = set()
        self._told_early = False

    # Publishing half

    def check_queue(self, config: QueueConfig) -> str | None:
        """Return what is wrong with a queue's name on the broker, or None."""
        return self.topology.check_name(config)

    def declare(self, queues: Iterable[QueueConfig]) -> None:
        """Make sure of the shared objects and these queues, as DECLARE says."""
        for config in queues:
            self.ensure(config, again=True)

    def ensure(self, config: QueueConfig, *, again: bool = False) -> None:
        """Make sure of a queue and of what all queues share, once a process or ``again``.

        Who asks again is a worker, which waits longer for a busy broker than an enqueue may.
        """
        self._check_open()
        if config.name in self._declared and not again:
            return
        with self._declaring:
            if config.name in self._declared and not again:
                return
            wanted = self._preparation(config)
            if wanted:
                self._ask(wanted, _PATIENCE if again else 0.0)
            self._declared.update((config.name, _SHARED))

    def older(self, config: QueueConfig) -> list[str]:
        """Return the physical queues of older revisions that still exist."""
        return [name for name in self.topology.older(config) if self._exists(name)]

    def _exists(self, queue: str) -> bool:
        try:
            self._ask([operations.count(queue)])
        except PublishFailed:
            return False
        return True

    def _preparation(self, config: QueueConfig) -> list[Operation]:
        problem = self.check_queue(config)
        if problem is not None:
            raise InvalidJob(problem)
        prepare = _PREPARE[self.settings.declare]
        shared = [] if _SHARED in self._declared else list(self.topology.shared())
        return prepare([*shared, *self.topology.work(config)])

    def _submit(self, envelope: Envelope, delay: float, *, front: bool) -> Future[None]:
        self._check_open()
        config = self.queue(envelope.queue)
        self.ensure(config)
        route = self.topology.route(config.name, delay)
        priority = self.topology.priority(
            config.level(envelope.priority, front=front),
            held=route.held > 0,
            top=front or not config.max_priority,
        )
        return self._publish(config, route, codec.encode(envelope, priority, held=delay))

    def counts(self, queue: str) -> Counts:
        """Count ready jobs and consumers; the broker tells no more without its management."""
        self._check_open()
        work = self.topology.work_queue(self.queue(queue))
        [(ready, consumers)] = self._ask([operations.count(work)])
        return Counts(ready=ready, consumers=consumers)

    def unfiled(self) -> int:
        """Count the dead letters, and what came out of a hold and found no queue."""
        self._check_open()
        queues = (self.topology.dead, self.topology.lost)
        answers = self._ask([operations.count(queue) for queue in queues])
        return sum(messages for messages, _ in answers)

    def clear(self, queue: str) -> int:
        """Remove the ready jobs of a queue and return how many; what is held stays."""
        self._check_open()
        (removed,) = self._ask([operations.purge(self.topology.work_queue(self.queue(queue)))])
        return int(removed)

    def close(self) -> None:
        """Flush publishes for a moment, end consumers and connections, and refuse what comes."""
        if self.is_closed:
            return
        self.is_closed = True
        for loop, link in list(self._links.items()):
            with contextlib.suppress(RuntimeError):  # the loop is closed, and its sockets with it
                loop.call_soon_threadsafe(self._end_consumers, link)
        self._publisher.close()

    # Consuming half

    def consume(self, queue: str, prefetch: int) -> RabbitMQConsumer:
        """Return a consumer of one queue; call it on the loop that will iterate it."""
        consumer = RabbitMQConsumer(self, self.queue(queue), max(0, prefetch))
        self._consumers.add(consumer)
        return consumer

    def link(self) -> Link:
        """Return the consuming connection of the running loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._links:
            self._links[loop] = Link(self.address, self.options)
        return self._links[loop]

    def dead_letters_to_file(self) -> RabbitMQLetters | None:
        """Return the letters in the inbox and what has lost its queue, if there is a database."""
        return RabbitMQLetters(self) if self.stores_jobs else None

    def inbox(self, queue: str) -> Inbox:
        """Return what is in one queue of the broker, by its physical name."""
        inbox = Inbox(self, queue)
        self._inboxes.add(inbox)
        return inbox

    def declare_shared(self) -> None:
        """Make sure of what all queues share, as DECLARE says."""
        self._ask(_PREPARE[self.settings.declare](self.topology.shared()), _PATIENCE)

    async def publish_again(self, queue: str, message: codec.Message) -> str | None:
        """Publish a message to a queue that it did not find; return why it still cannot be found.

        A queue that the settings name is declared, if DECLARE says so.
        """
        route, config = self.topology.route(queue), self.queues.get(queue)
        try:
            await asyncio.wrap_future(self._publish(config, route, message))
        except BackendUnavailable:
            raise
        except BackendError as error:
            name = self.topology.work_queue(config) if config else None
            exists = await asyncio.to_thread(self._exists, name) if name else False
            if exists:
                raise BackendUnavailable(f"queue {queue!r} takes no jobs: {error}") from error
            return str(error)
        return None

    async def forget(self, consumer: RabbitMQConsumer | Inbox) -> None:
        """Drop a consumer that has ended, and the connection with the last of a loop."""
        self._consumers.difference_update([consumer])
        self._inboxes.difference_update([consumer])
        left: list[RabbitMQConsumer | Inbox] = [*self._consumers, *self._inboxes]
        if not any(other.loop is consumer.loop for other in left):
            link = self._links.pop(asyncio.get_running_loop(), None)
            if link is not None:
                await link.close()

    async def flush_acks(self) -> None:
        """Make sure that the broker knows of every job that this loop's consumers settled."""
        here = asyncio.get_running_loop()
        for consumer in [item for item in self._consumers if item.loop is here]:
            await consumer.flush_to_the_broker()

    async def store(self, successor: Envelope, delay: float, *, front: bool) -> None:
        """Publish the successor of a delivery and wait for its confirm."""
        await asyncio.wrap_future(self._submit(successor, delay, front=front))

    async def file(
        self, delivery: RabbitMQDelivery, cause: Cause, reason: str, final: Envelope | None
    ) -> None:
        """Publish a dead letter to the inbox and wait for its confirm."""
        self._check_open()
        original = delivery.known_envelope
        # A body that is filed as it came keeps its bytes, with all that this version cannot read.
        body = delivery.body if final is None or final == original else final.encode()
        message = codec.dead_letter(
            body, final or original, delivery.queue, cause, reason, delivery.filing_key
        )
        route = Route(exchange=self.topology.dead_exchange, key=delivery.queue)
        await asyncio.wrap_future(self._publish(self.queue(delivery.queue), route, message))

    async def republish(self, delivery: RabbitMQDelivery, headers: dict[str, Any]) -> None:
        """Publish a delivery's body again, at its priority, to where it came from."""
        await self.send(delivery, _copy_of(delivery, delivery.priority, headers))

    def counted_copy(self, delivery: RabbitMQDelivery) -> codec.Message:
        """Return a redelivered message with its start counted, at the top of its queue."""
        headers = {**delivery.headers_of_copies, codec.STARTS: delivery.starts}
        level = self.queue(delivery.queue).level(0, front=True)
        return _copy_of(delivery, self.topology.priority(level, top=True), headers)

    async def send(
        self, delivery: RabbitMQDelivery, message: codec.Message, delay: float = 0.0
    ) -> None:
        """Publish a message to the queue of a delivery and wait for its confirm."""
        route = self.topology.route(delivery.queue, delay)
        await asyncio.wrap_future(self._publish(self.queue(delivery.queue), route, message))

    async def hold_again(self, delivery: RabbitMQDelivery) -> None:
        """Hold for the rest of its time what came too early."""
        if not self._told_early:
            self._told_early = True
            logger.warning(
                "Queue %s: a held job came %.0f s early and is held again. A delay beyond %s days"
                " is held in parts; otherwise a broker policy shortens the holds.",
                delivery.queue,
                delivery.early_by(),
                MAX_HOLD // 86400,
            )
        priority = self.topology.priority(delivery.priority, held=True)
        copy = _copy_of(delivery, priority, delivery.headers_of_copies)
        try:
            await self.send(delivery, copy, delivery.early_by())
        except BackendError as error:
            text = "Queue %s: holding a job again failed: %s"
            logger.warning(text, delivery.queue, error, extra=delivery.log_fields)
            await asyncio.sleep(1)
            with contextlib.suppress(BackendError):
                await delivery.release()
            return
        delivery.settled = True
        delivery.consumer.settled(delivery)

    # Internals

    def _publish(
        self, config: QueueConfig | None, route: Route, message: codec.Message
    ) -> Future[None]:
        """Publish; if the broker finds nothing there, declare and publish once more."""
        recover = None
        if config is not None and self._may_declare():
            recover = partial(self._declare_and_publish, config)
        return self._publisher.publish(route.exchange, route.key, message, recover)

    def _declare_and_publish(
        self, config: QueueConfig, item: Publish, error: PublishFailed
    ) -> None:
        def go_on(declared: Future[list[Any]]) -> None:
            failure = declared.exception()
            if failure is None:
                self._declared.update((config.name, _SHARED))
                self._publisher.publish_again(item)
            else:
                assert isinstance(failure, BackendError)
                failure.__cause__ = error
                item.fail(failure)

        self._declared.clear()
        try:
            declared = self._publisher.call(self._preparation(config))
        except BackendUnavailable as closed:
            # On the publisher's thread, where it would end what is flushed before the end.
            closed.__cause__ = error
            item.fail(closed)
        else:
            declared.add_done_callback(go_on)

    def _may_declare(self) -> bool:
        return self.settings.declare == "auto"

    def _ask(self, wanted: Sequence[Operation], patience: float = 0.0) -> list[Any]:
        """Run operations on the publisher's connection and wait for their answers."""
        longest = self.options.publish_timeout + patience + 1
        try:
            return self._publisher.call(wanted, patience).result(longest)
        except TimeoutError as error:
            raise BackendUnavailable(f"{self.address} did not answer in time") from error

    def _end_consumers(self, link: Link) -> None:
        for consumer in list(self._consumers):
            consumer.wake()
        asyncio.ensure_future(link.close())  # noqa: RUF006 - the link outlives it

    def _check_open(self) -> None:
        if self.is_closed:
            raise ShutDown(self.alias, self.driver)


def _copy_of(delivery: RabbitMQDelivery, priority: int, headers: dict[str, Any]) -> codec.Message:
    return codec.Message(body=delivery.body, type=delivery.type, priority=priority, headers=headers)


_SHARED = ""
# A new ladder of quorum queues takes a busy broker several seconds.
_PATIENCE = 30.0
_PREPARE: dict[str, Callable[[Iterable[Declaration]], list[Operation]]] = {
    "auto": operations.declare,
    "check": operations.check,
    "never": lambda _: [],
}
