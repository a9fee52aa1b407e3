"""Settings: read lazily, refused with the path of what is wrong."""

import dataclasses
from typing import Any

import pytest
from django.core import mail
from django.core.exceptions import ImproperlyConfigured
from django.test import override_settings

from django_jobq import conf
from django_jobq.backends.base import BackendOptions
from django_jobq.backends.memory import MemoryOptions
from django_jobq.conf import MEMORY_BACKEND, AliasSettings, build_options, from_url, load_aliases
from django_jobq.queues import QueueConfig
from django_jobq.retry import RetryPolicy

MEMORY = {"BACKEND": MEMORY_BACKEND}
NESTED = (
    "write JOBQ = {'default': {'BACKEND': ...}}, or JOBQ = {'default': from_url(...)} with from_url"
    " from django_jobq.conf"
)


def alias(**options: Any) -> AliasSettings:
    """Return an alias with OPTIONS."""
    return AliasSettings(alias="default", backend=MEMORY_BACKEND, options=options)


def test_without_a_setting_there_is_one_memory_backend(settings) -> None:
    del settings.JOBQ
    assert load_aliases() == {
        "default": AliasSettings(
            alias="default",
            backend="django_jobq.backends.memory.MemoryBackend",
            url=None,
            queues=None,
            database="default",
            options={},
        )
    }


@pytest.mark.parametrize(
    ("name", "default"), [("JOBQ_AUTODISCOVER", "jobs"), ("JOBQ_ON_DEAD_LETTER", None)]
)
def test_project_wide_settings(name: str, default: object, settings) -> None:
    assert conf.setting(name) == default
    setattr(settings, name, "other")
    assert conf.setting(name) == "other"


@override_settings(
    JOBQ={
        "default": {
            "BACKEND": MEMORY_BACKEND,
            "URL": "memory://",
            "QUEUES": {"default": {}, "email": {"prefetch": 5, "retry": 4}},
            "DATABASE": "other",
            "OUTBOX": "off",
            "OUTBOX_DATABASES": ["stored"],
            "HOLDS": "broker",
            "OPTIONS": {"max_pending": 5},
        },
        "second": {"BACKEND": "shop.queues.Backend"},
    }
)
def test_every_key_of_an_alias() -> None:
    assert load_aliases() == {
        "default": AliasSettings(
            alias="default",
            backend=MEMORY_BACKEND,
            url="memory://",
            queues={
                "default": QueueConfig(name="default"),
                "email": QueueConfig(name="email", prefetch=5, retry=RetryPolicy(max_attempts=4)),
            },
            database="other",
            outbox="off",
            outbox_databases=("stored",),
            holds="broker",
            options={"max_pending": 5},
        ),
        "second": AliasSettings(alias="second", backend="shop.queues.Backend"),
    }


@override_settings(JOBQ={})
def test_no_alias_at_all_is_a_setting_too() -> None:
    assert load_aliases() == {}


def test_settings_are_read_anew_each_time() -> None:
    with override_settings(JOBQ={"a": MEMORY}):
        assert list(load_aliases()) == ["a"]
    with override_settings(JOBQ={"b": MEMORY}):
        assert list(load_aliases()) == ["b"]


