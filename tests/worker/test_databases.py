"""Which connection settings a worker process changes."""

from typing import Any

import pytest
from django.db import connections

from django_jobq.worker.databases import keep_connections


@pytest.mark.parametrize(
    ("given", "age", "checks"),
    [
        pytest.param({"CONN_MAX_AGE": 0}, 300, True, id="the-default-of-0-would-reconnect"),
        pytest.param({"CONN_MAX_AGE": 60}, 60, True, id="own-age"),
        pytest.param({"CONN_MAX_AGE": None}, None, True, id="no-limit"),
        pytest.param(
            {"CONN_MAX_AGE": 0, "OPTIONS": {"pool": True}}, 0, False, id="pool-keeps-its-own"
        ),
        pytest.param(
            {"CONN_MAX_AGE": 0, "OPTIONS": {"pool": {"max_size": 4}}}, 0, False, id="pool-options"
        ),
        pytest.param(
            {"CONN_MAX_AGE": 0, "OPTIONS": {"pool": False}}, 300, True, id="pool-switched-off"
        ),
    ],
)
def test_keep_connections(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], age: int | None, checks: bool
) -> None:
    entry = {**connections.settings["default"], "CONN_HEALTH_CHECKS": False, **given}
    monkeypatch.setitem(vars(connections), "settings", {"default": entry})

    keep_connections()

    assert entry["CONN_MAX_AGE"] == age
    assert entry["CONN_HEALTH_CHECKS"] is checks


def test_every_alias_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {
        alias: {"CONN_MAX_AGE": 0, "CONN_HEALTH_CHECKS": False, "OPTIONS": {}}
        for alias in ("default", "other")
    }
    monkeypatch.setitem(vars(connections), "settings", entries)

    keep_connections()

    assert [entry["CONN_MAX_AGE"] for entry in entries.values()] == [300, 300]


def test_a_connection_made_before_is_kept_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its settings are those of the alias, not a copy."""
    entries = {alias: dict(entry) for alias, entry in connections.settings.items()}
    monkeypatch.setitem(vars(connections), "settings", entries)
    connection = connections.create_connection("default")

    keep_connections()

    assert connection.settings_dict["CONN_MAX_AGE"] == 300
