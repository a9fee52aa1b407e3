"""A transport that tests hold in their hands, and what they are told of it."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any

from django_jobq import signals
from django_jobq.backends.base import Backend, Consumer, Counts
from django_jobq.envelope import Envelope
from django_jobq.exceptions import BackendUnavailable, ShutDown
from django_jobq.queues import QueueConfig

DEADLINE = 5.0


class RemoteBackend(Backend):
    """Be a transport that confirms later and from a thread of its own, as a broker does.

    What it is sent has no answer until `settle_all()`. `on_submit` is called after each job, on the
    thread that sends it.
    """

    driver = "remote"

    def __init__(self, settings: Any) -> None:
        super().__init__(settings)
        self.sent: list[tuple[Envelope, float, bool]] = []
        self.futures: list[Future[None]] = []
        self.threads: list[threading.Thread] = []
        self._unanswered: SimpleQueue[Future[None]] = SimpleQueue()
        self.on_submit: Callable[[RemoteBackend], None] = lambda backend: backend.settle_all()
        self.is_closed = False

    @property
    def texts(self) -> list[str]:
        """Return the first argument of everything that was sent."""
        return [str(envelope.args[0]) for envelope, _, _ in self.sent]

    def declare(self, queues: Iterable[QueueConfig]) -> None:
        raise AssertionError("the producer declares nothing")

    def _submit(self, envelope: Envelope, delay: float, *, front: bool) -> Future[None]:
        if self.is_closed:
            raise ShutDown(self.alias, self.driver)
        future: Future[None] = Future()
        self.sent.append((envelope, delay, front))
        self.futures.append(future)
        self._unanswered.put(future)
        self.on_submit(self)
        return future

    def settle_all(self, error: BaseException | None = None, *, wait: bool = False) -> None:
        """Answer everything that has no answer yet, on another thread."""

        def answer() -> None:
            with contextlib.suppress(Empty):
                while True:
                    future = self._unanswered.get_nowait()
                    if error is None:
                        future.set_result(None)
                    else:
                        future.set_exception(error)

        thread = threading.Thread(target=answer)
        self.threads.append(thread)
        thread.start()
        if wait:
            thread.join(DEADLINE)

    def consume(self, queue: str, prefetch: int) -> Consumer:
        raise AssertionError("nobody consumes here")

    def counts(self, queue: str) -> Counts:
        return Counts()

    def clear(self, queue: str) -> int:
        return 0

    def close(self) -> None:
        self.is_closed = True
        for thread in self.threads:
            thread.join(DEADLINE)


class StoringBackend(RemoteBackend):
    """Be one that leaves storing to the database."""

    leaves_storing = True


def fail_with(error: BaseException, count: int = 1) -> Callable[[RemoteBackend], None]:
    """Refuse everything, once so many jobs were sent."""

    def on_submit(backend: RemoteBackend) -> None:
        if len(backend.futures) >= count:
            backend.settle_all(error, wait=True)

    return on_submit


def never_answer(backend: RemoteBackend) -> None:
    """Leave everything without an answer."""


def hang(_: RemoteBackend) -> None:
    """Answer no sooner than the time is up, and then only that there is none."""
    time.sleep(0.05)
    raise BackendUnavailable("no answer")


def answer_at(
    count: int, unless: Callable[[], object] = lambda: False
) -> Callable[[RemoteBackend], None]:
    """Answer nothing before so many jobs were sent, ``unless`` it is too late anyway."""

    def on_submit(backend: RemoteBackend) -> None:
        if len(backend.futures) >= count or unless():
            backend.settle_all()

    return on_submit


def refuse_bad(error: BaseException) -> Callable[[RemoteBackend], None]:
    """Refuse the job called bad and accept the others."""
    return lambda backend: backend.settle_all(
        error if backend.texts[-1] == "bad" else None, wait=True
    )


class Told:
    """Record what the signals tell, and on which thread."""

    def __init__(self) -> None:
        self.enqueued: list[str] = []
        self.failed: list[tuple[str, BaseException]] = []
        self.threads: set[threading.Thread] = set()

    def note_enqueued(self, envelope: Envelope, **_: Any) -> None:
        self.enqueued.append(str(envelope.args[0]))
        self.threads.add(threading.current_thread())

    def note_failed(self, envelope: Envelope, error: BaseException, **_: Any) -> None:
        self.failed.append((str(envelope.args[0]), error))
        self.threads.add(threading.current_thread())

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        signals.job_enqueued.connect(self.note_enqueued)
        signals.job_enqueue_failed.connect(self.note_failed)
        yield
        signals.job_enqueued.disconnect(self.note_enqueued)
        signals.job_enqueue_failed.disconnect(self.note_failed)
