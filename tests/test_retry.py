"""Retry policies: declarations, decisions and backoff."""

import itertools
import json
import math
import random
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from django_jobq import job
from django_jobq.exceptions import InvalidJob
from django_jobq.queues import parse_queues
from django_jobq.retry import RetryPolicy, exponential_backoff

INFINITE = float("inf")
NAN = float("nan")
LAST_ATTEMPT = 2**32 - 1


@pytest.mark.contract(84)
def test_the_exponential_defaults() -> None:
    assert (
        RetryPolicy()
        == RetryPolicy.exponential()
        == RetryPolicy(
            max_attempts=3,
            backoff="exponential",
            delay=0.0,
            base=1.0,
            factor=2.0,
            max=300.0,
            jitter=True,
        )
    )


@pytest.mark.contract(82, 95)
@pytest.mark.parametrize(
    ("declaration", "policy"),
    [
        (1, RetryPolicy(max_attempts=1)),
        (5, RetryPolicy(max_attempts=5)),
        ({}, RetryPolicy(max_attempts=3)),
        ({"base": "500ms"}, RetryPolicy(max_attempts=3, base=0.5)),
        ({"max_attempts": 4, "base": 2, "max": "1m"}, RetryPolicy(max_attempts=4, base=2, max=60)),
        ({"factor": 3, "jitter": False}, RetryPolicy(factor=3, jitter=False)),
        ({"backoff": "fixed", "delay": "10s"}, RetryPolicy(backoff="fixed", delay=10)),
        ({"backoff": "fixed", "delay": "0s"}, RetryPolicy(backoff="fixed", delay=0)),
        ({"backoff": "fixed", "delay": 0}, RetryPolicy(backoff="fixed", delay=0)),
        (
            {"backoff": "fixed", "delay": timedelta(milliseconds=1)},
            RetryPolicy(backoff="fixed", delay=0.001),
        ),
        ({"backoff": "none"}, RetryPolicy(max_attempts=3, backoff="none")),
        ({"backoff": "none", "max_attempts": 9}, RetryPolicy(max_attempts=9, backoff="none")),
        (RetryPolicy.fixed(2, delay="5m"), RetryPolicy(max_attempts=2, backoff="fixed", delay=300)),
        (RetryPolicy.fixed(delay="1s"), RetryPolicy(max_attempts=3, backoff="fixed", delay=1)),
        (RetryPolicy.none(), RetryPolicy(max_attempts=1, backoff="none")),
        (RetryPolicy.none(4), RetryPolicy(max_attempts=4, backoff="none")),
        (
            RetryPolicy.exponential(7, base="2s", factor=1.5, max="1h", jitter=False),
            RetryPolicy(max_attempts=7, base=2, factor=1.5, max=3600, jitter=False),
        ),
    ],
)
def test_declarations(declaration, policy: RetryPolicy) -> None:
    assert RetryPolicy.parse(declaration) == policy


