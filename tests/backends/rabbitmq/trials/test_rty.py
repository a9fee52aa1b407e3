"""Trials of retries on a broker: as many runs as asked for, of the same job, and none lost."""

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_jobq import JobContext, RetryPolicy, job, signals
from tests.backends.rabbitmq.support import PATIENCE, BackendFactory, channel
from tests.backends.rabbitmq.trials.live import Live
from tests.trials.test_rty import HOSTILE

Told = list[tuple[Any, ...]]


@pytest.fixture
def told() -> Iterator[Told]:
    """Collect the signals of failures: job, kind, attempt, limit and what comes next."""
    seen: Told = []

    def retried(context: JobContext, next_attempt: int, **_: Any) -> None:
        seen.append((context.job, "retried", context.attempt, context.max_attempts, next_attempt))

    def dead(context: JobContext, max_attempts: int, **_: Any) -> None:
        seen.append((context.job, "dead", context.attempt, context.max_attempts, max_attempts))

    signals.job_retried.connect(retried)
    signals.job_dead_lettered.connect(dead)
    yield seen
    signals.job_retried.disconnect(retried)
    signals.job_dead_lettered.disconnect(dead)


def test_b89_b97_runs_and_signals_match_the_limit(live: Live, told: Told) -> None:
    """Jobs that always fail run 1, 2 and 4 times; receivers count from one to one last time."""
    runs: dict[str, list[int]] = {}

    def fails(context: JobContext) -> None:
        runs.setdefault(context.job, []).append(context.attempt)
        raise ValueError

    for limit in (1, 2, 4):
        policy = RetryPolicy.none(limit)
        job(fails, name=f"trial.{limit}", retry=policy, takes_context=True).enqueue()
    live.work_until(lambda stats: stats.dead_lettered == 3)

    for limit in (1, 2, 4):
        assert runs[f"trial.{limit}"] == [*range(1, limit + 1)]
        expected = [("retried", n, limit, n + 1) for n in range(1, limit)]
        expected.append(("dead", limit, limit, limit))
        assert [entry[1:] for entry in told if entry[0] == f"trial.{limit}"] == expected
    letters = {letter.envelope.job: letter for letter in live.letters(3)}
    assert [letters[f"trial.{n}"].attempts for n in (1, 2, 4)] == [1, 2, 4]


class TestRetryThatCannotBeStored:
    """Whatever is wrong at that moment, the original is settled only after its successor is."""

    backend_name = "rabbitmq"

    @pytest.mark.contract(26)
    @pytest.mark.parametrize("how", ["hold deleted", "channel closed", "not routable"])
    def test_b91_the_job_is_run_again_in_the_end(
        self, make_apart: BackendFactory, go_live: Callable[..., Live], how: str
    ) -> None:
        live = go_live(make_apart)
        attempts: list[int] = []

        @job(name="trial.fails", retry=RetryPolicy.fixed(3, delay="1s"), takes_context=True)
        def fails(context: JobContext) -> None:
            attempts.append(context.attempt)
            if context.attempt == 1:
                self._break(live, how)
                raise ValueError

        fails.enqueue()
        stats = live.work_until(lambda stats: stats.succeeded == 1)

        assert attempts == [1, 2]
        assert stats.retried == 1
        assert live.ready() == 0

    def _break(self, live: Live, how: str) -> None:
        prefix = live.topology.prefix
        with channel(live.url) as ch:
            if how == "hold deleted":
                ch.queue_delete(f"{prefix}.hold.0.1")
            elif how == "not routable":
                ch.exchange_delete(f"{prefix}.hold.0")
        if how == "channel closed":
            engine = live.backend._publisher._engine
            assert engine is not None
            closed = threading.Event()

            def close() -> None:
                if engine._channel is not None:
                    engine._channel.close()
                closed.set()

            engine._loop.add_callback_threadsafe(close)
            assert closed.wait(PATIENCE)


def test_b93_any_exception_is_described_and_retried(live: Live) -> None:
    """Whatever a job raises passes the broker as short text, and the job is retried like any."""
    runs: list[str] = []

    @job(name="trial.hostile", retry=RetryPolicy.none(2))
    def hostile(kind: str) -> None:
        runs.append(kind)
        HOSTILE[kind][0]()

    for kind in HOSTILE:
        hostile.enqueue(kind)
    stats = live.work_until(lambda stats: stats.dead_lettered == len(HOSTILE))

    assert (stats.retried, stats.settle_failures) == (len(HOSTILE), 0)
    assert len(runs) == 2 * len(HOSTILE)
    for letter in live.letters(len(HOSTILE)):
        (kind,) = letter.envelope.args
        assert HOSTILE[kind][1].encode(errors="backslashreplace").decode() in letter.reason
        assert [entry["attempt"] for entry in letter.envelope.headers["errors"]] == [1, 2]


def test_b95_a_retry_keeps_every_option_of_the_call(
    make: BackendFactory, go_live: Callable[..., Live]
) -> None:
    """Id, queue, priority, limit, correlation and first time are the same to the dead letter."""
    live = go_live(make, {"slow": {"retry": {"max_attempts": 9}}, "default": {}})
    seen: list[JobContext] = []

    @job(name="trial.options", priority=1, retry=5, timeout="1s", takes_context=True)
    def options(context: JobContext, *args: Any, **kwargs: Any) -> None:
        seen.append(context)
        raise ValueError

    call = options.using(
        queue="slow",
        priority=7,
        timeout="99s",
        correlation_id="order-1",
        retry=RetryPolicy.none(3),
    )
    handle = call.enqueue(1, key={"a": [2]})
    (first,) = live.envelopes("slow")
    live.work_until(lambda stats: stats.dead_lettered == 1)

    assert [context.attempt for context in seen] == [1, 2, 3]
    for context in seen:
        assert context.job_id == handle.id
        assert (context.queue, context.priority, context.max_attempts) == ("slow", 7, 3)
        assert (context.correlation_id, context.enqueued_at) == ("order-1", first.enqueued_at)
    (letter,) = live.letters()
    final = letter.envelope
    assert (final.job_id, final.queue, final.priority) == (handle.id, "slow", 7)
    assert (final.args, final.kwargs) == (first.args, first.kwargs)
    assert (final.correlation_id, final.enqueued_at) == ("order-1", first.enqueued_at)
    assert (final.headers["timeout"], final.headers["retry"]) == (99.0, first.headers["retry"])


def test_b99_today_s_declaration_rules_and_a_call_s_policy_travels(live: Live, told: Told) -> None:
    """A deploy changes the limit of jobs on their way, but not of those called with one."""

    def declare(limit: int) -> Any:
        @job(name="trial.deployed", retry=RetryPolicy.none(limit))
        def deployed() -> None:
            raise ValueError

        return deployed

    old = declare(20)
    old.enqueue()
    live.work_until(lambda stats: stats.retried >= 5, concurrency=1, max_jobs=5)
    old.using(retry=RetryPolicy.none(2)).enqueue()
    declare(3)
    live.work_until(lambda stats: stats.dead_lettered == 2)

    limits = {entry[3] for entry in told if entry[1] == "dead"}
    assert limits == {2, 3}
    reasons = sorted(letter.reason for letter in live.letters(2))
    assert "attempt 2 of 2" in reasons[0]
    assert "attempt 6 of 3" in reasons[1]
