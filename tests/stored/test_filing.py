"""Filing by a worker: a letter leaves its transport once its row is committed, and not before."""

import asyncio
import logging
from collections.abc import Callable, Sequence

import pytest
from django.db import OperationalError

from django_jobq.backends.base import DeadLetterSource
from django_jobq.exceptions import BackendUnavailable, ShutDown
from django_jobq.models import DeadLetter
from django_jobq.store.filing import NewLetter
from django_jobq.worker.filing import Filing
from django_jobq.worker.stats import WorkerStats
from tests.store.tools import USING, letter
from tests.stored.conftest import StoringBackend, work

pytestmark = pytest.mark.django_db(transaction=True, databases=[USING])


class Letters(DeadLetterSource):
    """Keep letters in batches; note what is asked of it."""

    def __init__(self, *batches: list[NewLetter], error: Exception | None = None) -> None:
        self.batches, self.error = list(batches), error
        self.is_closed = False

    async def letters(self) -> Sequence[NewLetter]:
        if self.error is not None:
            raise self.error
        return self.batches[0] if self.batches else []

    async def remove(self) -> None:
        self.batches.pop(0)

    async def aclose(self) -> None:
        self.is_closed = True


def filing_from(source: Letters, backend: StoringBackend) -> Filing:
    backend.dead_letters_to_file = lambda: source  # type: ignore[method-assign]
    return Filing(backend)


def keys() -> list[str]:
    return [row.filing_key for row in DeadLetter.objects.using(USING).order_by("id")]


@pytest.mark.contract(116)
def test_letters_are_filed_and_then_removed(
    storing: StoringBackend, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    first, second = [letter(), letter()], [letter()]
    source = Letters(first, second)
    filing = filing_from(source, storing)
    assert work(filing) == 0
    assert (keys(), source.batches) == ([one.filing_key for one in first], [second])
    assert work(filing) == 0
    assert (len(keys()), source.batches) == (3, [])
    assert work(filing) > 0
    assert [record.message for record in caplog.records] == [
        "Filed 2 dead letter(s)",
        "Filed 1 dead letter(s)",
    ]


@pytest.mark.contract(116)
def test_letters_stay_while_the_database_is_down(storing: StoringBackend) -> None:
    def fail() -> None:
        raise OperationalError("the database is down")

    source = Letters([letter()])
    filing = filing_from(source, storing)
    with pytest.raises(OperationalError):
        work(filing, fail)
    assert (len(source.batches), keys()) == (1, [])
    work(filing)
    assert (len(source.batches), len(keys())) == (0, 1)


def test_a_transport_that_cannot_be_read_is_an_outage(storing: StoringBackend) -> None:
    with pytest.raises(BackendUnavailable):
        work(filing_from(Letters(error=BackendUnavailable("no broker")), storing))


def test_a_transport_that_is_closed_has_nothing_to_file(storing: StoringBackend) -> None:
    assert work(filing_from(Letters(error=ShutDown("default", "memory")), storing)) > 0


def test_a_transport_without_letters_to_file_is_left_alone(storing: StoringBackend) -> None:
    filing = Filing(storing)
    assert work(filing) > 0
    asyncio.run(filing.close())


def test_a_worker_files_and_closes_what_it_read(
    storing: StoringBackend, burst: Callable[..., WorkerStats]
) -> None:
    source = Letters([letter()], [letter()])
    storing.dead_letters_to_file = lambda: source  # type: ignore[method-assign]
    burst()
    assert (len(keys()), source.is_closed) == (2, True)


@pytest.mark.parametrize("settings", [{"outbox": "off"}, {"holds": "broker"}])
def test_one_use_of_the_database_is_enough_to_file(
    make_storing: Callable[..., StoringBackend],
    burst: Callable[..., WorkerStats],
    settings: dict[str, str],
) -> None:
    backend = make_storing(**settings)
    source = Letters([letter()])
    backend.dead_letters_to_file = lambda: source  # type: ignore[method-assign]
    burst(backend=backend)
    assert len(keys()) == 1


def test_letters_of_a_backend_without_a_database_stay(
    make_storing: Callable[..., StoringBackend], burst: Callable[..., WorkerStats]
) -> None:
    backend = make_storing(outbox="off", holds="broker")
    source = Letters([letter()])
    backend.dead_letters_to_file = lambda: source  # type: ignore[method-assign]
    burst(backend=backend)
    assert (keys(), len(source.batches)) == ([], 1)
