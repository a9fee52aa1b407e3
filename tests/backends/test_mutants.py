"""The contract suite is itself under test: every broken backend must fail the named test."""

import asyncio
from typing import Any

import pytest

from django_jobq.backends.memory import MemoryBackend
from tests.backends import mutants
from tests.backends.contract import BackendContract
from tests.backends.memory_contract import MemoryHooks

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


@pytest.mark.parametrize(
    ("mutant", "name", "arguments"), CASES, ids=[f"{case[0].__name__}" for case in CASES]
)
def test_the_suite_catches_a_broken_backend(
    mutant: type[MemoryBackend], name: str, arguments: dict[str, Any]
) -> None:
    assert run(MemoryBackend, name, arguments) is None, "the healthy backend fails"
    failure = run(mutant, name, arguments)
    assert isinstance(failure, AssertionError | TimeoutError | pytest.fail.Exception), failure


def run(backend: type[MemoryBackend], name: str, arguments: dict[str, Any]) -> BaseException | None:
    """Run one test of the suite against a backend and return what it raised."""

    class Suite(MemoryHooks, BackendContract):
        backend_class = backend
        patience = 0.2
        silence = 0.05

    suite = Suite()
    suite.setup_method()
    try:
        asyncio.run(getattr(suite, name)(**arguments))
    except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - looked at by the caller
        return error
    finally:
        suite.teardown_method()
    return None
