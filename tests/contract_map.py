"""Map the lines of docs/reference/behaviour.md to tests that were collected and passed.

Run it after the tests: it reads the records they left, and fails if a required line has no passing
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
RECORDS = ROOT / "build"

REQUIRED = "1-70 72-88 91-114 116 118-131 133-160 168 171-174 195-203"
# Lines that say how producer, worker and backend behave together, checked on each backend. Missing
# are pure functions (34-39, 78, 83-86, 90, 94-96) and what is told of jobs (195-202): no transport
# takes part in them.
_TOGETHER = "1-17 19-33 40-45 47-70 72-74 77 79-82 87-88 91-93 97-113 115-116 118-119"
# What is promised of stored jobs, checked on each database.
_STORED = (
    "10 13 22 26-27 29-32 40-45 47-70 72-74 76-77 79-82 87-88 91-93 97-113 115-119 151 160 165"
    " 167-168 171-174 195"
)
PER_BACKEND = {
    # A process that dies takes the jobs of this backend with it, so no other one sees them.
    "memory": f"{_TOGETHER} 120-131 133",
    "rabbitmq": f"{_TOGETHER} 18 46 75-76 114 131 134-159",
    "sqlite3": _STORED,
    "postgresql": _STORED,
    "mysql": _STORED,
}
NEVER_WAIVED = "6-12 23-33 51 57 61 64-66 146-150 152-154"
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
    files = sorted(RECORDS.glob("contract*.json"))
    if not files:
        print("there is no record in build/: run the tests first", file=sys.stderr)
        return 1
    record = {
        f"{test} ({file.stem})": entry
        for file in files
        for test, entry in json.loads(file.read_text()).items()
    }
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
