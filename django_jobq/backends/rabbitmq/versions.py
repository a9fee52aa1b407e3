"""What a version of the broker lacks, for the log of a worker that starts on it."""

from __future__ import annotations

from django_jobq.backends.rabbitmq.topology import QueueType


def shortcoming(queue_type: QueueType, version: str) -> str | None:
    """Return what queues of a type cannot do on a version such as "3.10.8", or None."""
    major, minor = (int(part) if part.isdigit() else 0 for part in (*version.split("."), "0")[:2])
    if not version or queue_type == "classic" or (major, minor) >= (4, 3):
        return None
    if major >= 4:
        return (
            f"RabbitMQ {version} knows two classes of priority on quorum queues: 0 to 4, and from 5"
            " upwards; from 4.3 every level counts"
        )
    return (
        f"RabbitMQ {version} knows no priorities on quorum queues: jobs run in the order in which"
        " they arrive, and priority=, front=True and deferrals do not change it; from 4.0 there"
        " are two classes, from 4.3 every level counts"
    )
