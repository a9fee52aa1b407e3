"""What the trials share: a project of its own for tests that need real processes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.trials.project import Project


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    made = Project(tmp_path)
    yield made
    made.close()
