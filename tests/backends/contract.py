"""What every backend must do, as one suite that knows no backend.

Let a class inherit from the hooks of a backend (hooks.py) and from `BackendContract`, and let
pytest collect it; the numbers are those of docs/reference/behaviour.md. Tests are plain
coroutines: nothing but `self` and parameters.
"""

import asyncio
import gc

import pytest

from django_jobq.backends.base import Consumer, Delivery
from django_jobq.exceptions import AlreadySettled, ShutDown, UnknownQueue
from django_jobq.queues import QueueConfig
from tests.backends.hooks import DEFAULT_CONFIG, BackendHooks, make_envelope


class BackendContract(BackendHooks):
    """Check the publishing half of a backend, its deliveries and its dead letters."""

    # Declaring and naming

    @pytest.mark.contract(1)
    async def test_declaring_again_leaves_messages_and_consumers_alone(self) -> None:
        backend = self.open("a")
        consumer = backend.consume("a", 10)
        first = await self.publish(backend, make_envelope())
        taken = await self.take(consumer)
        second = await self.publish(backend, make_envelope())
        backend.declare([DEFAULT_CONFIG])
        backend.declare([DEFAULT_CONFIG])
        assert taken.envelope == first
        assert (await self.take(consumer)).envelope == second

    @pytest.mark.contract(2)
    async def test_declaring_nothing_succeeds(self) -> None:
        self.open("a").declare([])

    @pytest.mark.contract(3)
    async def test_a_declared_queue_takes_jobs_and_dead_letters(self) -> None:
        backend = self.open("a", "b")
        for queue in ("a", "b"):
            await self.publish(backend, make_envelope(queue))
            delivery = await self.take(backend.consume(queue, 1))
            await delivery.dead_letter("fatal", "why not")
            assert len(await self.dead_letters(backend, queue)) == 1

    @pytest.mark.contract(4, 5)
    @pytest.mark.parametrize("delay", [0, 5])
    @pytest.mark.parametrize("front", [False, True])
    async def test_an_unnamed_queue_is_refused(self, delay: float, front: bool) -> None:
        backend = self.open("a", "b")
        store = backend.defer if front else backend.publish
        with pytest.raises(UnknownQueue, match=r"'nowhere'.*known: a, b"):
            store(make_envelope("nowhere"), delay)
        assert backend.counts("a").ready == 0
        store(make_envelope("b"), delay).result(self.patience)

    @pytest.mark.contract(5)
    async def test_naming_the_queue_makes_the_same_call_succeed(self) -> None:
        envelope = make_envelope("c")
        with pytest.raises(UnknownQueue):
            self.open("a").defer(envelope, 0)
        named = self.open("a", "c")
        await self.defer(named, envelope)
        assert (await self.take(named.consume("c", 1))).envelope == envelope

    @pytest.mark.contract(20)
    async def test_the_driver_has_a_name_that_errors_repeat(self) -> None:
        backend = self.open("a")
        assert backend.driver == self.backend_name
        backend.close()
        with pytest.raises(ShutDown, match=backend.driver):
            await self.publish(backend, make_envelope())

    # Order

    @pytest.mark.contract(6)
    async def test_equal_priorities_are_first_in_first_out(self) -> None:
        backend = self.open("a")
        sent = [await self.publish(backend, make_envelope(priority=3)) for _ in range(20)]
        got = await self.take_many(backend.consume("a", 0), 20)
        assert [delivery.envelope for delivery in got] == sent

    @pytest.mark.contract(7)
    async def test_higher_priorities_come_first(self) -> None:
        backend = self.open("a")
        sent = [await self.publish(backend, make_envelope(priority=p)) for p in (0, 9, 4, 0, 9, 4)]
        got = await self.take_many(backend.consume("a", 0), 6)
        expected = sorted(sent, key=lambda envelope: -envelope.priority)
        assert [delivery.envelope for delivery in got] == expected

    @pytest.mark.contract(8)
    async def test_a_queue_without_levels_ignores_priorities(self) -> None:
        backend = self.open(QueueConfig(name="a", max_priority=0))
        sent = [await self.publish(backend, make_envelope(priority=p)) for p in (0, 9, 4)]
        got = await self.take_many(backend.consume("a", 0), 3)
        assert [delivery.envelope for delivery in got] == sent

    @pytest.mark.contract(9)
    async def test_queues_are_apart(self) -> None:
        backend = self.open("a", "b")
        envelope = await self.publish(backend, make_envelope("a"))
        await self.expect_nothing(backend.consume("b", 1))
        assert (await self.take(backend.consume("a", 1))).envelope == envelope

    # Time

    @pytest.mark.contract(10, 92)
    @pytest.mark.parametrize("delay", [0.001, 0.4, 1.9, 61])
    async def test_a_delay_never_fires_early(self, delay: float) -> None:
        if delay > 2 and self.granularity:
            pytest.skip("a minute of real time; the rounding is checked by the shorter delays")
        backend = self.open("a")
        consumer = backend.consume("a", 1)
        await self.publish(backend, make_envelope(), delay)
        # On a real clock the look itself takes its time.
        await self.pass_time(max(0.0, delay * 0.9 - (self.silence if self.granularity else 0)))
        await self.expect_nothing(consumer)
        await self.pass_time(delay * 0.1 + self.granularity + 0.001)
        await self.take(consumer)

    @pytest.mark.contract(11)
    async def test_a_held_job_does_not_block_a_ready_one(self) -> None:
        backend = self.open("a")
        await self.publish(backend, make_envelope(), 30)
        ready = await self.publish(backend, make_envelope())
        assert (await self.take(backend.consume("a", 0))).envelope == ready

    @pytest.mark.contract(12)
    async def test_delays_do_not_block_each_other(self) -> None:
        backend = self.open("a")
        long = await self.publish(backend, make_envelope(), 6)
        short = await self.publish(backend, make_envelope(), 1)
        consumer = backend.consume("a", 0)
        await self.pass_time(1 + self.granularity)
        first = await self.take(consumer)
        assert first.envelope == short
        await self.expect_nothing(consumer)
        await self.pass_time(5)
        assert (await self.take(consumer)).envelope == long

    @pytest.mark.contract(43)
    async def test_a_delayed_job_returns_behind_its_priority(self) -> None:
        backend = self.open("a")
        delayed = await self.publish(backend, make_envelope(), 1)
        meanwhile = await self.publish(backend, make_envelope())
        await self.pass_time(1 + self.granularity)
        await self.until(lambda: backend.counts("a").ready == 2)
        got = await self.take_many(backend.consume("a", 0), 2)
        assert [delivery.envelope for delivery in got] == [meanwhile, delayed]

    @pytest.mark.contract(32, 44, 97, 100)
    async def test_what_is_deferred_returns_at_the_top(self) -> None:
        backend = self.open("a")
        deferred = await self.defer(backend, make_envelope(), 1)
        await self.publish(backend, make_envelope(priority=9))
        await self.pass_time(1 + self.granularity)
        await self.until(lambda: backend.counts("a").ready == 2)
        assert (await self.take(backend.consume("a", 0))).envelope == deferred

    @pytest.mark.contract(44, 102)
    async def test_without_levels_what_is_deferred_still_returns(self) -> None:
        backend = self.open(QueueConfig(name="a", max_priority=0))
        deferred = await self.defer(backend, make_envelope(), 1)
        meanwhile = await self.publish(backend, make_envelope())
        await self.pass_time(1 + self.granularity)
        await self.until(lambda: backend.counts("a").ready == 2)
        got = await self.take_many(backend.consume("a", 0), 2)
        assert [delivery.envelope for delivery in got] == [meanwhile, deferred]

    @pytest.mark.contract(101)
    async def test_a_retry_returns_at_its_own_priority(self) -> None:
        backend = self.open("a")
        await self.defer(backend, make_envelope(priority=2))
        consumer = backend.consume("a", 1)
        delivery = await self.take(consumer)
        await consumer.stop()
        await delivery.retry(delivery.envelope.next_attempt(), 0)
        higher = await self.publish(backend, make_envelope(priority=3))
        got = await self.take_many(backend.consume("a", 0), 2)
        assert [item.envelope.job_id for item in got] == [higher.job_id, delivery.envelope.job_id]

    @pytest.mark.contract(103)
    async def test_a_hold_outlives_its_consumer(self) -> None:
        backend = self.open("a")
        envelope = await self.publish(backend, make_envelope())
        first = backend.consume("a", 1)
        delivery = await self.take(first)
        await delivery.defer(delivery.envelope.deferred(), 1)
        await first.aclose()
        await self.pass_time(1 + self.granularity)
        returned = (await self.take(backend.consume("a", 1))).envelope
        assert returned == envelope.deferred()

    # Closing

    @pytest.mark.contract(14)
    async def test_a_closed_backend_refuses(self) -> None:
        backend = self.open("a")
        for _ in range(3):
            await self.publish(backend, make_envelope())
        one, two, three = await self.take_many(backend.consume("a", 0), 3)
        backend.close()
        envelope = make_envelope()
        with pytest.raises(ShutDown):
            await self.publish(backend, envelope)
        with pytest.raises(ShutDown):
            await self.publish(backend, envelope, 1)
        with pytest.raises(ShutDown):
            await self.defer(backend, envelope)
        with pytest.raises(ShutDown):
            backend.declare([DEFAULT_CONFIG])
        with pytest.raises(ShutDown):
            await one.retry(one.envelope.next_attempt(), 0)
        with pytest.raises(ShutDown):
            await two.defer(two.envelope.deferred(), 0)
        with pytest.raises(ShutDown):
            await three.dead_letter("fatal", "too late")

    @pytest.mark.contract(15)
    async def test_closing_ends_every_stream(self) -> None:
        backend = self.open("a", "b")
        await self.publish(backend, make_envelope())
        holding, idle = backend.consume("a", 1), backend.consume("b", 1)
        held = await self.take(holding)
        waiting = [asyncio.create_task(self.expect_end(item)) for item in (holding, idle)]
        await asyncio.sleep(self.silence / 2)
        backend.close()
        await asyncio.gather(*waiting)
        assert not held.settled

    @pytest.mark.contract(16)
    async def test_a_stream_of_a_closed_backend_has_ended(self) -> None:
        backend = self.open("a")
        backend.close()
        try:
            consumer = backend.consume("a", 1)
        except ShutDown:
            return
        await self.expect_end(consumer)

    @pytest.mark.contract(17)
    async def test_closing_twice_is_harmless(self) -> None:
        backend = self.open("a")
        backend.close()
        backend.close()

    # Stopping a consumer

    @pytest.mark.contract(19, 29)
    async def test_what_a_consumer_leaves_goes_to_the_next_in_order(self) -> None:
        backend = self.open("a")
        sent = [await self.publish(backend, make_envelope()) for _ in range(6)]
        first = backend.consume("a", 3)
        await self.take_many(first, 3)
        await first.aclose()
        got = await self.take_many(backend.consume("a", 0), 6)
        assert [delivery.envelope for delivery in got] == sent

    @pytest.mark.contract(19)
    async def test_a_stopped_consumer_ends_and_still_settles(self) -> None:
        backend = self.open("a")
        sent = [await self.publish(backend, make_envelope()) for _ in range(4)]
        consumer = backend.consume("a", 2)
        taken = await self.take(consumer)
        await consumer.stop()
        await self.expect_end(consumer)
        await taken.ack()
        got = await self.take_many(backend.consume("a", 0), 3)
        assert [delivery.envelope for delivery in got] == sent[1:]

    @pytest.mark.contract(29)
    async def test_a_delivery_that_nobody_settles_comes_back(self) -> None:
        backend = self.open("a")
        envelope = await self.publish(backend, make_envelope())
        consumer = backend.consume("a", 1)
        await self.lose(consumer, await self.take(consumer))
        again = await self.take(backend.consume("a", 1))
        assert again.envelope == envelope
        assert again.deliveries == 2

    async def lose(self, consumer: Consumer, delivery: Delivery) -> None:
        """Drop a delivery as a dying worker does."""
        del delivery
        gc.collect()
        await consumer.aclose()

    # Counting and clearing

    @pytest.mark.contract(21)
    async def test_clearing_removes_what_waits_on_one_queue(self) -> None:
        backend = self.open("a", "b")
        for _ in range(3):
            await self.publish(backend, make_envelope("a"))
        await self.publish(backend, make_envelope("b"))
        await self.until(lambda: backend.counts("a").ready == 3)
        assert backend.clear("a") == 3
        assert backend.clear("a") == 0
        assert backend.counts("a").ready == 0
        assert backend.counts("b").ready == 1

    @pytest.mark.contract(22)
    async def test_counts_account_for_every_job(self) -> None:
        backend = self.open("a")
        for delay in (0, 0, 0, 30):
            await self.publish(backend, make_envelope(), delay)
        consumer = backend.consume("a", 2)
        dead, _held = await self.take_many(consumer, 2)
        await dead.dead_letter("fatal", "gone")
        await self.until(lambda: backend.counts("a").ready == 1)
        counts = backend.counts("a")
        told = (counts.ready, counts.held, counts.reserved, counts.dead)
        for value, expected in zip(told, (1, 1, 1, 1), strict=True):
            assert value in (expected, None)
        assert counts.consumers in (1, None)
        await consumer.aclose()
        await self.until(lambda: backend.counts("a").consumers in (0, None))

    # Settling

    @pytest.mark.contract(23)
    @pytest.mark.parametrize("first", ["ack", "retry", "defer", "dead_letter", "release"])
    @pytest.mark.parametrize("second", ["ack", "retry", "defer", "dead_letter", "release"])
    async def test_a_delivery_is_settled_once(self, first: str, second: str) -> None:
        backend = self.open("a")
        await self.publish(backend, make_envelope())
        consumer = backend.consume("a", 1)
        delivery = await self.take(consumer)
        await consumer.stop()
        await settle(delivery, first)
        left = int(first in ("retry", "defer", "release"))
        await self.until(lambda: backend.counts("a").ready == left)
        dead = len(await self.dead_letters(backend, "a"))
        with pytest.raises(AlreadySettled):
            await settle(delivery, second)
        assert backend.counts("a").ready == left
        assert len(await self.dead_letters(backend, "a")) == dead

    @pytest.mark.contract(24)
    async def test_prefetch_bounds_what_is_in_hand(self) -> None:
        backend = self.open("a")
        sent = [await self.publish(backend, make_envelope()) for _ in range(5)]
        consumer = backend.consume("a", 3)
        in_hand = await self.take_many(consumer, 3)
        await self.expect_nothing(consumer)
        await in_hand[1].ack()
        released = await self.take(consumer)
        assert released.envelope == sent[3]
        await self.expect_nothing(consumer)

    @pytest.mark.contract(25)
    @pytest.mark.parametrize("how", ["ack", "retry", "defer", "dead_letter"])
    async def test_every_way_of_settling_frees_a_slot(self, how: str) -> None:
        backend = self.open("a")
        await self.publish(backend, make_envelope(priority=1))
        second = await self.publish(backend, make_envelope())
        consumer = backend.consume("a", 1)
        delivery = await self.take(consumer)
        await self.expect_nothing(consumer)
        await settle(delivery, how, delay=60)
        assert (await self.take(consumer)).envelope == second

    @pytest.mark.contract(131)
    async def test_prefetch_zero_is_no_limit(self) -> None:
        backend = self.open("a")
        for _ in range(50):
            await self.publish(backend, make_envelope())
        assert len(await self.take_many(backend.consume("a", 0), 50)) == 50

    @pytest.mark.contract(26, 27, 28)
    @pytest.mark.parametrize("how", ["retry", "defer", "dead_letter"])
    async def test_the_original_stays_if_its_successor_is_not_stored(self, how: str) -> None:
        backend = self.open("a")
        envelope = await self.publish(backend, make_envelope())
        consumer = backend.consume("a", 1)
        delivery = await self.take(consumer)
        broken = self.break_filing if how == "dead_letter" else self.break_storing
        with broken(backend), pytest.raises(Exception) as failure:  # noqa: PT011 - any error of the transport
            await settle(delivery, how)
        assert not isinstance(failure.value, AssertionError)
        assert not delivery.settled
        assert await self.dead_letters(backend, "a") == []
        await self.lose(consumer, delivery)
        del delivery
        again = await self.take(backend.consume("a", 1))
        assert again.envelope == envelope

    @pytest.mark.contract(30)
    async def test_two_consumers_never_hold_one_message(self) -> None:
        backend = self.open("a")
        sent = [await self.publish(backend, make_envelope()) for _ in range(20)]
        one, two = backend.consume("a", 0), backend.consume("a", 0)
        got: list[Delivery] = []

        async def collect(consumer: Consumer) -> None:
            async for delivery in consumer:
                got.append(delivery)
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(collect(item)) for item in (one, two)]
        await self.until(lambda: len(got) >= 20)
        await asyncio.sleep(self.silence)
        for task in tasks:
            task.cancel()
        assert sorted(d.envelope.job_id for d in got) == sorted(e.job_id for e in sent)

    @pytest.mark.contract(31, 40)
    async def test_a_retry_keeps_the_job(self) -> None:
        backend = self.open("a")
        sent = await self.publish(
            backend, make_envelope(priority=4, deferrals=2, correlation_id="c", headers={"x": 1})
        )
        consumer = backend.consume("a", 1)
        delivery = await self.take(consumer)
        await delivery.retry(delivery.envelope.next_attempt(), 0)
        again = (await self.take(consumer)).envelope
        assert again == sent.next_attempt()
        assert (again.attempt, again.deferrals, again.priority) == (2, 2, 4)

    @pytest.mark.contract(32, 40)
    async def test_a_deferral_keeps_the_job(self) -> None:
        backend = self.open("a")
        sent = await self.publish(backend, make_envelope(attempt=2, priority=4))
        consumer = backend.consume("a", 1)
        delivery = await self.take(consumer)
        await delivery.defer(delivery.envelope.deferred(), 0)
        again = (await self.take(consumer)).envelope
        assert again == sent.deferred()
        assert (again.attempt, again.deferrals, again.priority) == (2, 1, 4)

    @pytest.mark.contract(33)
    @pytest.mark.parametrize("how", ["ack", "retry", "defer", "dead_letter", "release"])
    async def test_settling_after_the_consumer_is_gone_raises(self, how: str) -> None:
        backend = self.open("a")
        envelope = await self.publish(backend, make_envelope())
        consumer = backend.consume("a", 1)
        delivery = await self.take(consumer)
        await consumer.aclose()
        new_owner = await self.take(backend.consume("a", 1))
        with pytest.raises(AlreadySettled):
            await settle(delivery, how)
        assert new_owner.envelope == envelope
        await new_owner.ack()
        assert await self.dead_letters(backend, "a") == []

    async def test_releasing_is_not_counted_and_keeps_the_place(self) -> None:
        backend = self.open("a")
        sent = [await self.publish(backend, make_envelope()) for _ in range(3)]
        consumer = backend.consume("a", 1)
        delivery = await self.take(consumer)
        await consumer.stop()
        await delivery.release()
        got = await self.take_many(backend.consume("a", 0), 3)
        assert [item.envelope for item in got] == sent

    # Dead letters

    @pytest.mark.contract(107, 108, 115)
    async def test_dead_letters_keep_what_an_operator_needs(self) -> None:
        backend = self.open("a")
        causes = ("fatal", "exhausted", "fatal")
        sent = [await self.publish(backend, make_envelope(attempt=3)) for _ in causes]
        consumer = backend.consume("a", 1)
        for cause in causes:
            await (await self.take(consumer)).dead_letter(cause, f"because of {cause}")  # type: ignore[arg-type]
        letters = await self.dead_letters(backend, "a")
        assert [letter.envelope for letter in letters] == sent
        assert [letter.cause for letter in letters] == list(causes)
        assert [letter.reason for letter in letters] == [f"because of {c}" for c in causes]
        assert {letter.attempts for letter in letters} == {3}
        assert {letter.queue for letter in letters} == {"a"}

    @pytest.mark.contract(107)
    async def test_a_dead_letter_that_did_not_run_counts_the_attempts_before(self) -> None:
        backend = self.open("a")
        await self.publish(backend, make_envelope(attempt=3))
        await (await self.take(backend.consume("a", 1))).dead_letter("no_handler", "unknown")
        (letter,) = await self.dead_letters(backend, "a")
        assert letter.attempts == 2

    @pytest.mark.contract(116)
    async def test_a_dead_letter_is_in_one_place(self) -> None:
        backend = self.open("a")
        await self.publish(backend, make_envelope())
        consumer = backend.consume("a", 1)
        delivery = await self.take(consumer)
        assert await self.dead_letters(backend, "a") == []
        await delivery.dead_letter("fatal", "gone")
        assert len(await self.dead_letters(backend, "a")) == 1
        await self.expect_nothing(consumer)

    @pytest.mark.contract(118)
    async def test_a_long_reason_is_cut_and_marked(self) -> None:
        backend = self.open("a")
        await self.publish(backend, make_envelope())
        await (await self.take(backend.consume("a", 1))).dead_letter("fatal", "x" * 5_000_000)
        (letter,) = await self.dead_letters(backend, "a")
        assert letter.reason.startswith("xxx")
        assert letter.reason.endswith("… [5,000,000 characters]")
        assert len(letter.reason) < 100_000

    @pytest.mark.contract(119)
    @pytest.mark.parametrize("body", [b"", b"\x80\x02", b"[]", b"null", b'{"job', b"{}"])
    async def test_rubbish_is_kept_and_stalls_nothing(self, body: bytes) -> None:
        backend = self.open("a")
        await self.inject(backend, "a", body)
        good = await self.publish(backend, make_envelope())
        consumer = backend.consume("a", 1)
        rubbish = await self.take(consumer)
        assert rubbish.body == body
        await rubbish.dead_letter("decode", "malformed envelope")
        assert (await self.take(consumer)).envelope == good
        (letter,) = await self.dead_letters(backend, "a")
        assert (letter.body, letter.envelope, letter.cause) == (body, None, "decode")
        assert letter.reason == "malformed envelope"

    @pytest.mark.contract(108)
    async def test_expired_work_is_a_dead_letter(self) -> None:
        backend = self.open(QueueConfig(name="a", message_ttl=1.0))
        expired = await self.publish(backend, make_envelope())
        await self.pass_time(1.0 + self.granularity)
        fresh = await self.publish(backend, make_envelope())
        assert (await self.take(backend.consume("a", 0))).envelope == fresh
        (letter,) = await self.dead_letters(backend, "a")
        assert (letter.envelope, letter.cause) == (expired, "expired")


async def settle(delivery: Delivery, how: str, delay: float = 0) -> None:
    """Settle a delivery in one of the five ways."""
    match how:
        case "ack":
            await delivery.ack()
        case "retry":
            await delivery.retry(delivery.envelope.next_attempt(), delay)
        case "defer":
            await delivery.defer(delivery.envelope.deferred(), delay)
        case "dead_letter":
            await delivery.dead_letter("fatal", "given up")
        case "release":
            await delivery.release()
