"""The public names: listed, sorted and complete."""

import inspect
import re

import pytest

import django_jobq
from django_jobq.backends import memory


@pytest.mark.parametrize("module", [django_jobq, memory])
def test_the_public_names_are_sorted_and_complete(module) -> None:
    public = [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and not inspect.ismodule(value)
    ]
    assert module.__all__ == sorted(public)


def test_nothing_else_is_promised() -> None:
    assert django_jobq.__all__ == [
        "Defer",
        "EnqueuedJob",
        "Fatal",
        "Job",
        "JobContext",
        "JobControl",
        "JobTimeout",
        "PreparedJob",
        "Retry",
        "RetryPolicy",
        "aenqueue_many",
        "current_job",
        "enqueue_many",
        "job",
    ]


@pytest.mark.parametrize("name", django_jobq.__all__)
def test_every_public_name_is_documented_in_a_sentence(name: str) -> None:
    text = inspect.getdoc(getattr(django_jobq, name)) or ""
    assert re.match(r"[A-Z@].*[.:]", text.partition("\n")[0])


def test_the_version_is_one() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+((a|b|rc)\d+|\.dev\d+)?", django_jobq.__version__)
