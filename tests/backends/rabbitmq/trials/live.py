"""A project on a real broker: enqueue through the public API, run workers, look at what is left."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from django_jobq.backends.handler import backends
from django_jobq.backends.rabbitmq import RabbitMQBackend
from django_jobq.envelope import Envelope
from django_jobq.worker.stats import WorkerStats
from django_jobq.worker.worker import Worker
from tests.backends.rabbitmq.support import (
    PATIENCE,
    BackendFactory,
    browse,
    letters,
    ready,
    wait_until,
)


class Live:
    """Put the alias default on a broker; the factory removes at the end what was left there."""

    def __init__(
        self,
        factory: BackendFactory,
        settings: Any,
        queues: dict[str, Any],
        options: dict[str, Any],
    ) -> None:
        self.url = factory.url
        # The prefix, and the deadline, that suit the queue type under test.
        kind = {key: options[key] for key in ("queue_type", "prefix") if key in options}
        defaults = factory(**kind).settings.options
        options = {**defaults, **options}
        settings.JOBQ = {
            "default": {
                "BACKEND": "django_jobq.backends.rabbitmq.RabbitMQBackend",
                "OUTBOX": "off",
                "HOLDS": "broker",
                "URL": factory.backend_url,
                "QUEUES": queues,
                "OPTIONS": options,
            }
        }
        twin = factory(*self.backend.queues.values(), **options)
        self.topology = twin.topology
        if options["publish_timeout"] != defaults.get("publish_timeout"):
            # The ladder of a new prefix takes longer than the deadlines that tests set.
            patient = {key: options[key] for key in options if key != "publish_timeout"}
            declared = factory(*self.backend.queues.values(), **patient)
            declared.declare(declared.queues.values())

    @property
    def backend(self) -> RabbitMQBackend:
        """Return the backend that the project uses at this moment."""
        backend = backends["default"]
        assert isinstance(backend, RabbitMQBackend)
        return backend

    def declare(self) -> None:
        """Make sure of the queues."""
        self.backend.declare(self.backend.queues.values())

    def queue(self, name: str = "default") -> str:
        """Return the name of a work queue on the broker."""
        return self.topology.work_queue(self.backend.queue(name))

    def ready(self, name: str = "default") -> int:
        """Return how many jobs of a queue are ready."""
        return ready(self.url, self.queue(name))

    def envelopes(self, name: str = "default") -> list[Envelope]:
        """Return the ready jobs of a queue, in order."""
        return [Envelope.decode(body) for _, body in browse(self.url, self.queue(name))]

    def letters(self, number: int = 1, patience: float = PATIENCE) -> list[Any]:
        """Return the dead letters once there are so many."""
        wait_until(lambda: ready(self.url, self.topology.dead) >= number, patience)
        found = letters(self.url, self.topology)
        assert len(found) == number
        return found

    @contextlib.contextmanager
    def working(self, **options: Any) -> Iterator[Worker]:
        """Run a worker on a thread meanwhile; raise what ended it."""
        worker = Worker(self.backend, **{"shutdown_timeout": 5.0, **options})
        failures: list[BaseException] = []

        def run() -> None:
            try:
                asyncio.run(worker.run())
            except BaseException as error:  # noqa: BLE001 - raised again on the test's thread
                failures.append(error)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield worker
        finally:
            worker.shutdown()
            thread.join(PATIENCE)
            assert not thread.is_alive(), "the worker did not end"
        if failures:
            raise failures[0]

    def work_until(self, condition: Callable[[WorkerStats], object], **options: Any) -> WorkerStats:
        """Work until the counts of the worker satisfy the condition; return them."""
        with self.working(**options) as worker:
            wait_until(lambda: condition(worker.stats))
        return worker.stats


def settled(stats: WorkerStats) -> int:
    """Return how many attempts a worker has settled."""
    return stats.succeeded + stats.retried + stats.deferred + stats.dead_lettered
