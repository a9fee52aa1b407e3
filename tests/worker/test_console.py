"""Log lines on the terminal, only where the project's LOGGING leaves ours alone."""

import io
import logging
from collections.abc import Iterator

import pytest

from django_jobq.worker.console import show_logs


@pytest.fixture
def root() -> logging.Logger:
    """Return a root logger of the test's own, since pytest's has handlers."""
    return logging.RootLogger(logging.WARNING)


@pytest.fixture
def logger(root: logging.Logger) -> Iterator[logging.Logger]:
    """Return our logger as it is when LOGGING says nothing."""
    ours = logging.getLogger("django_jobq")
    kept = ours.level, ours.handlers[:], ours.parent
    ours.handlers[:] = []
    ours.parent = root
    ours.setLevel(logging.NOTSET)
    yield ours
    ours.handlers[:], ours.parent = kept[1:]
    ours.setLevel(kept[0])


@pytest.mark.parametrize(
    ("verbosity", "shown"),
    [(0, "WE"), (1, "IWE"), (2, "DIWE"), (3, "DIWE")],
)
def test_verbosity_is_the_level_of_our_logger(
    logger: logging.Logger,
    root: logging.Logger,
    capsys: pytest.CaptureFixture[str],
    verbosity: int,
    shown: str,
) -> None:
    show_logs(verbosity)
    child = logging.getLogger("django_jobq.worker")
    child.debug("line D")
    child.info("line I")
    child.warning("line W")
    child.error("line E")

    lines = capsys.readouterr().err.splitlines()
    assert "".join(line[-1] for line in lines) == shown
    assert root.level == logging.WARNING
    assert root.handlers == []


def test_line_has_time_level_and_text(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    show_logs(1)
    logger.info("Job %s succeeded", "shop.send")

    clock, level, text = capsys.readouterr().err.rstrip("\n").split(maxsplit=2)
    assert [len(part) for part in clock.split(":")] == [2, 2, 2]
    assert (level, text) == ("INFO", "Job shop.send succeeded")


def test_calling_it_again_doubles_no_line(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    show_logs(1)
    show_logs(1)
    logger.info("once")

    assert len(logger.handlers) == 1
    assert capsys.readouterr().err.count("once") == 1


def test_project_that_handles_our_logger_keeps_its_handlers(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    own = io.StringIO()
    logger.addHandler(logging.StreamHandler(own))
    logger.setLevel(logging.ERROR)

    show_logs(2)
    logger.warning("too low for the project")
    logger.error("once")

    assert logger.level == logging.ERROR
    assert own.getvalue() == "once\n"
    assert capsys.readouterr().err == ""


def test_project_that_handles_everything_gets_no_doubled_lines(
    logger: logging.Logger, root: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    own = io.StringIO()
    root.addHandler(logging.StreamHandler(own))

    show_logs(1)
    logger.error("once")

    assert logger.handlers == []
    assert own.getvalue() == "once\n"
    assert capsys.readouterr().err == ""


def test_project_that_wants_only_warnings_of_everything_gets_only_those(
    logger: logging.Logger, root: logging.Logger
) -> None:
    """A root logger at WARNING is a project's own configuration of all records, ours included."""
    own = io.StringIO()
    root.addHandler(logging.StreamHandler(own))

    show_logs(1)
    logger.info("a line for each job")
    logger.warning("a warning")

    assert own.getvalue() == "a warning\n"


def test_level_alone_is_kept(logger: logging.Logger, capsys: pytest.CaptureFixture[str]) -> None:
    """A project may set the level of our logger and leave the handler to us."""
    logger.setLevel(logging.ERROR)

    show_logs(1)
    logger.warning("too low for the project")
    logger.error("once")

    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("once")
