"""The shop as a Django app."""

from __future__ import annotations

from django.apps import AppConfig


class ShopConfig(AppConfig):
    """Connect what the shop notes about its jobs when the app is ready."""

    name = "shop"

    def ready(self) -> None:
        """Listen to the signals of django_jobq."""
        from shop import tracking

        tracking.connect()
