"""Telling who blocks the event loop."""

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

import pytest

from django_jobq import job
from django_jobq.worker import watch


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "INTERVAL", 0.05)
    monkeypatch.setattr(watch, "LONGEST_BLOCK", 0.3)


async def watched(block: float, running: list[str]) -> None:
    """Block the loop once while it is watched."""
    task = asyncio.create_task(watch.watch_loop(lambda: running))
    await asyncio.sleep(0.01)
    time.sleep(block)  # noqa: ASYNC251 - what the test is about
    await asyncio.sleep(0.1)
    task.cancel()


async def test_a_blocked_loop_is_told_with_the_async_jobs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    await watched(1.0, ["shop.sync", "shop.mail", "shop.sync"])
    (record,) = [item for item in caplog.records if item.levelno == logging.WARNING]
    assert "stood still for" in record.getMessage()
    assert "(running: shop.mail, shop.sync)" in record.getMessage()


async def test_a_busy_machine_is_no_fault_of_jobs(caplog: pytest.LogCaptureFixture) -> None:
    await watched(1.0, [])
    assert caplog.records == []


async def test_a_loop_that_turns_is_not_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "LONGEST_BLOCK", 60.0)
    await watched(0.0, ["shop.sync"])
    assert caplog.records == []


@pytest.mark.usefixtures("memory")
def test_a_worker_names_the_async_job_that_blocks(
    work: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    @job(name="tests.blocks")
    async def blocks() -> None:
        time.sleep(1.0)  # noqa: ASYNC251 - what the test is about

    blocks.enqueue()
    work()
    assert "async job blocks it (running: tests.blocks)" in caplog.text
