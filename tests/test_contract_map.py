"""The map must notice what is missing, or it proves nothing."""

from typing import Any

import pytest

from tests import contract_map
from tests.contract_map import expand, problems

PAGE = "**1.** One.\n\n**2.** Two.\n\n**3.** Three.\n"


@pytest.fixture(autouse=True)
def _small_contract(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract_map, "REQUIRED", "1-3")
    monkeypatch.setattr(contract_map, "PER_BACKEND", {"memory": "1-2", "rabbitmq": "2"})
    monkeypatch.setattr(contract_map, "NEVER_WAIVED", "1")
    monkeypatch.setattr(contract_map, "WAIVED", {})


def entry(backend: str, *lines: int, passed: bool = True) -> dict[str, Any]:
    return {"lines": list(lines), "backend": backend, "passed": passed}


COMPLETE = {
    "one": entry("memory", 1, 2),
    "two": entry("rabbitmq", 2),
    "three": entry("core", 3),
}


def test_ranges() -> None:
    assert expand("1-3 7 10-11") == {1, 2, 3, 7, 10, 11}
    assert expand("") == set()


def test_a_complete_record_has_no_problem() -> None:
    assert list(problems(PAGE, COMPLETE)) == []


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"three": entry("core")}, "line 3 has no passing test"),
        ({"three": entry("core", 3, passed=False)}, "line 3 has no passing test"),
        ({"two": entry("core", 2)}, "line 2 has no passing test on the rabbitmq backend"),
        (
            {"two": entry("rabbitmq", 2, passed=False)},
            "line 2 has no passing test on the rabbitmq backend",
        ),
        ({"four": entry("core", 4)}, "four marks line 4, which the page does not have"),
    ],
)
def test_what_is_missing_is_named(changed: dict[str, Any], problem: str) -> None:
    assert list(problems(PAGE, {**COMPLETE, **changed})) == [problem]


def test_waivers_are_few_and_not_for_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contract_map, "WAIVED", {3: "later"})
    without = {**COMPLETE, "three": entry("core")}
    assert list(problems(PAGE, without)) == []
    monkeypatch.setattr(contract_map, "WAIVED", {1: "never"})
    assert list(problems(PAGE, COMPLETE)) == ["line 1 may not be waived"]
    monkeypatch.setattr(contract_map, "WAIVED", dict.fromkeys(range(10, 20), "many"))
    assert list(problems(PAGE, COMPLETE)) == ["10 lines are waived, more than 5"]
