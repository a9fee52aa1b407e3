"""The memory backend: the contract of every backend, and what is its own."""

import asyncio
import gc
import threading
import time
from collections.abc import Callable

import pytest

from django_jobq.backends.base import Counts
from django_jobq.backends.memory import ManualClock, MemoryBackend
from django_jobq.exceptions import QueueFull, ShutDown
from django_jobq.queues import QueueConfig
from tests.backends.contract import BackendContract, make_envelope
from tests.backends.memory_contract import MemoryHooks

Make = Callable[..., MemoryBackend]


class TestMemoryContract(MemoryHooks, BackendContract):
    """Run the suite."""


class TestMemory:
    backend_name = "memory"

    @pytest.mark.contract(120)
    def test_two_handles_see_one_state(self, make_memory: Make) -> None:
        backend = make_memory("default")
        other_handle = backend
        backend.publish(make_envelope("default"))
        assert other_handle.counts("default").ready == 1

    @pytest.mark.contract(200)
    @pytest.mark.parametrize("readable", [True, False])
    def test_the_line_of_an_expired_job_tells_which_one(
        self, make_memory: Make, caplog: pytest.LogCaptureFixture, readable: bool
    ) -> None:
        clock = ManualClock()
        backend = make_memory(QueueConfig(name="default", message_ttl=1), clock=clock)
        envelope = make_envelope("default")
        backend.inject("default", envelope.encode() if readable else b"rubbish")
        clock.advance(2)
        assert backend.counts("default").dead == 1
        (record,) = caplog.records
        fields = {name: getattr(record, name) for name in ("job_id", "job", "queue", "attempt")}
        assert fields == {
            "job_id": envelope.job_id if readable else None,
            "job": envelope.job if readable else None,
            "queue": "default",
            "attempt": 1 if readable else None,
        }

    @pytest.mark.contract(120)
    def test_the_alias_is_one_backend_for_every_thread(self) -> None:
        from django_jobq.backends.handler import backends

        seen: list[object] = []
        threads = [
            threading.Thread(target=lambda: seen.append(backends["default"])) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(seen) == 8
        assert set(seen) == {backends["default"]}

    @pytest.mark.contract(121, 122)
    def test_a_delay_is_measured_from_the_call_on_the_clock(self, make_memory: Make) -> None:
        clock = ManualClock(start=1000)
        backend = make_memory("default", clock=clock)
        clock.advance(7)
        backend.publish(make_envelope("default"), 30)
        clock.advance(29)
        assert (backend.counts("default").ready, backend.counts("default").held) == (0, 1)
        clock.advance(2)
        assert (backend.counts("default").ready, backend.counts("default").held) == (1, 0)

    @pytest.mark.contract(123, 125)
    def test_a_deferral_without_delay_is_never_held(self, make_memory: Make) -> None:
        backend = make_memory("default", clock=ManualClock())
        backend.defer(make_envelope("default"), 0)
        assert backend.deferred("default") == 0
        assert len(backend.pending("default")) == 1

    @pytest.mark.contract(124, 125)
    async def test_pending_is_what_waits_to_be_delivered(self, make_memory: Make) -> None:
        clock = ManualClock()
        backend = make_memory("default", clock=clock)
        in_hand = make_envelope("default")
        backend.publish(in_hand)
        delivery = await anext(backend.consume("default", 1))
        waiting = make_envelope("default")
        backend.publish(waiting)
        backend.publish(make_envelope("default"), 5)
        backend.defer(make_envelope("default"), 5)
        assert backend.pending("default") == [waiting]
        assert backend.deferred("default") == 1
        assert backend.counts("default") == Counts(ready=1, held=2, reserved=1, dead=0)
        clock.advance(5)
        assert backend.deferred("default") == 0
        assert len(backend.pending("default")) == 3
        assert delivery.envelope == in_hand

    @pytest.mark.contract(126, 127)
    async def test_settled_tells_the_life_of_a_job(self, make_memory: Make) -> None:
        backend = make_memory("default")
        backend.publish(make_envelope("default"))
        consumer = backend.consume("default", 1)
        delivery = await anext(consumer)
        await delivery.retry(delivery.envelope.next_attempt(), 0)
        delivery = await anext(consumer)
        await delivery.defer(delivery.envelope.deferred(), 0)
        delivery = await anext(consumer)
        await delivery.ack()
        told = [f"{kind}@{envelope.attempt}" for envelope, kind in backend.settled("default")]
        assert told == ["retried@1", "deferred@2", "succeeded@2"]
        assert [envelope.attempt for envelope in backend.acked("default")] == [1, 2, 2]
        assert [envelope.deferrals for envelope in backend.succeeded("default")] == [1]
        assert [envelope.attempt for envelope in backend.retried("default")] == [1]

    @pytest.mark.contract(126)
    async def test_a_dead_letter_is_no_ack(self, make_memory: Make) -> None:
        backend = make_memory("default")
        backend.publish(make_envelope("default"))
        await (await anext(backend.consume("default", 1))).dead_letter("fatal", "no")
        assert backend.acked("default") == []
        assert [kind for _, kind in backend.settled("default")] == ["dead"]

    @pytest.mark.contract(128)
    def test_looking_at_an_unknown_queue_does_not_create_it(self, make_memory: Make) -> None:
        backend = make_memory("default")
        assert backend.counts("nowhere") == Counts(ready=0, held=0, reserved=0, dead=0)
        assert backend.pending("nowhere") == []
        assert backend.settled("nowhere") == []
        assert backend.acked("nowhere") == []
        assert backend.dead_letters("nowhere") == []
        assert backend.deferred("nowhere") == 0
        assert backend.clear("nowhere") == 0
        assert backend.queue_config("nowhere") is None
        assert backend.queue_names() == []

    @pytest.mark.contract(129)
    def test_a_hold_that_ends_after_close_is_dropped(self, make_memory: Make) -> None:
        clock = ManualClock()
        backend = make_memory("default", clock=clock)
        backend.defer(make_envelope("default"), 5)
        backend.close()
        assert backend.deferred("default") == 1
        clock.advance(5)
        assert backend.deferred("default") == 0
        assert backend.counts("default") == Counts(ready=0, held=0, reserved=0, dead=0)

    @pytest.mark.contract(130)
    async def test_an_ack_after_close_is_recorded(self, make_memory: Make) -> None:
        backend = make_memory("default")
        backend.publish(make_envelope("default"))
        delivery = await anext(backend.consume("default", 1))
        backend.close()
        await delivery.ack()
        assert backend.succeeded("default") == [delivery.envelope]

    @pytest.mark.contract(132)
    async def test_a_full_queue_refuses_new_jobs_but_no_retry(self, make_memory: Make) -> None:
        backend = make_memory("default", options={"max_pending": 2})
        backend.publish(make_envelope("default"))
        consumer = backend.consume("default", 1)
        delivery = await anext(consumer)
        backend.publish(make_envelope("default"))
        backend.publish(make_envelope("default"), 60)
        with pytest.raises(QueueFull, match="'default' is full: it holds 2 jobs"):
            backend.publish(make_envelope("default"))
        await delivery.retry(delivery.envelope.next_attempt(), 0)
        assert len(backend.pending("default")) == 2

    @pytest.mark.contract(133)
    def test_the_first_configuration_is_reported(self, make_memory: Make) -> None:
        backend = make_memory("default")
        first = QueueConfig(name="default", max_priority=3)
        backend.declare([first])
        backend.declare([QueueConfig(name="default", max_priority=7)])
        assert backend.queue_config("default") == first
        assert backend.queue_names() == ["default"]

    @pytest.mark.contract(29)
    async def test_a_dropped_delivery_frees_its_slot_and_comes_back(
        self, make_memory: Make
    ) -> None:
        backend = make_memory("default")
        envelope = make_envelope("default")
        backend.publish(envelope)
        consumer = backend.consume("default", 1)
        delivery = await anext(consumer)
        del delivery
        gc.collect()
        again = await asyncio.wait_for(anext(consumer), 2)
        assert again.envelope == envelope
        assert again.deliveries == 2

    @pytest.mark.contract(29, 33)
    async def test_dropping_a_delivery_late_does_not_take_it_from_its_new_owner(
        self, make_memory: Make
    ) -> None:
        backend = make_memory("default")
        backend.publish(make_envelope("default"))
        first = backend.consume("default", 1)
        lost = await anext(first)
        await first.aclose()
        owner = await anext(backend.consume("default", 1))
        del lost
        gc.collect()
        assert backend.counts("default") == Counts(ready=0, held=0, reserved=1, dead=0)
        await owner.ack()

    async def test_a_waiting_consumer_is_woken_from_another_thread(self, make_memory: Make) -> None:
        backend = make_memory("default")
        consumer = backend.consume("default", 1)
        waiting = asyncio.create_task(anext(consumer))
        await asyncio.sleep(0)
        envelope = make_envelope("default")
        threading.Thread(target=backend.publish, args=(envelope,)).start()
        assert (await asyncio.wait_for(waiting, 2)).envelope == envelope

    async def test_a_real_delay_ends_by_itself_and_not_early(self, make_memory: Make) -> None:
        backend = make_memory("default")
        consumer = backend.consume("default", 1)
        start = time.monotonic()
        backend.publish(make_envelope("default"), 0.05)
        await asyncio.wait_for(anext(consumer), 2)
        assert time.monotonic() - start >= 0.05

    def test_eight_threads_publish_every_job_once(self, make_memory: Make) -> None:
        backend = make_memory("default")

        def publish() -> None:
            for _ in range(200):
                backend.publish(make_envelope("default"))

        threads = [threading.Thread(target=publish) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        ids = {envelope.job_id for envelope in backend.pending("default")}
        assert len(ids) == backend.counts("default").ready == 1600

    def test_injecting_works_on_an_open_backend_only_for_named_queues(
        self, make_memory: Make
    ) -> None:
        backend = make_memory("default")
        backend.inject("default", b"rubbish")
        assert backend.counts("default").ready == 1
        backend.close()
        with pytest.raises(ShutDown):
            backend.publish(make_envelope("default"))

    def test_unfinished_counts_every_queue(self, make_memory: Make) -> None:
        backend = make_memory("a", "b")
        backend.publish(make_envelope("a"))
        backend.publish(make_envelope("b"), 5)
        assert backend.unfinished() == Counts(ready=1, held=1, reserved=0, dead=None)
