"""The supplier admits so many requests, and says when to come back."""

from __future__ import annotations

from shop.stock import ask_supplier
from supplier import RateLimit, Supplier, stock_level


def test_the_window_slides() -> None:
    now = [0.0]
    limit = RateLimit(2, 1.0, clock=lambda: now[0])
    assert [limit.seconds_to_wait() for _ in range(3)] == [0.0, 0.0, 1.0]
    now[0] = 0.75
    assert limit.seconds_to_wait() == 0.25
    now[0] = 1.0
    assert [limit.seconds_to_wait() for _ in range(3)] == [0.0, 0.0, 1.0]


def test_a_hurried_customer_is_asked_for_patience(supplier: Supplier) -> None:
    first, second = ask_supplier(["MUG-BLUE", "TEA-POT"]), ask_supplier(["MUG-BLUE"])
    assert first.levels == {sku: stock_level(sku) for sku in ("MUG-BLUE", "TEA-POT")}
    assert (second.status, second.headers["Retry-After"]) == (429, "1")
