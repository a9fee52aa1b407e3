"""The trials' project: its default alias is on the broker, and workers run on threads."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.backends.rabbitmq.support import BackendFactory
from tests.backends.rabbitmq.trials.live import Live


@pytest.fixture
def go_live(settings: Any) -> Callable[..., Live]:
    """Return what puts the default alias on the broker of a factory of backends."""

    def go(factory: BackendFactory, queues: dict[str, Any] | None = None, **options: Any) -> Live:
        return Live(factory, settings, queues or {"default": {}}, options)

    return go


@pytest.fixture
def live(make: BackendFactory, go_live: Callable[..., Live]) -> Live:
    """Return the default alias on the shared broker."""
    return go_live(make)
