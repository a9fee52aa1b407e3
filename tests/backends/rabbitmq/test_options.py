"""OPTIONS of the RabbitMQ backend, as tables."""

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_jobq.backends.rabbitmq import RabbitMQBackend, RabbitMQOptions
from django_jobq.conf import AliasSettings, build_options
from tests.backends.rabbitmq.support import make_settings

URL = "amqp://user:s3cret@nowhere.invalid/"


def options(**values: object) -> RabbitMQOptions:
    return build_options(RabbitMQOptions, make_settings(URL, **values))


class TestOptions:
    backend_name = "rabbitmq"

    @pytest.fixture(autouse=True)
    def _whatever_the_lane(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv("JOBQ_TEST_QUEUE_TYPE", raising=False)

    @pytest.mark.contract(158)
    def test_the_defaults(self) -> None:
        made = options()
        assert (made.prefix, made.queue_type, made.hold_type) == ("jobq", "classic", None)
        assert made.publish_timeout == 5
        assert made.delivery_limit == 5
        assert made.cafile is made.server_hostname is None

    @pytest.mark.parametrize(
        ("key", "value", "expected"),
        [
            ("prefix", "shop.live", "shop.live"),
            ("queue_type", "quorum", "quorum"),
            ("hold_type", "quorum", "quorum"),
            ("heartbeat", "10s", 10.0),
            ("publish_timeout", "1500ms", 1.5),
            ("reconnect_max", "1m", 60.0),
            ("delivery_limit", 2, 2),
            ("connection_name", "shop", "shop"),
        ],
    )
    def test_what_is_accepted(self, key: str, value: object, expected: object) -> None:
        assert getattr(options(**{key: value}), key) == expected

    @pytest.mark.parametrize(
        ("key", "value"),
        [
            ("prefix", ""),
            ("prefix", 3),
            ("prefix", "a*"),
            ("prefix", "a.#"),
            ("prefix", "a\n"),
            ("prefix", "é" * 51),
            ("queue_type", "stream"),
            ("queue_type", None),
            ("hold_type", "lazy"),
            ("heartbeat", "0s"),
            ("publish_timeout", "-1s"),
            ("publish_timeout", "soon"),
            ("delivery_limit", 0),
            ("delivery_limit", 1),
            ("delivery_limit", True),
            ("delivery_limit", 2.5),
            ("cafile", ""),
            ("server_hostname", 7),
        ],
    )
    def test_what_is_refused_names_the_option(self, key: str, value: object) -> None:
        with pytest.raises(ImproperlyConfigured) as refusal:
            options(**{key: value})
        assert str(refusal.value).startswith(f"JOBQ['default']['OPTIONS'][{key!r}]")

    def test_an_unknown_option_is_refused_with_a_suggestion(self) -> None:
        with pytest.raises(ImproperlyConfigured, match=r"'hartbeat'.*did you mean 'heartbeat'"):
            options(hartbeat="10s")

    @pytest.mark.contract(158)
    @pytest.mark.parametrize(
        ("given", "types"),
        [
            ({}, ("classic", "classic")),
            ({"queue_type": "quorum"}, ("quorum", "quorum")),
            ({"hold_type": "quorum"}, ("classic", "quorum")),
            ({"queue_type": "quorum", "hold_type": "classic"}, ("quorum", "classic")),
        ],
    )
    def test_holds_have_the_type_of_the_queues_unless_told(
        self, given: dict[str, str], types: tuple[str, str]
    ) -> None:
        topology = RabbitMQBackend(make_settings(URL, prefix="x", **given)).topology
        assert (topology.prefix, topology.queue_type, topology.hold_type) == ("x", *types)

    def test_the_constructor_connects_to_nothing(self) -> None:
        backend = RabbitMQBackend(make_settings(URL))
        assert backend.driver == "rabbitmq"
        backend.close()

    def test_a_missing_url_is_an_error_of_the_setting(self) -> None:
        with pytest.raises(ImproperlyConfigured, match=r"JOBQ\['default'\]\['URL'\]"):
            RabbitMQBackend(AliasSettings(alias="default", backend="rabbitmq"))

    def test_b63_a_backend_shows_no_password(self) -> None:
        backend = RabbitMQBackend(make_settings(URL))
        shown = [backend, backend.settings, backend.options, backend.address, backend._publisher]
        assert "s3cret" not in " ".join(f"{item!r} {item}" for item in shown)
