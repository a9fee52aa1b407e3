"""Place an order: its rows and its jobs in one transaction, so that there are both or neither."""

from __future__ import annotations

from collections.abc import Iterable

from django.db import transaction
from django.db.models import F

from django_jobq import EnqueuedJob
from shop import jobs
from shop.models import Order, OrderJob, OrderLine, Product


class OutOfStockError(Exception):
    """There is not enough of a product."""

    def __init__(self, product: Product) -> None:
        self.product = product
        super().__init__(f"{product.name}: only {product.stock} left")


@transaction.atomic
def place_order(customer: str, email: str, items: Iterable[tuple[Product, int]]) -> Order:
    """Write an order and enqueue its jobs, or raise OutOfStockError and leave nothing behind."""
    order = Order.objects.create(customer=customer, email=email)
    _enqueue_jobs(order)
    for product, quantity in items:
        _take_from_stock(product, quantity)
        OrderLine.objects.create(
            order=order, product=product, quantity=quantity, unit_price=product.price
        )
    return order


def _enqueue_jobs(order: Order) -> None:
    """Enqueue already here, where the lines are still missing: nothing runs before the commit."""
    about = f"order {order.pk}"
    enqueued = {
        "receipt": jobs.send_receipt.using(correlation_id=about).enqueue(order.pk),
        "stock": jobs.sync_stock.using(correlation_id=about).enqueue(order.pk),
        "packing": jobs.pack_order.using(correlation_id=about).enqueue(order.pk),
    }
    OrderJob.objects.bulk_create(_order_job(order, title, job) for title, job in enqueued.items())


def _order_job(order: Order, title: str, job: EnqueuedJob) -> OrderJob:
    return OrderJob(order=order, title=title, job_id=job.id)


def _take_from_stock(product: Product, quantity: int) -> None:
    there = Product.objects.filter(pk=product.pk, stock__gte=quantity)
    if not there.update(stock=F("stock") - quantity):
        raise OutOfStockError(product)
