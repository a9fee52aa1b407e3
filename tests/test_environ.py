"""The job queue URL from the environment."""

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_jobq.conf import MEMORY_BACKEND
from django_jobq.environ import Env


def test_the_url_is_read_from_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBQ_URL", "memory://?max_pending=9")
    assert Env().jobq_url() == {"BACKEND": MEMORY_BACKEND, "OPTIONS": {"max_pending": 9}}


def test_another_variable_may_hold_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JOBQ_URL", raising=False)
    monkeypatch.setenv("SHOP_QUEUE", "memory://")
    assert Env().jobq_url("SHOP_QUEUE") == {"BACKEND": MEMORY_BACKEND}


def test_the_default_is_a_url_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JOBQ_URL", raising=False)
    assert Env().jobq_url(default="memory://?max_pending=1") == {
        "BACKEND": MEMORY_BACKEND,
        "OPTIONS": {"max_pending": 1},
    }


def test_a_variable_that_is_not_set_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JOBQ_URL", raising=False)
    with pytest.raises(ImproperlyConfigured, match="JOBQ_URL"):
        Env().jobq_url()


def test_a_wrong_url_is_refused_without_showing_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOBQ_URL", "x://user:secret@host")
    with pytest.raises(ImproperlyConfigured) as caught:
        Env().jobq_url()
    assert str(caught.value) == "the job queue URL has the scheme 'x'; known: amqp, amqps, memory"


def test_it_still_reads_what_django_environ_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_DEBUG", "on")
    assert Env().bool("SHOP_DEBUG") is True
