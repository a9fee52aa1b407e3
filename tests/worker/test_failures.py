"""Exceptions as text, including those that resist being described."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from django_jobq import Fatal
from django_jobq.worker import failures
from django_jobq.worker.failures import MAX_CHAIN, MAX_MESSAGE, MAX_TRACEBACK, Failure, describe


class Unspeakable(Exception):
    """Fail while being shown."""

    def __init__(self, raised: BaseException) -> None:
        self.raised = raised
        super().__init__("hidden")

    def __str__(self) -> str:
        raise self.raised


def caught(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as raised:  # noqa: BLE001
        return raised


def test_kind_message_and_traceback() -> None:
    failure = describe(caught(ValueError("out of stock")))

    assert failure.kind == "builtins.ValueError"
    assert failure.message == "out of stock"
    assert "Traceback" in failure.traceback
    assert "in caught" in failure.traceback
    assert failure.traceback.rstrip().endswith("ValueError: out of stock")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("x"), "ValueError: x"),
        (Fatal("no such order"), "Fatal: no such order"),
        (Unspeakable(ValueError()), f"{__name__}.Unspeakable: <its message"),
    ],
)
def test_text_is_one_line_without_our_own_modules(error: BaseException, text: str) -> None:
    assert describe(error).text.startswith(text)


@pytest.mark.parametrize("second", [RuntimeError("no"), SystemExit(3), KeyboardInterrupt()])
def test_message_that_cannot_be_shown(second: BaseException) -> None:
    failure = describe(caught(Unspeakable(second)))

    assert failure.message == f"<its message cannot be shown: {type(second).__name__}>"
    assert failure.traceback


def test_traceback_that_cannot_be_shown() -> None:
    class Hostile(Exception):
        __suppress_context__ = property(lambda self: 1 / 0)  # type: ignore[assignment]

    failure = describe(Hostile("still here"))

    assert failure.message == "still here"
    assert failure.traceback == "<its traceback cannot be shown: ZeroDivisionError>"


@pytest.mark.contract(118)
def test_long_message_is_clipped_with_a_mark() -> None:
    failure = describe(ValueError("x" * 50_000))

    assert len(failure.message) == MAX_MESSAGE
    assert failure.message.startswith("xxx")
    assert "50,000" in failure.message


def test_long_traceback_keeps_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "_traceback", lambda error: "A" * 6_000 + "B" * 6_000 + "end")

    text = describe(ValueError()).traceback

    assert len(text) < MAX_TRACEBACK + 100
    assert text.startswith("A" * (MAX_TRACEBACK // 2))
    assert text.endswith("Bend")
    assert "12,003" in text


def test_explicit_causes_are_followed() -> None:
    error = ValueError("outer")
    error.__cause__ = caught(KeyError("inner"))

    text = describe(caught(error)).traceback

    assert text.index("ValueError: outer") < text.index("KeyError: 'inner'")
    assert "which was caused by" in text


def test_implicit_context_is_followed() -> None:
    error = ValueError("outer")
    error.__context__ = KeyError("inner")

    assert "KeyError: 'inner'" in describe(error).traceback


def test_suppressed_context_is_left_out() -> None:
    error = ValueError("outer")
    error.__context__ = KeyError("inner")
    error.__suppress_context__ = True

    assert "KeyError" not in describe(error).traceback


def test_endless_chain_ends() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__context__, second.__context__ = second, first

    text = describe(first).traceback

    assert text.count("ValueError: ") == MAX_CHAIN
    assert text.rstrip().endswith("[more causes]")


def test_chain_of_the_longest_length_is_complete() -> None:
    error = root = ValueError("0")
    for number in range(1, MAX_CHAIN):
        root.__cause__ = ValueError(str(number))
        root = root.__cause__

    text = describe(error).traceback

    assert text.count("ValueError: ") == MAX_CHAIN
    assert "more causes" not in text


def test_deep_recursion_is_shown_shortened() -> None:
    def dive() -> None:
        dive()

    try:
        dive()
    except RecursionError as error:
        failure = describe(error)

    assert failure.kind == "builtins.RecursionError"
    assert len(failure.traceback) < MAX_TRACEBACK + 100


def test_frames_of_the_worker_are_left_out() -> None:
    source = compile("def call(func):\n    func()\n", "worker_file.py", "exec")
    inside: dict[str, object] = {"__name__": "django_jobq.worker.attempt"}
    exec(source, inside)

    def fail() -> None:
        raise ValueError("x")

    try:
        inside["call"](fail)  # type: ignore[operator]
    except ValueError as error:
        text = describe(error.with_traceback(error.__traceback__.tb_next)).traceback  # type: ignore[union-attr]

    assert "worker_file.py" not in text
    assert "in fail" in text


def test_describing_changes_the_exception_as_little_as_logging_does() -> None:
    error = caught(ValueError("x"))
    before = error.args, error.__cause__, error.__context__

    describe(error)

    assert (error.args, error.__cause__, error.__context__) == before


@pytest.mark.contract(107)
def test_history_entry() -> None:
    failure = Failure(
        kind="builtins.ValueError", message="x", traceback="trace", place="shop.jobs:ship"
    )
    before = time.time_ns() // 1_000_000

    entry = failure.to_json(4, with_traceback=False)

    assert before <= entry.pop("at") <= time.time_ns() // 1_000_000
    assert entry == {
        "attempt": 4,
        "type": "builtins.ValueError",
        "message": "x",
        "place": "shop.jobs:ship",
    }
    assert failure.to_json(4, with_traceback=True)["traceback"] == "trace"


def test_the_place_is_the_innermost_function_of_the_project() -> None:
    """What the project calls is not to blame, however deep it raises."""

    def parse() -> None:
        json.loads("{")

    assert describe(raised_by(parse)).place.endswith("of_the_project.<locals>.parse")
    assert describe(raised_by(parse)).place.startswith(f"{__name__}:")


def test_the_place_is_where_anything_failed_if_nothing_is_of_the_project() -> None:
    class FromElsewhere(ValueError):
        pass

    code = compile("def work(): 1 / 0", "/venv/lib/python3.11/site-packages/lib.py", "exec")
    namespace: dict[str, Any] = {"__name__": "lib"}
    exec(code, namespace)
    error = raised_by(namespace["work"])
    assert error.__traceback__ is not None
    error.__traceback__ = error.__traceback__.tb_next
    assert describe(error).place == "lib:work"
    assert describe(FromElsewhere("never raised")).place == ""


def raised_by(call: Callable[[], object]) -> BaseException:
    try:
        call()
    except Exception as error:  # noqa: BLE001
        return error
    raise AssertionError("nothing was raised")
