"""The suites are themselves under test: everything broken must fail the test that is named."""

import asyncio
from typing import Any

import pytest

from django_jobq.backends.handler import backends
from django_jobq.backends.memory import MemoryBackend
from django_jobq.backends.memory.consumer import MemoryDelivery
from django_jobq.registry import registry
from django_jobq.worker.worker import Worker
from tests.backends import mutants, worker_mutants
from tests.backends.contract import BackendContract
from tests.backends.memory_contract import MemoryHooks
from tests.backends.worker_contract import WorkerContract

KEEPS = "test_a_job_keeps_what_it_is_over_deferral_retry_and_death"

CASES: list[tuple[type[MemoryBackend], str, dict[str, Any]]] = [
    (
        mutants.AcksBeforeTheSuccessorIsStored,
        "test_the_original_stays_if_its_successor_is_not_stored",
        {"how": "retry"},
    ),
    (
        mutants.AcksBeforeTheDeadLetterIsStored,
        "test_the_original_stays_if_its_successor_is_not_stored",
        {"how": "dead_letter"},
    ),
    (mutants.FiresEarly, "test_a_delay_never_fires_early", {"delay": 1.9}),
    (mutants.DropsFractionsOfDelays, "test_a_delay_never_fires_early", {"delay": 0.4}),
    (mutants.HoldsInOneLine, "test_delays_do_not_block_each_other", {}),
    (mutants.DeliversTwice, "test_two_consumers_never_hold_one_message", {}),
    (mutants.IgnoresPrefetch, "test_prefetch_bounds_what_is_in_hand", {}),
    (
        mutants.KeepsTheSlotOfADeadLetter,
        "test_every_way_of_settling_frees_a_slot",
        {"how": "dead_letter"},
    ),
    (mutants.IgnoresPriorities, "test_higher_priorities_come_first", {}),
    (mutants.IgnoresPriorities, "test_what_is_deferred_returns_at_the_top", {}),
    (mutants.DefersToTheBack, "test_what_is_deferred_returns_at_the_top", {}),
    (mutants.LosesWhatAConsumerLeaves, "test_what_a_consumer_leaves_goes_to_the_next_in_order", {}),
    (mutants.ReturnsItOutOfOrder, "test_what_a_consumer_leaves_goes_to_the_next_in_order", {}),
    (
        mutants.SettlesForAnOldOwner,
        "test_settling_after_the_consumer_is_gone_raises",
        {"how": "ack"},
    ),
    (
        mutants.SettlesTwice,
        "test_a_delivery_is_settled_once",
        {"first": "ack", "second": "ack"},
    ),
    (mutants.LosesDeadLetters, "test_dead_letters_keep_what_an_operator_needs", {}),
    (
        mutants.AcceptsUnknownQueues,
        "test_an_unnamed_queue_is_refused",
        {"delay": 0, "front": False},
    ),
    (mutants.MixesQueues, "test_queues_are_apart", {}),
    (mutants.HangsAfterClose, "test_closing_ends_every_stream", {}),
    (mutants.WorksAfterClose, "test_a_closed_backend_refuses", {}),
    (mutants.CountsADeferralAsAnAttempt, "test_a_deferral_keeps_the_job", {}),
]


