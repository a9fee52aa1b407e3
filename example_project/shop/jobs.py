"""The jobs of the shop.

A job may run twice. So each looks first whether its work is done, or does no harm a second time.
"""

from __future__ import annotations

import asyncio

from django.core.mail import EmailMessage
from django.db.models import QuerySet
from django.template.loader import render_to_string
from django.utils import timezone

from django_jobq import Defer, Fatal, JobContext, RetryPolicy, job
from shop import imports, mail, stock
from shop.catalogue import CatalogueError
from shop.models import Order, Packing, Product


class PackingError(Exception):
    """The packer did not manage; the next attempt may."""


class SupplierError(Exception):
    """The supplier did not answer as agreed."""


@job(
    queue="email",
    retry=RetryPolicy.exponential(4, base="2s", max="1m"),
    timeout="30s",
    takes_context=True,
)
def send_receipt(context: JobContext, order_id: int) -> None:
    """Mail the customer what was ordered; a dropped connection is retried with growing waits."""
    order = Order.objects.prefetch_related("lines__product").get(pk=order_id)
    if order.receipt_sent_at:
        return
    EmailMessage(
        subject=f"Your order {order.pk}",
        body=render_to_string("shop/receipt.txt", {"order": order}),
        to=[order.email],
        headers={mail.ORDER_HEADER: str(order.pk), mail.ATTEMPT_HEADER: str(context.attempt)},
    ).send()
    Order.objects.filter(pk=order.pk).update(receipt_sent_at=timezone.now())


@job(queue="stock", retry=RetryPolicy.exponential(5, base="1s", max="1m"), timeout="20s")
async def sync_stock(order_id: int) -> None:
    """Bring the stock of an order's products up to date with the supplier's.

    A supplier who asks for patience is no failure: the job comes back when it is welcome.
    """
    products = [product async for product in _products_of(order_id)]
    reply = await asyncio.to_thread(stock.ask_supplier, [product.sku for product in products])
    if reply.status == 429:
        raise Defer(reply.headers["Retry-After"], reason="the supplier is rate limiting")
    if reply.status != 200:
        raise SupplierError(f"the supplier answered {reply.status}")
    for product in products:
        product.stock = reply.levels[product.sku]
    await Product.objects.abulk_update(products, ["stock"])
    await Order.objects.filter(pk=order_id).aupdate(stock_synced_at=timezone.now())


@job(queue="warehouse", retry=RetryPolicy.fixed(3, delay="500ms"))
def pack_order(order_id: int) -> None:
    """Pack an order; what does not fit is given up at once, what slips is tried again."""
    order = Order.objects.get(pk=order_id)
    if order.packed_at:
        return
    for product in _products_of(order_id):
        if product.packing == Packing.TOO_BIG:
            raise Fatal(f"{product.name} {product.get_packing_display()}")
        if product.packing == Packing.SLIPPERY:
            raise PackingError(f"{product.name} {product.get_packing_display()}")
    Order.objects.filter(pk=order.pk).update(packed_at=timezone.now())


@job(queue="import", timeout="2m", fatal_on=(CatalogueError,))
def import_catalogue(report_id: int) -> None:
    """Import the catalogue; a broken line ends up in the report and never fails the job."""
    imports.import_catalogue(report_id, imports.SHIPPED.read_bytes())


def _products_of(order_id: int) -> QuerySet[Product]:
    return Product.objects.filter(order_lines__order=order_id).distinct()
