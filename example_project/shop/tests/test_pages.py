"""Every page can be shown, whatever there is to show."""

from __future__ import annotations

import pytest
from django.contrib import admin
from django.test import Client
from django.urls import reverse

from shop.models import ImportReport, JobState, Order, OrderJob, Product
from shop.orders import place_order

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("name", ["products", "new-order", "orders", "imports"])
def test_a_page_of_an_empty_shop(client: Client, name: str) -> None:
    assert client.get(reverse(name)).status_code == 200


def test_products_can_be_searched(client: Client, mug: Product) -> None:
    page = client.get(reverse("products"), {"q": "PIANO"}).text
    assert "Grand piano" in page
    assert "Blue mug" not in page


def test_the_order_page_refreshes_itself_until_every_job_has_ended(
    client: Client, mug: Product
) -> None:
    order = place_order("Ada", "ada@customers.example", [(mug, 1)])
    assert 'http-equiv="refresh"' in client.get(order.get_absolute_url()).text
    OrderJob.objects.update(state=JobState.DEAD, note="<b>no</b>")
    page = client.get(order.get_absolute_url()).text
    assert 'http-equiv="refresh"' not in page
    assert "&lt;b&gt;no&lt;/b&gt;." in page
    assert "given up" in page
    assert f'href="{order.get_absolute_url()}"' in client.get(reverse("orders")).text


def test_a_report_that_waits_is_shown_as_such(client: Client) -> None:
    report = ImportReport.objects.create(file_name="catalogue.csv")
    assert 'http-equiv="refresh"' in client.get(report.get_absolute_url()).text
    assert "not finished yet" in client.get(reverse("imports")).text


@pytest.mark.parametrize("model", [Product, Order, ImportReport])
def test_the_admin_lists_and_shows_what_there_is(
    admin_client: Client, mug: Product, model: type[Product] | type[Order] | type[ImportReport]
) -> None:
    place_order("Ada", "ada@customers.example", [(mug, 1)])
    ImportReport.objects.create(file_name="catalogue.csv")
    assert admin.site.is_registered(model)
    name = f"admin:shop_{model._meta.model_name}"
    assert admin_client.get(reverse(f"{name}_changelist")).status_code == 200
    pk = model._default_manager.all()[0].pk
    assert admin_client.get(reverse(f"{name}_change", args=[pk])).status_code == 200
