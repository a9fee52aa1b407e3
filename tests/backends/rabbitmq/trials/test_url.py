"""Trials of the broker's URL: one meaning in both halves, and a secret that is never shown."""

import asyncio
import logging
import os
from typing import Any

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import Client
from django.urls import path

from django_jobq import job
from django_jobq.conf import from_url
from tests.backends.rabbitmq.support import BackendFactory, Runs, send, until, working
from tests.broker import PrivateNode

# In two parts, since a debug page quotes source lines too.
SECRET = "-".join(("s3cret", "Pa55"))


def enqueue_view(_: HttpRequest) -> HttpResponse:
    @job(name="trial.view")
    def view_job() -> None: ...

    view_job.enqueue()
    return HttpResponse("enqueued")


urlpatterns = [path("enqueue/", enqueue_view)]


async def test_b59_every_form_of_the_first_vhost_meets_in_one_queue(
    node: PrivateNode, on_node: BackendFactory, runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    """No path, a slash and an encoded slash are one vhost, in both halves; the log tells it."""
    caplog.set_level(logging.INFO)
    runs.job()
    base = node.url.removesuffix("/%2F")
    forms = ["", "/", "/%2F", "/%2f"]
    for number, form in enumerate(forms):
        publisher = on_node("a", url=base + form)
        consumer = on_node("a", url=base + forms[number - 1])
        (sent,) = await asyncio.to_thread(send, publisher, 1)
        async with working(consumer):
            await until(lambda sent=sent: runs.ended[sent.job_id] == 1)
    told = [r.getMessage() for r in caplog.records if "Consuming from" in r.getMessage()]
    assert len(told) == len(forms)
    assert all("vhost '/'" in line for line in told)


@pytest.mark.parametrize("failure", ["wrong password", "no such host", "nobody listens"])
def test_b63_the_page_of_a_failed_enqueue_shows_no_password(
    node: PrivateNode,
    settings: Any,
    caplog: pytest.LogCaptureFixture,
    failure: str,
) -> None:
    """Neither the logs nor the debug page's traceback with all its variables tell the secret."""
    caplog.set_level(logging.DEBUG)
    address = {
        "wrong password": f"127.0.0.1:{node.port}",
        "no such host": "nowhere.invalid",
        "nobody listens": "127.0.0.1:1",
    }[failure]
    entry = from_url(f"amqp://guest:{SECRET}@{address}/?publish_timeout=1s")
    settings.JOBQ = {"default": {**entry, "QUEUES": ["default"]}}
    settings.DEBUG = True
    settings.ROOT_URLCONF = __name__
    response = Client(raise_request_exception=False).get("/enqueue/")

    assert response.status_code == 500
    page = response.content.decode()
    expected = "AccessRefused" if failure == "wrong password" else "BackendUnavailable"
    assert f"{expected} at /enqueue/" in page
    traceback = page[: page.index('id="settings-info"')]
    assert SECRET not in traceback
    assert SECRET not in caplog.text
    assert SECRET not in repr([record.__dict__ for record in caplog.records])
    with open(f"/proc/{os.getpid()}/cmdline", encoding="utf-8") as title:
        assert SECRET not in title.read()


def test_b63_the_settings_on_a_debug_page_show_no_password(settings: Any) -> None:
    """The URL of from_url() stands in the settings, all of which a debug page prints."""
    settings.JOBQ = {
        "default": from_url(f"amqp://guest:{SECRET}@127.0.0.1:1/?publish_timeout=200ms")
    }
    settings.DEBUG = True
    settings.ROOT_URLCONF = __name__
    page = Client(raise_request_exception=False).get("/enqueue/").content.decode()
    assert 'id="settings-info"' in page
    assert SECRET not in page
