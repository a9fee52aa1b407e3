"""What happens in the demo: the products there are, the orders that come in, and the import."""

from __future__ import annotations

import dataclasses
import datetime
import time
from decimal import Decimal

from django.test import Client
from django.urls import resolve, reverse

from shop.models import Packing, Product

PIANO = "PNO-GRAND"
SOAP = "SOP-WET"


@dataclasses.dataclass(frozen=True, slots=True)
class Wish:
    """What a customer orders: the SKUs and how many of each."""

    customer: str
    items: dict[str, int]


WISHES = [
    Wish("Ada", {"MUG-BLUE": 2, "TEA-EARL": 1}),
    Wish("Grace", {"LMP-DESK": 1}),
    Wish("Edsger", {"TEA-POT": 1, "MUG-BLUE": 4, "CND-BEES": 2}),
    Wish("Clara", {PIANO: 1}),
    Wish("Ignaz", {SOAP: 3, "TWL-LINEN": 2}),
    Wish("Barbara", {"NTB-DOTS": 5}),
]

_PRODUCTS = [
    ("MUG-BLUE", "Blue mug", "12.50", Packing.BOX),
    ("TEA-POT", "Teapot for two", "34.00", Packing.BOX),
    ("TEA-EARL", "Earl Grey, 100 g", "8.90", Packing.BOX),
    ("LMP-DESK", "Desk lamp", "59.00", Packing.BOX),
    ("CND-BEES", "Beeswax candle", "6.40", Packing.BOX),
    ("NTB-DOTS", "Dotted notebook", "9.80", Packing.BOX),
    ("TWL-LINEN", "Linen tea towel", "14.00", Packing.BOX),
    (SOAP, "Wet bar of soap", "4.20", Packing.SLIPPERY),
    (PIANO, "Grand piano", "48900.00", Packing.TOO_BIG),
]


class ScenarioError(Exception):
    """A page of the shop did not do what was asked of it."""


def seed() -> None:
    """Write the products of the front page; a second time fills up their stock."""
    Product.objects.bulk_create(
        (
            Product(
                sku=sku,
                name=name,
                price=Decimal(price),
                packing=packing,
                stock=100,
                released=datetime.date(2024, 5, 31),
                featured=True,
            )
            for sku, name, price, packing in _PRODUCTS
        ),
        update_conflicts=True,
        unique_fields=["sku"],
        update_fields=["name", "price", "packing", "stock", "released", "featured"],
    )


def visitor() -> Client:
    """Return a browser, so to speak: it goes through the real views and their transactions."""
    return Client(SERVER_NAME="127.0.0.1")


def place_orders(client: Client, pause: float = 0.0) -> list[int]:
    """Place every order on the order form and return the orders' numbers."""
    numbers = []
    for wish in WISHES:
        numbers.append(_submit(client, reverse("new-order"), _order_form(wish)))
        time.sleep(pause)
    return numbers


def request_import(client: Client) -> int:
    """Press the button on the import page and return the report's number."""
    return _submit(client, reverse("imports"), {})


def _order_form(wish: Wish) -> dict[str, str]:
    form = {
        "customer": wish.customer,
        "email": f"{wish.customer.lower()}@customers.example",
        "items-TOTAL_FORMS": str(len(wish.items)),
        "items-INITIAL_FORMS": "0",
    }
    for row, (sku, quantity) in enumerate(wish.items.items()):
        form[f"items-{row}-sku"] = sku
        form[f"items-{row}-quantity"] = str(quantity)
    return form


def _submit(client: Client, address: str, form: dict[str, str]) -> int:
    response = client.post(address, form)
    if response.status_code != 302:
        raise ScenarioError(f"POST {address} answered {response.status_code}, not a redirect")
    number: int = resolve(response.headers["Location"]).kwargs["pk"]
    return number
