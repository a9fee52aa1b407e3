"""The Dramatiq broker, actor and ways to enqueue, with the middleware of a Django project."""

from __future__ import annotations

from typing import Any

import django
import dramatiq
from django.apps import apps
from django.db import close_old_connections, connections, transaction
from dramatiq.brokers.rabbitmq import RabbitmqBroker

from benchmarks import common, work

if not apps.ready:
    django.setup()


class DatabaseConnections(dramatiq.Middleware):
    """Do around each message what django_dramatiq does, and hear that the message is done."""

    def before_process_message(self, *_: Any) -> None:
        close_old_connections()

    def after_process_message(self, *_: Any, **__: Any) -> None:
        close_old_connections()
        work.hear()

    def before_worker_thread_shutdown(self, *_: Any) -> None:
        connections.close_all()


broker = RabbitmqBroker(url=common.URL, confirm_delivery=common.is_on(common.CONFIRMS_VARIABLE))
broker.add_middleware(DatabaseConnections())
dramatiq.set_broker(broker)


@dramatiq.actor(queue_name=common.DRAMATIQ.queue)
def record(number: int) -> None:
    work.record(number)


def enqueue(number: int) -> None:
    """Enqueue one message and wait for its confirm."""
    record.send(number)


def enqueue_in_transaction(numbers: range) -> None:
    """Enqueue at the commit, each with a wait of its own: Dramatiq has no publish of several."""

    def publish() -> None:
        for number in numbers:
            record.send(number)

    with transaction.atomic():
        transaction.on_commit(publish)


def fill(numbers: range) -> None:
    """Enqueue as fast as it goes."""
    for number in numbers:
        record.send(number)
