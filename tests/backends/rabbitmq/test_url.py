"""The broker's URL, read once for both clients."""

from urllib.parse import quote

import pytest
from django.core.exceptions import ImproperlyConfigured

from django_jobq import conf
from django_jobq.backends.rabbitmq.url import parse_url

PATH = "JOBQ['default']['URL']"
SECRETS = ["/", "?", "#", "@", ":", "%", "+", " ", "[", "é", "%41", "a/b?c#d@e:f%g+h i[j]ké"]


class TestURL:
    backend_name = "rabbitmq"

    @pytest.mark.parametrize("secret", SECRETS)
    @pytest.mark.parametrize("part", ["user", "password", "vhost"])
    def test_b57_every_part_is_decoded_once(self, part: str, secret: str) -> None:
        parts = {"user": "u", "password": "p", "vhost": "v", part: secret}
        user, password, vhost = (quote(value, safe="") for value in parts.values())
        address = parse_url(f"amqp://{user}:{password}@h:1234/{vhost}", PATH)
        assert getattr(address, part) == secret
        assert (address.host, address.port, address.tls) == ("h", 1234, False)

    def test_b57_a_plus_stays_a_plus(self) -> None:
        address = parse_url("amqp://a+b:c+d@h/e+f", PATH)
        assert (address.user, address.password, address.vhost) == ("a+b", "c+d", "e+f")

    @pytest.mark.parametrize(
        ("url", "vhost"),
        [
            ("amqp://h", "/"),
            ("amqp://h/", "/"),
            ("amqp://h/%2F", "/"),
            ("amqp://h/%2f", "/"),
            ("amqp://h/team", "team"),
            ("amqp://h/a%2Fb", "a/b"),
            ("amqp://h/%2Fa", "/a"),
            ("amqp://h/a%20b", "a b"),
            ("amqp://h/a%25b", "a%b"),
            ("amqp://h/a%252fb", "a%2fb"),
        ],
    )
    def test_b59_a_vhost_has_one_meaning(self, url: str, vhost: str) -> None:
        assert parse_url(url, PATH).vhost == vhost

    @pytest.mark.parametrize("url", ["amqp://h//", "amqp://h/team/", "amqp://h/a/b", "amqp://h//a"])
    def test_b59_what_the_clients_read_differently_is_refused(self, url: str) -> None:
        with pytest.raises(ImproperlyConfigured, match=r"^JOBQ\['default'\]\['URL'\] .*%2F"):
            parse_url(url, PATH)

    @pytest.mark.parametrize("url", ["amqp://h/a%252Fb", "amqp://h/%252F"])
    def test_b59_a_vhost_that_the_halves_would_not_share_is_refused(self, url: str) -> None:
        with pytest.raises(ImproperlyConfigured, match=r"^JOBQ\['default'\]\['URL'\] .*%2F once"):
            parse_url(url, PATH)

    @pytest.mark.parametrize(
        ("url", "expected"),
        [
            ("amqp://", ("localhost", 5672, "guest", "guest", False)),
            ("amqps://h", ("h", 5671, "guest", "guest", True)),
            ("amqps://u:p@h:99", ("h", 99, "u", "p", True)),
            ("amqp://[::1]:5673/x", ("::1", 5673, "guest", "guest", False)),
            ("AMQP://H", ("h", 5672, "guest", "guest", False)),
        ],
    )
    def test_what_is_left_out_has_a_default(self, url: str, expected: tuple[object, ...]) -> None:
        address = parse_url(url, PATH)
        found = (address.host, address.port, address.user, address.password, address.tls)
        assert found == expected

    @pytest.mark.parametrize(
        "url",
        [
            None,
            "",
            "redis://u:s3cret@h",
            "u:s3cret@h",
            "amqp://u:s3cret@h:port",
            "amqp://u:s3cret@h:99999",
            "amqp://u:s3cret/x@h",
            "amqp://u:s3cret?x@h",
            "amqp://u:s3cret#x@h",
            "amqp://u:s3cret@h/v?heartbeat=5",
            "amqp://u:s3cret@h/v#x",
            "amqp://u:s3cret@[h/v",
            "amqp://u:s3cret[@h/v",
            "amqp://u:s3cret℀@h/v",
        ],
    )
    def test_b63_a_refusal_names_the_setting_and_no_secret(self, url: str | None) -> None:
        with pytest.raises(ImproperlyConfigured) as refusal:
            parse_url(url, PATH)
        error: BaseException | None = refusal.value
        assert str(error).startswith(PATH)
        while error is not None:
            assert "s3cret" not in repr(error)
            error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)

    @pytest.mark.parametrize("url", ["amqp://u:s3cret℀@h/v", "amqp://u:s3cret@[h/v"])
    def test_b63_reading_a_url_for_the_settings_shows_no_secret(self, url: str) -> None:
        with pytest.raises(ImproperlyConfigured) as refusal:
            conf.from_url(url)
        assert "s3cret" not in repr(refusal.value)
        assert refusal.value.__cause__ is None

    def test_b63_the_password_is_in_no_text_about_an_address(self) -> None:
        address = parse_url("amqp://user:s3cret@h/v", PATH)
        assert "s3cret" not in f"{address} {address!r}"
        assert "user" in str(address)
        assert "'v'" in str(address)
        settings = conf.AliasSettings(alias="a", backend="b", url="amqp://user:s3cret@h/v")
        assert "s3cret" not in repr(settings)
