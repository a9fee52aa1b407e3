"""decide(): a table of how attempts end and what becomes of them."""

import asyncio
import dataclasses
from collections.abc import Callable

import pytest

from django_jobq import Defer, Fatal, JobTimeout, Retry, RetryPolicy
from django_jobq.worker.outcomes import (
    DeadLettered,
    Deferred,
    Outcome,
    Retried,
    Rules,
    Succeeded,
    decide,
)

NEVER = RetryPolicy.none()
FIXED = RetryPolicy.fixed(3, delay="7s")
GROWING = RetryPolicy.exponential(5, base="2s", factor=3.0, max="1m", jitter=False)


def refuse_to_share() -> float:
    raise AssertionError("the policy was consulted")


def rules(policy: RetryPolicy = FIXED, **limits: object) -> Rules:
    return Rules(policy=policy, **limits)  # type: ignore[arg-type]


@pytest.mark.contract(53, 60, 81, 93, 97)
@pytest.mark.parametrize(
    ("error", "attempt", "given", "expected"),
    [
        pytest.param(None, 1, rules(), Succeeded(), id="returned"),
        pytest.param(None, 9, rules(NEVER), Succeeded(), id="returned-above-the-limit"),
        pytest.param(ValueError(), 1, rules(), Retried(7.0), id="failed"),
        pytest.param(ValueError(), 2, rules(), Retried(7.0), id="failed-again"),
        pytest.param(ValueError(), 1, rules(GROWING), Retried(2.0), id="first-backoff"),
        pytest.param(ValueError(), 3, rules(GROWING), Retried(18.0), id="third-backoff"),
        pytest.param(ValueError(), 4, rules(GROWING), Retried(54.0), id="backoff-below-its-cap"),
        pytest.param(SystemExit(1), 1, rules(), Retried(7.0), id="exited"),
        pytest.param(KeyboardInterrupt(), 1, rules(), Retried(7.0), id="interrupted"),
        pytest.param(asyncio.CancelledError(), 1, rules(), Retried(7.0), id="cancelled-itself"),
        pytest.param(JobTimeout("late"), 1, rules(), Retried(7.0), id="timed-out"),
        pytest.param(Retry(), 1, rules(), Retried(7.0), id="asked-for-a-retry"),
        pytest.param(Retry("3s"), 1, rules(), Retried(3.0), id="asked-for-a-retry-after"),
        pytest.param(Retry("0s"), 1, rules(), Retried(0.0), id="asked-for-a-retry-at-once"),
        pytest.param(Defer("4s"), 1, rules(), Deferred(4.0, "deferred"), id="deferred"),
        pytest.param(
            Defer("4s", reason="busy"), 1, rules(NEVER), Deferred(4.0, "busy"), id="deferred-why"
        ),
        pytest.param(
            Defer("4s"), 9, rules(), Deferred(4.0, "deferred"), id="deferred-above-the-limit"
        ),
        pytest.param(
            ValueError(),
            1,
            rules(retry_on=(ValueError,)),
            Retried(7.0),
            id="named-by-retry-on",
        ),
        pytest.param(
            UnicodeError(),
            1,
            rules(retry_on=(OSError, ValueError)),
            Retried(7.0),
            id="subclass-named-by-retry-on",
        ),
        pytest.param(
            Retry(), 1, rules(retry_on=(OSError,)), Retried(7.0), id="retry-beside-retry-on"
        ),
        pytest.param(
            JobTimeout(), 1, rules(retry_on=(OSError,)), Retried(7.0), id="timeout-beside-retry-on"
        ),
        pytest.param(
            Defer("1s"),
            1,
            rules(fatal_on=(Exception,)),
            Deferred(1.0, "deferred"),
            id="deferral-beside-fatal-on",
        ),
    ],
)
def test_what_goes_on(
    error: BaseException | None, attempt: int, given: Rules, expected: Outcome
) -> None:
    assert decide(error, attempt, given, "text") == expected


