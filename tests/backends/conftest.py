"""What the RabbitMQ tests share: a broker that says how it came to be, and clean prefixes."""

import uuid
from collections.abc import Callable, Iterator

import pytest

from django_jobq.backends.rabbitmq.topology import Topology
from tests.backends.rabbitmq.support import delete_everything
from tests.broker import broker_url


@pytest.fixture(scope="session")
def shared_broker(request: pytest.FixtureRequest) -> str:
    """Return the URL of a broker for tests that leave it in peace."""
    capture = request.config.pluginmanager.getplugin("capturemanager")
    with capture.global_and_fixture_disabled():  # it tells when it starts or installs one
        return broker_url()


@pytest.fixture(scope="session")
def session_prefix(shared_broker: str) -> Iterator[Callable[[str], str]]:
    """Return one prefix for each queue type; everything under it is deleted at the end."""
    prefixes: dict[str, str] = {}

    def prefix(queue_type: str) -> str:
        return prefixes.setdefault(queue_type, f"t{uuid.uuid4().hex[:8]}")

    yield prefix
    for used in prefixes.values():
        delete_everything(shared_broker, Topology(prefix=used))