@pytest.mark.contract(95)
@pytest.mark.parametrize(
    ("declaration", "message"),
    [
        (0, "retry: max_attempts 0 is no whole number from 1"),
        (-1, "retry: max_attempts -1 is no whole number from 1"),
        ({"max_attempts": 0}, "retry: max_attempts 0 is no whole number from 1"),
        ({"max_attempts": 2.0}, "retry: max_attempts 2.0 is no whole number from 1"),
        ({"max_attempts": "3"}, "retry: max_attempts '3' is no whole number from 1"),
        ({"max_attempts": None}, "retry: max_attempts None is no whole number from 1"),
        ({"max_attempts": True}, "retry: max_attempts True is no whole number from 1"),
        (True, "retry: True is neither a number of attempts, a dict nor a RetryPolicy"),
        ("3", "retry: '3' is neither a number of attempts, a dict nor a RetryPolicy"),
        (2.5, "retry: 2.5 is neither a number of attempts, a dict nor a RetryPolicy"),
        (None, "retry: None is neither a number of attempts, a dict nor a RetryPolicy"),
        ({"base": "10m"}, "retry: base (600 s) must lie above 0 and not above max"),
        ({"base": "5s", "max": "4s"}, "retry: base (5 s) must lie above 0 and not above max"),
        ({"factor": 0}, "retry: factor 0 is no finite number above 0"),
        ({"factor": -2}, "retry: factor -2 is no finite number above 0"),
        ({"factor": NAN}, "retry: factor nan is no finite number above 0"),
        ({"factor": INFINITE}, "retry: factor inf is no finite number above 0"),
        ({"factor": "2"}, "retry: factor '2' is no finite number above 0"),
        ({"factor": True}, "retry: factor True is no finite number above 0"),
        ({"jitter": 1}, "retry: jitter 1 is neither True nor False"),
        ({"jitter": "full"}, "retry: jitter 'full' is neither True nor False"),
        ({"backoff": "fixed"}, "retry: fixed backoff needs the key 'delay'"),
        (
            {"delay": "5s"},
            "retry: key 'delay' does not go with exponential backoff; allowed are backoff, base,"
            " factor, jitter, max, max_attempts",
        ),
        (
            {"backoff": "none", "delay": "5s"},
            "retry: key 'delay' does not go with none backoff; allowed are backoff, max_attempts",
        ),
        (
            {"backoff": "fixed", "delay": "5s", "jitter": True},
            "retry: key 'jitter' does not go with fixed backoff; allowed are backoff, delay,"
            " max_attempts",
        ),
        (
            {"attempts": 3},
            "retry: key 'attempts' does not go with exponential backoff; allowed are backoff, base,"
            " factor, jitter, max, max_attempts",
        ),
        ({"backoff": "linear"}, "retry: backoff 'linear' is none of exponential, fixed, none"),
        ({"backoff": None}, "retry: backoff None is none of exponential, fixed, none"),
        ({"base": "0s"}, "retry: base: '0s' is zero; it must be longer"),
        ({"base": 0}, "retry: base: 0 is zero; it must be longer"),
        ({"max": "0s"}, "retry: max: '0s' is zero; it must be longer"),
        (
            {"base": 1.5},
            "retry: base: 1.5 is no duration: write text with a unit such as '30s' or '5m', or a"
            " timedelta",
        ),
        (
            {"max": "5 minutes"},
            "retry: max: '5 minutes' is no duration: write a whole number and a unit, as in"
            " '500ms', '30s', '5m', '2h' or '1d'",
        ),
        (
            {"backoff": "fixed", "delay": "-1s"},
            "retry: delay: '-1s' is no duration: write a whole number and a unit, as in '500ms',"
            " '30s', '5m', '2h' or '1d'",
        ),
    ],
)
def test_a_wrong_declaration_is_refused_naming_the_key(declaration, message: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        RetryPolicy.parse(declaration)
    assert str(caught.value) == message


@pytest.mark.contract(95)
@pytest.mark.parametrize(
    ("declaration", "key"),
    [
        ({"backoff": ["fixed"]}, "backoff"),
        ({"backoff": "linear", "step": 1}, "backoff"),
        ({"backoff": "linear", "delay": "1s"}, "backoff"),
    ],
)
def test_an_unknown_backoff_is_refused_whatever_stands_beside_it(declaration, key: str) -> None:
    with pytest.raises(InvalidJob, match=rf"^retry: {key} .* none of exponential, fixed, none$"):
        RetryPolicy.parse(declaration)


@pytest.mark.contract(95)
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_attempts": 0}, "retry: max_attempts 0 is no whole number from 1"),
        (
            {"delay": "5s"},
            "retry: delay '5s' is no number of seconds; RetryPolicy.parse reads text",
        ),
        ({"base": NAN}, "retry: base nan is no number of seconds; RetryPolicy.parse reads text"),
        ({"max": INFINITE}, "retry: max inf is no number of seconds; RetryPolicy.parse reads text"),
        ({"delay": -1}, "retry: delay -1 is no number of seconds; RetryPolicy.parse reads text"),
        ({"base": 0}, "retry: base (0 s) must lie above 0 and not above max"),
    ],
)
def test_the_constructor_takes_plain_seconds_and_checks_them(fields, message: str) -> None:
    with pytest.raises(InvalidJob) as caught:
        RetryPolicy(**fields)
    assert str(caught.value) == message