@pytest.mark.contract(90, 95)
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, f"JOBQ is no dict of backends by alias; {NESTED}"),
        ([MEMORY], f"JOBQ is no dict of backends by alias; {NESTED}"),
        ("amqp://user:secret@host/", f"JOBQ is text; {NESTED}"),
        (MEMORY, f"JOBQ has the key 'BACKEND' where the name of an alias belongs; {NESTED}"),
        (
            {"URL": "amqp://user:secret@host/", "QUEUES": ["a"]},
            f"JOBQ has the key 'URL' where the name of an alias belongs; {NESTED}",
        ),
        (
            {"default": {"BACKEND": "amqp://user:secret@host/"}},
            "JOBQ['default']['BACKEND'] is a URL, not the dotted path of a class; write"
            " from_url(...), of django_jobq.conf, in place of the dict",
        ),
        (
            {"default": {"BACKEND": "memory"}},
            "JOBQ['default']['BACKEND']: 'memory' is not the dotted path of a class; write"
            " 'django_jobq.backends.memory.MemoryBackend', or from_url(...) in place of the dict",
        ),
        *(
            (
                {"default": {"BACKEND": name}},
                f"JOBQ['default']['BACKEND']: {name!r} is not the dotted path of a class; write"
                " 'django_jobq.backends.rabbitmq.RabbitMQBackend', or from_url(...) in place of"
                " the dict",
            )
            for name in ("rabbitmq", "RabbitMQ", "amqp", "amqps")
        ),
        (
            {"default": {"BACKEND": MEMORY_BACKEND, "queues": []}},
            "JOBQ['default']: unknown key 'queues'; did you mean 'QUEUES'?",
        ),
        (
            {"default": "memory://"},
            "JOBQ['default'] is no dict; write from_url(...) or {'BACKEND': ...}",
        ),
        ({"default": {}}, "JOBQ['default'] has no 'BACKEND'"),
        ({"default": {"QUEUES": []}}, "JOBQ['default'] has no 'BACKEND'"),
        (
            {"default": {"BACKEND": MEMORY_BACKEND, "QUEUE": []}},
            "JOBQ['default']: unknown key 'QUEUE'; did you mean 'QUEUES'?",
        ),
        (
            {"default": {"BACKEND": MEMORY_BACKEND, "x": 1}},
            "JOBQ['default']: unknown key 'x'; known: BACKEND, DATABASE, DECLARE, HOLDS, OPTIONS,"
            " OUTBOX, OUTBOX_DATABASES, QUEUES, URL",
        ),
        ({"default": {"BACKEND": object}}, "JOBQ['default']['BACKEND'] is no str"),
        ({"default": {**MEMORY, "URL": 5}}, "JOBQ['default']['URL'] is no str"),
        ({"default": {**MEMORY, "DATABASE": None}}, "JOBQ['default']['DATABASE'] is no str"),
        ({"default": {**MEMORY, "OPTIONS": []}}, "JOBQ['default']['OPTIONS'] is no mapping"),
        *(
            (
                {"default": {**MEMORY, "OUTBOX_DATABASES": value}},
                "JOBQ['default']['OUTBOX_DATABASES'] is no list of database aliases",
            )
            for value in ("other", None, [5], {"other": {}})
        ),
        (
            {"default": {**MEMORY, "OUTBOX": True}},
            "JOBQ['default']['OUTBOX']: True is none of always, off",
        ),
        (
            {"default": {**MEMORY, "HOLDS": "memory"}},
            "JOBQ['default']['HOLDS']: 'memory' is none of database, broker",
        ),
        (
            {"default": {**MEMORY, "QUEUES": "email"}},
            "JOBQ['default']['QUEUES']: 'email' is neither a list of names nor a dict of options",
        ),
        (
            {"default": {**MEMORY, "QUEUES": {"email": {"prefetch": "5"}}}},
            "JOBQ['default']['QUEUES']['email']['prefetch']: '5' is no whole number",
        ),
        (
            {"default": {**MEMORY, "QUEUES": {"email": {"retry": {"delay": "5s"}}}}},
            "JOBQ['default']['QUEUES']['email']['retry']: retry: key 'delay' does not go with"
            " exponential backoff; allowed are backoff, base, factor, jitter, max, max_attempts",
        ),
    ],
)
def test_a_wrong_setting_is_refused_with_its_path(value: object, message: str) -> None:
    with override_settings(JOBQ=value), pytest.raises(ImproperlyConfigured) as caught:
        load_aliases()
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("url", "entry"),
    [
        ("memory://", MEMORY),
        ("MEMORY://", MEMORY),
        ("memory://?max_pending=9", {**MEMORY, "OPTIONS": {"max_pending": 9}}),
        (
            "memory://?allow_in_production=true&unknown_job_grace=30s&max_payload=1000",
            {
                **MEMORY,
                "OPTIONS": {
                    "allow_in_production": True,
                    "unknown_job_grace": "30s",
                    "max_payload": 1000,
                },
            },
        ),
        (
            "memory://?a=False&b=-5&c=1.5&d=%20x",
            {**MEMORY, "OPTIONS": {"a": False, "b": "-5", "c": "1.5", "d": " x"}},
        ),
    ],
)
def test_a_url_is_an_entry_of_the_setting(url: str, entry: dict[str, Any]) -> None:
    assert from_url(url) == entry


