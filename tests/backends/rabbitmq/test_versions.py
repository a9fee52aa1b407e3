"""What a worker says of a broker that cannot do everything, as a table and on the one there is."""

import logging

import pytest

from django_jobq.backends.rabbitmq.topology import QueueType
from django_jobq.backends.rabbitmq.versions import shortcoming
from tests.backends.rabbitmq.support import BackendFactory, until, working
from tests.lane import lane


class TestVersions:
    backend_name = "rabbitmq"

    @pytest.mark.parametrize(
        ("queue_type", "version", "text"),
        [
            ("classic", "3.10.8", None),
            ("classic", "4.0.5", None),
            ("quorum", "3.10.8", "no priorities"),
            ("quorum", "3.13.7", "no priorities"),
            ("quorum", "4.0.5", "two classes"),
            ("quorum", "4.2.0-rc.1", "two classes"),
            ("quorum", "4.3.0", None),
            ("quorum", "4.10", None),
            ("quorum", "5.0.0+build.7", None),
            ("quorum", "4", "two classes"),
            ("quorum", "", None),
        ],
    )
    def test_what_a_version_lacks(
        self, queue_type: QueueType, version: str, text: str | None
    ) -> None:
        told = shortcoming(queue_type, version)
        assert (told is None) == (text is None)
        if text is not None:
            assert text in told
            assert version in told

    async def test_a_worker_says_at_its_start_that_priorities_do_nothing(
        self, make: BackendFactory, caplog: pytest.LogCaptureFixture
    ) -> None:
        caplog.set_level(logging.INFO)
        backend = make("a", "b")
        async with working(backend):
            await until(lambda: caplog.text.count("Consuming from") == 1)
            await until(lambda: all(consumer._session for consumer in backend._consumers))
        told = [r.getMessage() for r in caplog.records if "priorit" in r.getMessage()]
        expected = {"strict": 0, "two classes": 1, "none": 1}
        assert len(told) == expected[lane(make.url).priorities]
        if told and lane(make.url).priorities == "none":
            assert "knows no priorities on quorum queues" in told[0]
