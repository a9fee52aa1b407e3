"""A shop of two views: one commits an order and its job, the other takes both back."""

from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.urls import path

from tests.app.models import Row
from tests.web.jobs import ship


def place(request: HttpRequest, order: str) -> HttpResponse:
    with transaction.atomic():
        Row.objects.create(name=order)
        ship.enqueue(order)
    return HttpResponse("placed")


def fail(request: HttpRequest, order: str) -> HttpResponse:
    with transaction.atomic():
        Row.objects.create(name=order)
        ship.enqueue(order)
        transaction.set_rollback(True)
    return HttpResponse("taken back")


urlpatterns = [path("place/<order>/", place), path("fail/<order>/", fail)]