@override_settings(JOBQ={"default": from_url("memory://?max_pending=9&allow_in_production=true")})
def test_the_entry_of_a_url_is_read() -> None:
    assert build_options(MemoryOptions, load_aliases()["default"]) == MemoryOptions(
        max_pending=9, allow_in_production=True
    )


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("", "the job queue URL has the scheme ''; known: amqp, amqps, memory"),
        ("memory", "the job queue URL has the scheme ''; known: amqp, amqps, memory"),
        ("memroy://", "the job queue URL has the scheme 'memroy'; did you mean 'memory'?"),
        (
            "x://user:secret@host/a",
            "the job queue URL has the scheme 'x'; known: amqp, amqps, memory",
        ),
    ],
)
def test_a_url_of_an_unknown_scheme_is_refused_without_showing_it(url: str, message: str) -> None:
    with pytest.raises(ImproperlyConfigured) as caught:
        from_url(url)
    assert str(caught.value) == message


@pytest.mark.parametrize("url", ["memory://?secret", "memory://?a=1&secret", "memory://[secret"])
def test_a_malformed_url_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(ImproperlyConfigured) as caught:
        from_url(url)
    assert "URL" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, BackendOptions(max_payload=131072, unknown_job_grace=300.0)),
        ({"max_payload": 1}, BackendOptions(max_payload=1)),
        ({"unknown_job_grace": 0}, BackendOptions(unknown_job_grace=0.0)),
        ({"unknown_job_grace": 30}, BackendOptions(unknown_job_grace=30.0)),
        ({"unknown_job_grace": "10m"}, BackendOptions(unknown_job_grace=600.0)),
    ],
)
def test_options_are_typed(options: dict[str, Any], expected: BackendOptions) -> None:
    assert build_options(BackendOptions, alias(**options)) == expected


@pytest.mark.contract(90)
@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"max_paylod": 5},
            "JOBQ['default']['OPTIONS']: unknown key 'max_paylod'; did you mean 'max_payload'?",
        ),
        (
            {"x": 5},
            "JOBQ['default']['OPTIONS']: unknown key 'x'; known: allow_in_production, max_payload,"
            " max_pending, publish_timeout, unknown_job_grace",
        ),
        (
            {"max_payload": 0},
            "JOBQ['default']['OPTIONS']['max_payload']: 0 is no whole number from 1",
        ),
        (
            {"max_payload": True},
            "JOBQ['default']['OPTIONS']['max_payload']: True is no whole number from 1",
        ),
        (
            {"max_payload": "1000"},
            "JOBQ['default']['OPTIONS']['max_payload']: '1000' is no whole number from 1",
        ),
        (
            {"allow_in_production": 1},
            "JOBQ['default']['OPTIONS']['allow_in_production']: 1 is neither True nor False",
        ),
        (
            {"unknown_job_grace": 1.5},
            "JOBQ['default']['OPTIONS']['unknown_job_grace']: 1.5 is no duration: write text with a"
            " unit such as '30s' or '5m', or a timedelta",
        ),
    ],
)
def test_a_wrong_option_is_refused_with_its_path(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ImproperlyConfigured) as caught:
        build_options(MemoryOptions, alias(**options))
    assert str(caught.value) == message


def test_a_url_is_not_in_the_repr() -> None:
    entry = AliasSettings(alias="default", backend="x", url="amqp://user:secret@host")
    assert "secret" not in repr(entry)
    assert entry.path == "JOBQ['default']"


def test_alias_settings_are_a_value() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        alias().database = "other"  # type: ignore[misc]


def test_a_test_process_is_told_by_the_mail_outbox(monkeypatch: pytest.MonkeyPatch) -> None:
    assert conf.is_test_process() is True
    monkeypatch.delattr(mail, "outbox")
    assert conf.is_test_process() is False
