"""The worker: consume, run, settle, stop.

One task a queue pulls deliveries into a buffer; the dispatcher starts one whenever one of
``concurrency`` slots is free. A stop, for whatever reason, goes through the same steps:

1. consumers stop, the dispatcher starts nothing more, what is buffered goes back;
2. running jobs end and are settled, until the deadline if there is one;
3. what still runs then is cancelled or abandoned, and its job handed back uncounted;
4. a job that outlived its timeout is settled last, as a failed attempt; `recycled` tells of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Mapping
from typing import Any

from django_jobq.backends.base import Backend, Consumer, Delivery
from django_jobq.exceptions import ConsumerStopped
from django_jobq.registry import registry
from django_jobq.worker.buffer import RoundRobinBuffer
from django_jobq.worker.ending import Ending
from django_jobq.worker.events import Result
from django_jobq.worker.executor import CallerExecutor, Executor, LaneExecutor
from django_jobq.worker.runner import JobRunner
from django_jobq.worker.services import Services
from django_jobq.worker.settling import Settling
from django_jobq.worker.startup import declare, refuse_conflicts, services_of
from django_jobq.worker.stats import WorkerStats
from django_jobq.worker.watch import watch_loop

logger = logging.getLogger("django_jobq.worker")

DEFAULT_CONCURRENCY = 10
DEFAULT_SHUTDOWN_TIMEOUT = 25.0
_IDLE_LOOK = 0.02
# How long a job that was started twice without an outcome waits to have the worker to itself.
_ISOLATION_PATIENCE = 60.0
_PAUSE_AFTER_FAULT = 1.0
# How long what ends anyway may take at the deadline.
_LEAST_END = 1.0


class Worker:
    """Run the jobs of one backend in this process.

    ``in_process`` workers live inside somebody else's process: they replace a thread that does not
    return instead of ending. With ``on_caller`` jobs run on the thread that called, through
    ``async_to_sync(worker.run)()``. ``burst`` stops when the queues are empty of what is due.
    """

    def __init__(
        self,
        backend: Backend,
        *,
        queues: Iterable[str] | None = None,
        concurrency: int = DEFAULT_CONCURRENCY,
        burst: bool = False,
        max_jobs: int | None = None,
        shutdown_timeout: float = DEFAULT_SHUTDOWN_TIMEOUT,
        in_process: bool = False,
        on_caller: bool = False,
    ) -> None:
        names = backend.queues if queues is None else dict.fromkeys(queues)
        self.backend = backend
        self.configs = [backend.queue(name) for name in names]
        self.concurrency = 1 if on_caller else max(1, concurrency)
        self.recycled = False
        self.abandoned = 0
        self._burst = burst
        self._max_jobs = max_jobs
        self._in_process = in_process or on_caller
        self._executor: Executor = CallerExecutor() if on_caller else LaneExecutor(self.concurrency)
        self._services = Services(services_of(backend))
        settling = Settling(backend, self._executor, self._services.wake)
        self._runner = JobRunner(backend, self._executor, settling)
        self._running: dict[asyncio.Task[None], Delivery] = {}
        self._pulled = 0
        self._stuck: list[Result] = []
        self._stopped_consumer: ConsumerStopped | None = None
        self._ending = Ending(shutdown_timeout)

    @property
    def stats(self) -> WorkerStats:
        """Return what this worker has counted so far."""
        return self._runner.stats

    @property
    def running(self) -> int:
        """Return how many jobs run at this moment."""
        return len(self._running)

    def shutdown(self) -> None:
        """Ask the worker to stop; callable from any thread, before `run()` and repeatedly."""
        self._ending.ask()

    async def run(self) -> WorkerStats:
        """Work until stopped and return the counts; raise ConsumerStopped if a queue gave up."""
        self._ending.attach()
        refuse_conflicts()
        if self._ending.requested:
            return self.stats
        await declare(self.backend, self.configs, self._ending)
        if self._ending.requested:
            return self.stats
        self._executor.start()
        buffer = RoundRobinBuffer(config.name for config in self.configs)
        consumers = {
            config.name: self.backend.consume(config.name, self._prefetch(config.prefetch))
            for config in self.configs
        }
        tasks = self._start_working(consumers, buffer)
        try:
            await self._wait_for_stop(tasks)
        except BaseException:
            self._ending.begin(with_deadline=True)
            raise
        finally:
            await self._stop(tasks, list(consumers.values()), buffer)
        if self._stopped_consumer is not None:
            raise self._stopped_consumer
        return self.stats

    def _start_working(
        self, consumers: Mapping[str, Consumer], buffer: RoundRobinBuffer
    ) -> list[asyncio.Task[None]]:
        work = [self._pull(name, consumer, buffer) for name, consumer in consumers.items()]
        work += [self._dispatch(buffer), watch_loop(self._running_async_jobs)]
        if self._burst:
            work.append(self._watch_for_idleness(buffer))
        else:
            work += self._services.start()
        return [asyncio.create_task(item) for item in work]

    def _running_async_jobs(self) -> list[str]:
        envelopes = [delivery.known_envelope for delivery in self._running.values()]
        jobs = [registry.find(envelope.job) for envelope in envelopes if envelope]
        return [job.name for job in jobs if job and job.is_async]

    def _prefetch(self, configured: int | None) -> int:
        return 2 * self.concurrency if configured is None else configured

    # Working

    async def _pull(self, queue: str, consumer: Consumer, buffer: RoundRobinBuffer) -> None:
        cause: Exception | None = None
        try:
            async for delivery in consumer:
                self._pulled += 1
                buffer.put(queue, delivery)
        except Exception as error:  # noqa: BLE001 - raised again once the worker has drained
            cause = error
        if not self._ending.requested and self._stopped_consumer is None:
            logger.error("The consumer of queue %s ended; stopping", queue, exc_info=cause)
            self._stopped_consumer = ConsumerStopped(queue)
            self._stopped_consumer.__cause__ = cause
            self._ending.begin(with_deadline=True)

    async def _dispatch(self, buffer: RoundRobinBuffer) -> None:
        slots = asyncio.Semaphore(self.concurrency)
        started = 0
        while self._max_jobs is None or started < self._max_jobs:
            await slots.acquire()
            delivery = await buffer.get()
            if self._ending.requested:
                buffer.put(delivery.queue, delivery)
                return
            started += 1
            if await self._runner.starts_of(delivery) < 2:
                self._start(delivery, slots)
            elif await self._wait_for_others():
                await asyncio.wait({self._start(delivery, slots)})
            else:
                slots.release()
                await self._runner.hold(delivery, _ISOLATION_PATIENCE)
        self._ending.begin(with_deadline=False)

    def _start(self, delivery: Delivery, slots: asyncio.Semaphore) -> asyncio.Task[None]:
        task = asyncio.create_task(self._process(delivery, slots))
        self._running[task] = delivery
        return task

    async def _wait_for_others(self) -> bool:
        """Wait until nothing runs, so that a job which may kill the worker kills nobody else."""
        if not self._running:
            return True
        _, left = await asyncio.wait(list(self._running), timeout=_ISOLATION_PATIENCE)
        return not left

    async def _process(self, delivery: Delivery, slots: asyncio.Semaphore) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            stuck = await self._runner.process(delivery)
            if stuck is not None:
                await self._handle_stuck(stuck)
        except Exception:
            logger.exception(
                "Processing a job of queue %s failed; handed back",
                delivery.queue,
                extra=delivery.log_fields,
            )
            # Or a fault of the library would run the job again and again in a tight loop.
            await asyncio.sleep(_PAUSE_AFTER_FAULT)
            await self._runner.hand_back(delivery)
        finally:
            self._running.pop(task, None)
            slots.release()
            if self._ending.requested:
                self._ending.notice()

    async def _handle_stuck(self, result: Result) -> None:
        name = result.envelope.job if result.envelope else ""
        if self._in_process:
            logger.error(
                "Job %s did not return after its timeout; its thread is given up",
                name,
                extra=result.log_fields,
            )
            await self._runner.settle(result)
            return
        logger.error(
            "Job %s did not return after its timeout; this worker takes no more jobs and ends",
            name,
            extra=result.log_fields,
        )
        self.recycled = True
        self._stuck.append(result)
        self._ending.begin(with_deadline=True)

    async def _watch_for_idleness(self, buffer: RoundRobinBuffer) -> None:
        """Stop once two looks in a row find nothing running, nothing buffered and nothing ready."""
        looks = seen = 0
        while looks < 2:
            await asyncio.sleep(_IDLE_LOOK)
            busy = bool(self._running) or len(buffer) > 0
            if not busy:
                await self._services.work_once(self._executor.call)
            ready = not busy and await asyncio.to_thread(self._has_ready_jobs)
            # What is pulled between two counts is in neither, and may have put a job back since.
            came, seen = self._pulled != seen, self._pulled
            looks = 0 if busy or ready or came else looks + 1
        self._ending.begin(with_deadline=False)

    def _has_ready_jobs(self) -> bool:
        return any(self.backend.counts(config.name).ready for config in self.configs)

    # Stopping

    async def _wait_for_stop(self, tasks: list[asyncio.Task[None]]) -> None:
        """Return when a stop was asked for; raise if one of the worker's own tasks failed."""
        for task in tasks:
            task.add_done_callback(lambda _: self._ending.notice())
        while not self._ending.requested:
            await self._ending.wait()
            for task in tasks:
                if task.done() and not task.cancelled() and task.exception() is not None:
                    task.result()

    async def _stop(
        self,
        tasks: list[asyncio.Task[None]],
        consumers: list[Consumer],
        buffer: RoundRobinBuffer,
    ) -> None:
        self._ending.requested = self._runner.stopping = True
        await _end(consumer.stop() for consumer in consumers)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for delivery in buffer.drain():
            await self._runner.hand_back(delivery)
        while self._running and not self._ending.is_late:
            await self._ending.wait()
        await self._abandon()
        for result in self._stuck:
            await self._runner.settle(result)
        await _end(consumer.aclose() for consumer in consumers)
        await self._services.stop(max(_LEAST_END, self._ending.time_left))
        await self._executor.stop(max(_LEAST_END, self._ending.time_left))

    async def _abandon(self) -> None:
        """Hand back what runs beyond the deadline."""
        late = dict(self._running)
        if not late:
            return
        self.abandoned = len(late)
        logger.warning("%s job(s) still run at the deadline; handed back", self.abandoned)
        for task in late:
            task.cancel()
        await asyncio.wait(late, timeout=1)
        for delivery in late.values():
            if not delivery.settled:
                await self._runner.hand_back(delivery)


async def _end(steps: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Take a step of every consumer; one that fails leaves the others and the running jobs alone.

    So does one that a client library cancels, which must not count as a cancelled worker.
    """
    for failure in await asyncio.gather(*steps, return_exceptions=True):
        if failure is not None:
            logger.error("Ending a consumer failed; it loses what it held", exc_info=failure)
