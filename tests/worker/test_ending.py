"""The end of a worker: who asks for it, until when the rest has time, and who is woken."""

import asyncio
import threading

import pytest

from django_jobq.worker.ending import Ending

DEADLINE = 5.0


@pytest.fixture
async def ending() -> Ending:
    """Return the ending of a worker that lives on this loop and gives the rest a minute."""
    made = Ending(60)
    made.attach()
    return made


async def wait(ending: Ending, longest: float | None = None) -> None:
    await asyncio.wait_for(ending.wait(longest), DEADLINE)


@pytest.mark.contract(62)
def test_it_can_be_asked_for_before_there_is_a_loop() -> None:
    ending = Ending(60)
    ending.ask()
    assert ending.requested


async def test_another_thread_wakes_the_loop(ending: Ending) -> None:
    threading.Timer(0.05, ending.ask).start()
    await wait(ending)
    assert ending.requested
    assert not ending.is_late


@pytest.mark.contract(63)
def test_asking_after_the_loop_has_closed_is_harmless() -> None:
    ending = Ending(60)

    async def attach() -> None:
        ending.attach()

    asyncio.run(attach())
    ending.ask()
    assert ending.requested


async def test_an_end_without_a_deadline_is_never_late() -> None:
    ending = Ending(0)
    ending.attach()
    ending.begin(with_deadline=False)
    assert ending.requested
    assert not ending.is_late


@pytest.mark.contract(63)
async def test_the_first_deadline_counts() -> None:
    ending = Ending(0)
    ending.attach()
    ending.begin(with_deadline=False)
    ending.begin(with_deadline=True)
    assert ending.is_late
    ending._patience = 60
    ending.begin(with_deadline=True)
    assert ending.is_late


async def test_the_deadline_ends_a_wait() -> None:
    ending = Ending(0.05)
    ending.attach()
    ending.begin(with_deadline=True)
    await wait(ending)  # the news of the end itself
    await wait(ending)
    assert ending.is_late


async def test_news_are_told_once(ending: Ending) -> None:
    ending.notice()
    await wait(ending)
    began = asyncio.get_running_loop().time()
    await wait(ending, 0.05)
    assert asyncio.get_running_loop().time() - began >= 0.04