@pytest.mark.contract(95)
def test_a_job_with_a_wrong_declaration_is_refused_where_it_is_defined() -> None:
    with pytest.raises(InvalidJob, match="retry: max_attempts 0 is no whole number from 1"):

        @job(name="wrong", retry=0)
        def wrong() -> None: ...


@pytest.mark.contract(95)
def test_a_queue_with_a_wrong_declaration_is_refused_with_its_path() -> None:
    with pytest.raises(InvalidJob) as caught:
        parse_queues({"email": {"retry": {"factor": 0}}}, "QUEUES")
    assert str(caught.value) == (
        "QUEUES['email']['retry']: retry: factor 0 is no finite number above 0"
    )


@pytest.mark.contract(81)
@pytest.mark.parametrize("policy", [RetryPolicy.none(3), RetryPolicy.fixed(3, delay="4s")])
def test_the_decision_is_to_retry_below_the_limit_and_to_give_up_at_it(policy: RetryPolicy) -> None:
    wait = policy.delay_after(1)
    assert wait == policy.delay
    assert [policy.delay_after(attempt) for attempt in (1, 2, 3, 4, LAST_ATTEMPT)] == [
        wait,
        wait,
        None,
        None,
        None,
    ]


@pytest.mark.contract(81, 82)
def test_a_single_attempt_is_given_up_at_once() -> None:
    assert RetryPolicy.none().delay_after(1) is None
    assert RetryPolicy.parse(1).delay_after(1) is None


@pytest.mark.contract(83)
@pytest.mark.parametrize(
    ("policy", "waits"),
    [
        (RetryPolicy.none(9), [0, 0, 0, 0]),
        (RetryPolicy.fixed(9, delay="7s"), [7, 7, 7, 7]),
        (RetryPolicy.exponential(9, jitter=False), [1, 2, 4, 8]),
        (RetryPolicy.exponential(9, base="2s", factor=3, max="50s", jitter=False), [2, 6, 18, 50]),
        (RetryPolicy.exponential(9, base="8s", factor=0.5, jitter=False), [8, 4, 2, 1]),
        (RetryPolicy.exponential(9, base="5s", max="5s", jitter=False), [5, 5, 5, 5]),
    ],
)
def test_the_wait_after_each_attempt(policy: RetryPolicy, waits: list[float]) -> None:
    assert [policy.delay_after(attempt) for attempt in (1, 2, 3, 4)] == waits


@pytest.mark.contract(85)
@pytest.mark.parametrize(
    ("share", "attempt", "wait"),
    [(0.0, 1, 0.0), (0.5, 1, 0.5), (0.5, 3, 2.0), (0.25, 50, 75.0), (0.999, 50, 299.7)],
)
def test_jitter_takes_a_share_of_the_capped_wait(share: float, attempt: int, wait: float) -> None:
    policy = RetryPolicy.exponential(100)
    assert policy.delay_after(attempt, share=lambda: share) == pytest.approx(wait)


@pytest.mark.contract(85)
@pytest.mark.parametrize(("attempt", "computed"), [(1, 1.0), (4, 8.0), (60, 300.0)])
def test_jitter_spreads_over_the_computed_wait(attempt: int, computed: float) -> None:
    policy = RetryPolicy.exponential(100)
    share = random.Random(attempt).random
    waits = [policy.delay_after(attempt, share) or 0.0 for _ in range(500)]
    assert all(0 <= wait <= computed for wait in waits)
    assert len(set(waits)) > 450
    assert min(waits) < 0.1 * computed
    assert max(waits) > 0.9 * computed


