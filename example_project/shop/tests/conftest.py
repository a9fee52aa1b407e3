"""What the tests of the shop share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import django
import pytest

from django_jobq.conf import from_url
from shop.demo import scenario
from shop.models import Product
from supplier import Supplier

if TYPE_CHECKING:
    from pytest_django import Settings


@pytest.fixture(autouse=True)
def _nothing_from_outside(settings: Settings) -> None:
    # A new JOBQ is a new backend, without the jobs that an earlier test left.
    settings.JOBQ = {"default": from_url("memory://")}
    # A test that forgets to ask for a supplier finds none.
    settings.SUPPLIER_URL = "http://127.0.0.1:9"


@pytest.fixture
def supplier(settings: Settings) -> Iterator[Supplier]:
    """Serve the real supplier, who admits one request in a second."""
    with Supplier(limit=1) as server:
        settings.SUPPLIER_URL = server.url
        yield server


@pytest.fixture
def mail_folder(settings: Settings, tmp_path: Path) -> Path:
    """Send mail as the shop does, flaky line and all, into a folder of the test."""
    backend = "shop.mail.FlakyEmailBackend"
    if django.VERSION >= (6, 1):
        settings.MAILERS = {"default": {"BACKEND": backend}}
    else:
        settings.EMAIL_BACKEND = backend
    settings.MAIL_FOLDER = tmp_path
    return tmp_path


@pytest.fixture
def mug(db: None) -> Product:
    """Seed the shop and return something that can be packed."""
    scenario.seed()
    return Product.objects.get(sku="MUG-BLUE")


@pytest.fixture
def piano(mug: Product) -> Product:
    """Return something that is too big for any box."""
    return Product.objects.get(sku=scenario.PIANO)


@pytest.fixture
def soap(mug: Product) -> Product:
    """Return something that slips."""
    return Product.objects.get(sku=scenario.SOAP)
