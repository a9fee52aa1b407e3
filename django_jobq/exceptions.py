"""Every exception the library raises; what job code raises to steer itself is in control.py.

JobqError
├─ InvalidJob                     a definition is refused
├─ InvalidArguments (TypeError)   arguments do not fit the function or the wire format
│  └─ PayloadTooLarge
├─ InvalidDuration (ValueError)
├─ UnknownQueue, UnknownBackend, UnknownDatabase
├─ EnvelopeError                  a body cannot be decoded, or is newer than this version
├─ QueueFull                      the memory backend's cap
└─ BackendError                   the transport's own exception is the cause
   ├─ BackendUnavailable           the connection is lost, refused or out of time
   ├─ AccessRefused                the server refuses who asks, which no waiting mends
   ├─ PublishFailed
   ├─ TopologyMismatch
   ├─ AlreadySettled
   ├─ ConsumerStopped
   └─ ShutDown
"""

from __future__ import annotations

from collections.abc import Iterable


class JobqError(Exception):
    """Be the base of every error of the library."""


class InvalidJob(JobqError):
    """Refuse a job definition or one of its options."""


class InvalidArguments(JobqError, TypeError):
    """Refuse arguments that do not fit the job's signature or the wire format."""


class PayloadTooLarge(InvalidArguments):
    """Refuse an envelope above the payload limit; sizes are in bytes."""

    def __init__(self, job: str, size: int, limit: int) -> None:
        self.job, self.size, self.limit = job, size, limit
        super().__init__(
            f"the arguments of {job} make {size:,} bytes, more than the limit of {limit:,}; store"
            " the data and pass its key, or raise OPTIONS['max_payload']"
        )


class InvalidDuration(JobqError, ValueError):
    """Refuse a duration that cannot be read, is negative or has no end."""


class UnknownQueue(JobqError):
    """Report a queue that the alias does not name: in QUEUES if it is set, else by its jobs."""

    def __init__(
        self, queue: str, alias: str, known: Iterable[str], *, configured: bool = True
    ) -> None:
        self.queue, self.alias, self.known = queue, alias, sorted(known)
        names = ", ".join(self.known) or "none"
        remedy = (
            f"add it to JOBQ[{alias!r}]['QUEUES']"
            if configured
            else f"give a job this queue, or name all queues in JOBQ[{alias!r}]['QUEUES']"
        )
        super().__init__(
            f"queue {queue!r} is not known to backend {alias!r} (known: {names}); {remedy}"
        )


class UnknownBackend(JobqError):
    """Report an alias that JOBQ does not define."""

    def __init__(self, alias: str, known: Iterable[str]) -> None:
        self.alias, self.known = alias, sorted(known)
        names = ", ".join(self.known) or "none"
        super().__init__(f"JOBQ has no backend {alias!r} (known: {names})")


class UnknownDatabase(JobqError):
    """Report a database alias that cannot release jobs, or not those of ``backend``."""

    def __init__(self, database: str, known: Iterable[str], *, backend: str | None = None) -> None:
        self.database, self.known = database, sorted(known)
        names = ", ".join(self.known) or "none"
        super().__init__(
            f"DATABASES has no alias {database!r} (known: {names})"
            if backend is None
            else f"no worker of backend {backend!r} looks after jobs that are stored in database"
            f" {database!r} (known: {names}); add it to JOBQ[{backend!r}]['OUTBOX_DATABASES']"
        )


class EnvelopeError(JobqError):
    """Report a body that is no envelope of a version this code reads."""


class QueueFull(JobqError):
    """Report that the memory backend holds as many jobs as it may."""

    def __init__(self, queue: str, limit: int) -> None:
        self.queue, self.limit = queue, limit
        super().__init__(f"queue {queue!r} is full: it holds {limit} jobs, its max_pending")


class BackendError(JobqError):
    """Report that a transport failed; its own exception is the cause."""


class BackendUnavailable(BackendError):
    """Report a connection that is lost, refused or out of time."""


class AccessRefused(BackendError):
    """Report credentials, a vhost or a permission that the server refuses."""


class PublishFailed(BackendError):
    """Report a job that the transport returned or refused."""


class TopologyMismatch(BackendError):
    """Report an existing queue whose arguments differ from the configured ones."""


class AlreadySettled(BackendError):
    """Report a second settling of one delivery, or one whose lease or channel is gone."""


class ConsumerStopped(BackendError):
    """Report a queue whose consumer ended without being asked to."""

    def __init__(self, queue: str) -> None:
        self.queue = queue
        super().__init__(f"the consumer of queue {queue!r} stopped and gave up")


class ShutDown(BackendError):
    """Report the use of a closed backend."""

    def __init__(self, alias: str, driver: str) -> None:
        self.alias, self.driver = alias, driver
        super().__init__(f"backend {alias!r} ({driver}) is closed")
