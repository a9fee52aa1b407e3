"""The Celery app, task and ways to enqueue.

The scheme is pyamqp: for amqp kombu takes librabbitmq where that is installed, which knows no
confirms and says nothing of it.
"""

from __future__ import annotations

from celery import Celery, signals
from django.db import transaction

from benchmarks import common, work

app = Celery("benchmarks", broker="py" + common.URL)
app.conf.update(
    broker_connection_retry_on_startup=True,
    broker_transport_options={"confirm_publish": common.is_on(common.CONFIRMS_VARIABLE)},
    task_acks_late=True,
    task_default_queue=common.CELERY.queue,
    task_ignore_result=True,
    task_reject_on_worker_lost=True,
    worker_enable_remote_control=False,
)


@app.task  # type: ignore[untyped-decorator]
def record(number: int) -> None:
    work.record(number)


signals.task_success.connect(work.hear)


def enqueue(number: int) -> None:
    """Enqueue one task and wait for its confirm."""
    record.delay(number)


def enqueue_in_transaction(numbers: range) -> None:
    """Enqueue at the commit, each with a wait of its own: Celery has no publish of several.

    One producer for all is its fastest way.
    """

    def publish() -> None:
        with app.producer_or_acquire() as producer:
            for number in numbers:
                record.apply_async((number,), producer=producer)

    with transaction.atomic():
        transaction.on_commit(publish)


def fill(numbers: range) -> None:
    """Enqueue as fast as it goes."""
    with app.producer_or_acquire() as producer:
        for number in numbers:
            record.apply_async((number,), producer=producer)