@pytest.mark.contract(85)
def test_jitter_draws_anew_by_default() -> None:
    policy = RetryPolicy.exponential(10)
    assert len({policy.delay_after(3) for _ in range(50)}) > 1


@pytest.mark.contract(83)
def test_jitter_leaves_a_fixed_wait_alone() -> None:
    assert RetryPolicy.fixed(9, delay="7s").delay_after(1, share=lambda: 0.5) == 7


@pytest.mark.contract(86)
@pytest.mark.parametrize(
    ("attempt", "base", "factor", "longest"),
    list(
        itertools.product(
            (0, 1, 2, LAST_ATTEMPT),
            (0.0, 1.0, 1e300),
            (NAN, INFINITE, -INFINITE, 0.0, -2.0, 1e-300, 0.5, 1.0, 2.0, 1e300),
            (0.0, 300.0),
        )
    ),
)
def test_the_backoff_never_raises_and_keeps_within_its_bounds(
    attempt: int, base: float, factor: float, longest: float
) -> None:
    wait = exponential_backoff(attempt, base=base, factor=factor, longest=longest)
    assert math.isfinite(wait)
    assert 0 <= wait <= longest


@pytest.mark.contract(86)
@pytest.mark.parametrize(
    ("attempt", "factor", "wait"),
    [(0, 2.0, 1.0), (1, 2.0, 1.0), (LAST_ATTEMPT, 2.0, 300.0), (5, NAN, 1.0), (5, -2.0, 1.0)],
)
def test_the_backoff_at_its_edges(attempt: int, factor: float, wait: float) -> None:
    assert exponential_backoff(attempt, base=1.0, factor=factor, longest=300.0) == wait


@pytest.mark.contract(86)
def test_a_whole_factor_costs_no_more_than_a_broken_one() -> None:
    # In a process of its own: a power of whole numbers this large would take hours.
    code = (
        "from django_jobq.retry import RetryPolicy;"
        f"policy = RetryPolicy.exponential({LAST_ATTEMPT + 1}, factor=2, jitter=False);"
        f"print(policy.delay_after({LAST_ATTEMPT}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parent.parent,
        capture_output=True,
        text=True,
        timeout=5,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == ("300.0", "")


@pytest.mark.contract(94)
@pytest.mark.parametrize(
    "policy",
    [
        RetryPolicy(),
        RetryPolicy.none(4),
        RetryPolicy.fixed(2, delay="1ms"),
        RetryPolicy.exponential(12, base="7ms", factor=1.1, max="2d", jitter=False),
        RetryPolicy.exponential(12, factor=3, jitter=True),
    ],
)
def test_a_policy_decides_the_same_after_a_journey_as_json(policy: RetryPolicy) -> None:
    reloaded = RetryPolicy.from_json(json.loads(json.dumps(policy.to_json())))
    assert reloaded == policy
    decisions = [
        [chosen.delay_after(attempt, share=lambda: 0.37) for attempt in range(1, 15)]
        for chosen in (policy, reloaded)
    ]
    assert decisions[0] == decisions[1]


def test_the_json_form_is_plain_seconds() -> None:
    assert RetryPolicy.exponential(5, base="500ms", max="2m").to_json() == {
        "max_attempts": 5,
        "backoff": "exponential",
        "delay": 0.0,
        "base": 0.5,
        "factor": 2.0,
        "max": 120.0,
        "jitter": True,
    }


@pytest.mark.contract(94)
def test_keys_of_a_later_version_are_left_out_and_missing_ones_have_their_default() -> None:
    assert RetryPolicy.from_json({"max_attempts": 5, "colour": "red"}) == RetryPolicy(
        max_attempts=5
    )


def test_a_policy_is_a_value() -> None:
    policy = RetryPolicy.exponential(5)
    assert policy == RetryPolicy.exponential(5)
    assert hash(policy) == hash(RetryPolicy.exponential(5))
    with pytest.raises(AttributeError):
        policy.max_attempts = 6  # type: ignore[misc]