DeliveryMutant = type[MemoryDelivery]
WORKER_CASES: list[tuple[type[Worker] | DeliveryMutant, str, dict[str, Any]]] = [
    (worker_mutants.ServesEveryQueue, "test_a_worker_leaves_other_queues_alone", {}),
    (worker_mutants.RunsOneTooMany, "test_ten_run_and_as_many_wait_at_hand", {}),
    (
        worker_mutants.RunsOneTooMany,
        "test_no_more_run_at_once_than_allowed_even_after_a_timeout",
        {"kind": "async"},
    ),
    (worker_mutants.StartsOneTooMany, "test_max_jobs_counts_attempts_and_leaves_the_rest", {}),
    (worker_mutants.LeavesWhatRuns, "test_shutdown_ends_what_runs_and_hands_back_the_rest", {}),
    (
        worker_mutants.AcknowledgesBeforeTheJobRuns,
        "test_what_runs_beyond_the_deadline_is_handed_back_uncounted",
        {},
    ),
    (worker_mutants.RunsAgainWhatItSettled, "test_what_is_enqueued_runs_once_under_its_id", {}),
    (worker_mutants.RunsAgainWhatItSettled, "test_several_workers_run_each_job_once", {}),
    (
        worker_mutants.TellsTheHookAfterSettling,
        "test_the_hook_is_told_everything_before_the_job_is_filed",
        {},
    ),
    (
        worker_mutants.EndsWithTheFirstFailedSettle,
        "test_a_settle_that_fails_stops_nothing_and_loses_nothing",
        {"how": "retry"},
    ),
    (worker_mutants.DropsThePriorityOfARetry, "test_a_retry_returns_at_its_own_priority", {}),
    (worker_mutants.RetriesInFront, "test_a_retry_returns_at_its_own_priority", {}),
    (worker_mutants.RetriesAtOnce, "test_a_retry_is_never_early", {}),
    (
        worker_mutants.RetriesUnknownJobsByPolicy,
        "test_an_unknown_job_is_held_uncounted_until_its_grace_is_over",
        {},
    ),
    (worker_mutants.ForgetsTheCorrelation, KEEPS, {}),
    (worker_mutants.ForgetsTheFirstEnqueue, KEEPS, {}),
    (worker_mutants.CountsADeferral, KEEPS, {}),
    (
        worker_mutants.CountsADeferral,
        "test_any_number_of_deferrals_costs_no_attempt_and_asks_no_policy",
        {},
    ),
    (
        worker_mutants.DefersBehindTheBacklog,
        "test_a_deferred_job_overtakes_what_was_enqueued_meanwhile",
        {},
    ),
    (
        worker_mutants.DefersWithoutWaiting,
        "test_a_hold_outlives_its_worker_and_is_told_as_a_deferral",
        {},
    ),
    (
        worker_mutants.DropsWhatItHandsBack,
        "test_what_runs_beyond_the_deadline_is_handed_back_uncounted",
        {},
    ),
    (
        worker_mutants.DropsWhatItHandsBack,
        "test_shutdown_ends_what_runs_and_hands_back_the_rest",
        {},
    ),
    (
        worker_mutants.CountsWhatItHandsBack,
        "test_what_runs_beyond_the_deadline_is_handed_back_uncounted",
        {},
    ),
    (worker_mutants.DropsDeadLetters, "test_fatal_gives_up_on_the_first_of_many_attempts", {}),
    (worker_mutants.MistakesTheCause, "test_what_does_not_decode_is_filed_and_stalls_nothing", {}),
    (worker_mutants.GivesNoReason, KEEPS, {}),
]


def names(cases: list[tuple[type, str, dict[str, Any]]]) -> list[str]:
    return [case[0].__name__ for case in cases]


@pytest.mark.parametrize(("mutant", "name", "arguments"), CASES, ids=names(CASES))
def test_the_suite_catches_a_broken_backend(
    mutant: type[MemoryBackend], name: str, arguments: dict[str, Any]
) -> None:
    class Suite(MemoryHooks, BackendContract):
        silence = 0.05

    class Broken(Suite):
        backend_class = mutant
        patience = 0.2

    check_that_it_catches(Suite, Broken, name, arguments)


@pytest.mark.parametrize(("mutant", "name", "arguments"), WORKER_CASES, ids=names(WORKER_CASES))
def test_the_suite_catches_a_broken_worker(
    mutant: type[Worker] | DeliveryMutant, name: str, arguments: dict[str, Any]
) -> None:
    class Suite(MemoryHooks, WorkerContract):
        silence = 0.05
        patience = 10.0

    class Broken(Suite):
        patience = 1.0

    if issubclass(mutant, Worker):
        Broken.worker_class = mutant
    else:
        Broken.backend_class = worker_mutants.misled(mutant)
    check_that_it_catches(Suite, Broken, name, arguments)


def check_that_it_catches(
    healthy: type[MemoryHooks], broken: type[MemoryHooks], name: str, arguments: dict[str, Any]
) -> None:
    assert run(healthy, name, arguments) is None, "the healthy one fails"
    failure = run(broken, name, arguments)
    assert isinstance(failure, AssertionError | TimeoutError | pytest.fail.Exception), failure


def run(suite_class: type[MemoryHooks], name: str, arguments: dict[str, Any]) -> Any:
    """Run one test of a suite and return what it raised; its jobs and backends are forgotten."""
    suite = suite_class()
    suite.setup_method()
    jobs = dict(registry._jobs)
    try:
        asyncio.run(getattr(suite, name)(**arguments))
    except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - looked at by the caller
        return error
    finally:
        suite.teardown_method()
        registry._jobs = jobs
        backends.reset()
    return None
