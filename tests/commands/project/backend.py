"""A memory backend that a worker process of its own can be tested with."""

import json
import os
import time
import uuid
from typing import Any

from project.trace import note

from django_jobq.backends.memory import MemoryBackend
from django_jobq.backends.memory.consumer import MemoryConsumer, MemoryDelivery
from django_jobq.envelope import Envelope


class SeededMemoryBackend(MemoryBackend):
    """Fill itself with the jobs of PROJECT_SEED when it is first consumed; trace every ending."""

    shared = True
    _seeded = False

    def consume(self, queue: str, prefetch: int) -> MemoryConsumer:
        if not self._seeded:
            self._seeded = True
            for seed in json.loads(os.environ.get("PROJECT_SEED", "[]")):
                self._publish_seed(**seed)
        note("consumes", queue=queue)
        return super().consume(queue, prefetch)

    def release(self, delivery: MemoryDelivery) -> None:
        super().release(delivery)
        note("released", job=delivery.envelope.job, attempt=delivery.envelope.attempt)

    def _record(self, delivery: Any, envelope: Envelope | None, kind: Any) -> None:
        super()._record(delivery, envelope, kind)
        if envelope is not None:
            note(kind, job=envelope.job, attempt=envelope.attempt, args=envelope.args)

    def _publish_seed(self, job: str, args: list[Any], queue: str = "default") -> None:
        self.publish(
            Envelope(
                job_id=uuid.uuid4(),
                job=f"project.jobs.{job}",
                queue=queue,
                enqueued_at=time.time_ns() // 1_000_000,
                args=args,
            )
        )
