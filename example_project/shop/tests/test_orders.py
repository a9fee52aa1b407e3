"""An order and its jobs are one: there are both, or neither."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest
from django.db import transaction
from django.test import Client
from django.urls import reverse

from django_jobq import signals
from shop.models import Order, OrderJob, Product
from shop.orders import OutOfStockError, place_order

if TYPE_CHECKING:
    from pytest_django import DjangoCaptureOnCommitCallbacks


@pytest.fixture
def enqueued() -> Iterator[list[str]]:
    """Collect the names of the jobs that are enqueued during a test."""
    names: list[str] = []

    def note(envelope: Any, **kwargs: Any) -> None:
        names.append(envelope.job)

    signals.job_enqueued.connect(note)
    yield names
    signals.job_enqueued.disconnect(note)


def test_the_jobs_are_enqueued_when_the_order_is_committed(
    mug: Product,
    enqueued: list[str],
    django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks,
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        order = place_order("Ada", "ada@customers.example", [(mug, 2)])
        assert enqueued == []
    assert enqueued == ["shop.jobs.send_receipt", "shop.jobs.sync_stock", "shop.jobs.pack_order"]
    assert [job.title for job in order.jobs.all()] == ["receipt", "stock", "packing"]


def test_an_order_that_fails_enqueues_nothing(
    mug: Product,
    enqueued: list[str],
    django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks,
) -> None:
    with (
        django_capture_on_commit_callbacks(execute=True),
        pytest.raises(OutOfStockError, match="Blue mug: only 100 left"),
    ):
        place_order("Ada", "ada@customers.example", [(mug, 101)])
    assert enqueued == []
    assert not Order.objects.exists()
    assert not OrderJob.objects.exists()


def test_an_order_inside_a_transaction_that_fails_enqueues_nothing(
    mug: Product,
    enqueued: list[str],
    django_capture_on_commit_callbacks: DjangoCaptureOnCommitCallbacks,
) -> None:
    @transaction.atomic
    def order_and_fail() -> None:
        place_order("Ada", "ada@customers.example", [(mug, 1)])
        raise ZeroDivisionError

    with django_capture_on_commit_callbacks(execute=True), pytest.raises(ZeroDivisionError):
        order_and_fail()
    assert enqueued == []
    assert not Order.objects.exists()


def form(**changes: str) -> dict[str, str]:
    return {
        "customer": "Ada",
        "email": "ada@customers.example",
        "items-TOTAL_FORMS": "2",
        "items-INITIAL_FORMS": "0",
        "items-0-sku": "mug-blue",
        "items-0-quantity": "2",
        "items-1-sku": "",
        "items-1-quantity": "1",
        **changes,
    }


def test_the_form_places_an_order(client: Client, mug: Product) -> None:
    response = client.post(reverse("new-order"), form())
    order = Order.objects.get()
    assert response.headers["Location"] == order.get_absolute_url()
    assert [(line.product, line.quantity) for line in order.lines.all()] == [(mug, 2)]
    mug.refresh_from_db()
    assert mug.stock == 98


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"items-0-sku": ""}, "Choose at least one article."),
        ({"items-0-sku": "MUG-PINK"}, "There is no article MUG-PINK."),
        ({"items-0-quantity": "0"}, "greater than or equal to 1"),
        ({"email": "nobody"}, "Enter a valid email address."),
        ({"items-1-sku": "MUG-BLUE", "items-1-quantity": "99"}, "Blue mug: only 100 left"),
    ],
)
def test_the_form_says_what_is_wrong(
    client: Client, mug: Product, changes: dict[str, str], complaint: str
) -> None:
    response = client.post(reverse("new-order"), form(**changes))
    assert response.status_code == 200
    assert complaint in response.text
    assert not Order.objects.exists()
