"""Map the lines of docs/reference/behaviour.md to tests that were collected and passed.

Run it after the tests: it reads the record they left, and fails if a required line has no passing
test, if a test marks a line that the page does not have, or if too many lines are waived.
"""

from __future__ import annotations

import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "reference" / "behaviour.md"
RECORD = ROOT / "build" / "contract.json"

REQUIRED = (
    "1-17 19-48 50-70 72-75 77-88 91-114 116 118-131 133 195-202"  # everything but a transport
)
# A backend's own lines must be checked on that backend, not only somewhere.
PER_BACKEND = {"memory": "1-12 14-17 19-33 120-131 133"}
NEVER_WAIVED = "6-12 23-33 57 61 64-66"
MOST_WAIVED = 5
WAIVED: dict[int, str] = {}


def expand(ranges: str) -> set[int]:
    """Return the numbers of a text such as '1-3 7'."""
    found: set[int] = set()
    for part in ranges.split():
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def problems(page: str, record: dict[str, dict[str, object]]) -> Iterable[str]:
    """Yield what is missing or wrong."""
    known = {int(number) for number in re.findall(r"^\*\*(\d+)\.\*\*", page, re.MULTILINE)}
    passed: dict[str, set[int]] = defaultdict(set)
    for test, entry in record.items():
        lines = set(entry["lines"])  # type: ignore[call-overload]
        for line in sorted(lines - known):
            yield f"{test} marks line {line}, which the page does not have"
        if entry["passed"]:
            passed[str(entry["backend"])] |= lines
    anywhere = set().union(*passed.values()) if passed else set()
    for line in sorted(expand(REQUIRED) - anywhere - set(WAIVED)):
        yield f"line {line} has no passing test"
    for backend, ranges in PER_BACKEND.items():
        for line in sorted(expand(ranges) - passed[backend] - set(WAIVED)):
            yield f"line {line} has no passing test on the {backend} backend"
    for line in sorted(set(WAIVED) & expand(NEVER_WAIVED)):
        yield f"line {line} may not be waived"
    if len(WAIVED) > MOST_WAIVED:
        yield f"{len(WAIVED)} lines are waived, more than {MOST_WAIVED}"


def main() -> int:
    if not RECORD.exists():
        print(f"{RECORD.relative_to(ROOT)} is missing: run the tests first", file=sys.stderr)
        return 1
    record = json.loads(RECORD.read_text())
    found = list(problems(PAGE.read_text(), record))
    for problem in found:
        print(f"contract: {problem}", file=sys.stderr)
    if not found:
        lines = len(expand(REQUIRED)) - len(WAIVED)
        print(f"contract: {lines} lines are checked by {len(record)} passing tests")
        for line, reason in WAIVED.items():
            print(f"contract: line {line} is waived: {reason}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
