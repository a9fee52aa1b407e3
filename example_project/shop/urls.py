"""The addresses of the shop."""

from __future__ import annotations

from django.urls import path

from shop import views

urlpatterns = [
    path("", views.products, name="products"),
    path("orders/", views.orders, name="orders"),
    path("orders/new/", views.new_order, name="new-order"),
    path("orders/<int:pk>/", views.order, name="order"),
    path("imports/", views.imports, name="imports"),
    path("imports/<int:pk>/", views.import_report, name="import"),
]