@pytest.mark.contract(81, 82, 93, 108, 109)
@pytest.mark.parametrize(
    ("error", "attempt", "given", "cause"),
    [
        pytest.param(ValueError(), 1, rules(NEVER), "exhausted", id="one-attempt"),
        pytest.param(ValueError(), 3, rules(), "exhausted", id="last-attempt"),
        pytest.param(ValueError(), 4, rules(), "exhausted", id="beyond-the-limit"),
        pytest.param(JobTimeout("t"), 3, rules(), "exhausted", id="timed-out-last"),
        pytest.param(Retry("1s"), 3, rules(), "exhausted", id="retry-asked-on-the-last-attempt"),
        pytest.param(SystemExit(0), 1, rules(NEVER), "exhausted", id="exited-last"),
        pytest.param(Fatal("no such order"), 1, rules(), "fatal", id="fatal"),
        pytest.param(Fatal(), 1, rules(NEVER), "fatal", id="fatal-on-the-last-attempt"),
        pytest.param(KeyError(), 1, rules(fatal_on=(LookupError,)), "fatal", id="fatal-on"),
        pytest.param(
            KeyError(),
            1,
            rules(retry_on=(KeyError,), fatal_on=(KeyError,)),
            "fatal",
            id="fatal-on-before-retry-on",
        ),
        pytest.param(
            ValueError(), 1, rules(retry_on=(OSError,)), "fatal", id="not-named-by-retry-on"
        ),
        pytest.param(
            JobTimeout(), 1, rules(fatal_on=(JobTimeout,)), "fatal", id="timeout-made-fatal"
        ),
    ],
)
def test_what_is_given_up(error: BaseException, attempt: int, given: Rules, cause: str) -> None:
    outcome = decide(error, attempt, given, "text")

    assert isinstance(outcome, DeadLettered)
    assert outcome.cause == cause


@pytest.mark.contract(109)
def test_exhausted_reason_has_error_limit_and_attempt() -> None:
    outcome = decide(ValueError(), 17, rules(RetryPolicy.none(13)), "ValueError: out of stock")

    assert isinstance(outcome, DeadLettered)
    assert "ValueError: out of stock" in outcome.reason
    assert "17" in outcome.reason
    assert "13" in outcome.reason


@pytest.mark.parametrize(
    ("error", "limits", "words"),
    [
        (Fatal("no such order"), {}, "no such order"),
        (KeyError(), {"fatal_on": (KeyError,)}, "KeyError: 'sku'"),
        (KeyError(), {"retry_on": (OSError,)}, "KeyError: 'sku'"),
    ],
)
def test_fatal_reason_says_why(error: BaseException, limits: dict[str, object], words: str) -> None:
    outcome = decide(error, 1, rules(**limits), "KeyError: 'sku'")

    assert isinstance(outcome, DeadLettered)
    assert words in outcome.reason


def test_retry_on_is_named_when_it_was_the_reason() -> None:
    outcome = decide(ValueError(), 1, rules(retry_on=(OSError,)), "ValueError: x")

    assert isinstance(outcome, DeadLettered)
    assert "retry_on" in outcome.reason


def test_jitter_takes_its_share_from_the_caller() -> None:
    policy = RetryPolicy.exponential(3, base="8s")

    assert decide(ValueError(), 1, rules(policy), share=lambda: 0.25) == Retried(2.0)
    assert decide(ValueError(), 2, rules(policy), share=lambda: 0.5) == Retried(8.0)


@pytest.mark.contract(99)
@pytest.mark.parametrize("error", [None, Defer("1s"), Fatal()])
def test_policy_is_not_consulted_without_a_failure(error: BaseException | None) -> None:
    jittered = rules(RetryPolicy.exponential(5))

    outcome = decide(error, 1, jittered, share=refuse_to_share)

    assert not isinstance(outcome, Retried)


def test_policy_is_consulted_for_a_failure() -> None:
    with pytest.raises(AssertionError, match="consulted"):
        decide(ValueError(), 1, rules(RetryPolicy.exponential(5)), share=refuse_to_share)


@pytest.mark.contract(80)
@pytest.mark.parametrize("limit", [1, 2, 5])
def test_always_failing_runs_exactly_max_attempts(limit: int) -> None:
    given = rules(RetryPolicy.none(limit))
    attempt = 1
    while isinstance(decide(ValueError(), attempt, given), Retried):
        attempt += 1

    assert attempt == limit


@pytest.mark.parametrize(
    "make", [lambda: Retried(1.0), lambda: Deferred(1.0, "x"), lambda: DeadLettered("fatal", "x")]
)
def test_outcomes_are_values(make: Callable[[], Outcome]) -> None:
    assert make() == make()
    assert hash(make()) == hash(make())
    name = dataclasses.fields(make())[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(make(), name, "changed")
