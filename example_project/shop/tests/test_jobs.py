"""What becomes of an order's jobs, with a worker that runs them in the test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from django.core import mail

from shop import jobs
from shop.models import JobState, Order, OrderJob, Product
from shop.orders import place_order
from shop.tests.worker import run_jobs, run_jobs_until
from supplier import Supplier, stock_level

if TYPE_CHECKING:
    from pytest_django import DjangoCaptureOnCommitCallbacks

Buy = Callable[..., Order]


@pytest.fixture
def buy(mug: Product, django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks) -> Buy:
    """Return how to place an order that is committed."""

    def buy(*products: Product) -> Order:
        with django_capture_on_commit_callbacks(execute=True):
            return place_order("Ada", "ada@customers.example", [(item, 1) for item in products])

    return buy


def job_of(order: Order, title: str) -> OrderJob:
    return order.jobs.get(title=title)


def sent_to(folder: Path) -> str:
    return "".join(path.read_text() for path in folder.iterdir())


def has_ended(*orders: Order) -> Callable[[], bool]:
    return lambda: all(job.has_ended for job in OrderJob.objects.filter(order__in=orders))


def test_every_job_of_a_plain_order_succeeds(buy: Buy, mug: Product, supplier: Supplier) -> None:
    order = buy(mug)
    run_jobs()
    order.refresh_from_db()
    assert order.receipt_sent_at
    assert order.stock_synced_at
    assert order.packed_at
    assert {job.state for job in order.jobs.all()} == {JobState.DONE}
    assert [message.subject for message in mail.outbox] == ["Your order 1"]
    assert "1 × Blue mug: € 12.50" in mail.outbox[0].body


def test_a_receipt_whose_connection_drops_arrives_after_a_retry(
    buy: Buy, mug: Product, supplier: Supplier, mail_folder: Path
) -> None:
    _, _, third = buy(mug), buy(mug), buy(mug)
    run_jobs_until(has_ended(third))
    receipt = job_of(third, "receipt")
    assert (receipt.state, receipt.attempt) == (JobState.DONE, 2)
    assert "Your order 3" in sent_to(mail_folder)


def test_a_receipt_is_not_sent_twice(buy: Buy, mug: Product) -> None:
    order = buy(mug)
    jobs.send_receipt.call(order.pk)
    jobs.send_receipt.call(order.pk)
    assert len(mail.outbox) == 1


def test_a_supplier_who_is_rate_limiting_is_asked_again(
    buy: Buy, mug: Product, supplier: Supplier
) -> None:
    first, second = buy(mug), buy(mug)
    run_jobs()
    [waiting] = OrderJob.objects.filter(title="stock", state=JobState.DEFERRED)
    assert waiting.note.startswith("the supplier is rate limiting (again in ")
    run_jobs_until(has_ended(first, second))
    waiting.refresh_from_db()
    assert (waiting.state, waiting.attempt) == (JobState.DONE, 1)
    assert waiting.deferrals >= 1
    mug.refresh_from_db()
    assert mug.stock == stock_level(mug.sku)


def test_an_order_that_does_not_fit_is_given_up_at_once(
    buy: Buy, mug: Product, piano: Product, supplier: Supplier
) -> None:
    order = buy(mug, piano)
    run_jobs()
    packing = job_of(order, "packing")
    assert (packing.state, packing.attempt) == (JobState.DEAD, 1)
    assert "Grand piano is too big for any box" in packing.note
    order.refresh_from_db()
    assert order.packed_at is None


def test_an_order_that_slips_is_given_up_after_the_last_attempt(
    buy: Buy, soap: Product, supplier: Supplier
) -> None:
    order = buy(soap)
    run_jobs_until(has_ended(order))
    packing = job_of(order, "packing")
    assert (packing.state, packing.attempt) == (JobState.DEAD, 3)
    assert "Wet bar of soap slips out of every hand" in packing.note
