"""Where the databases of the tests come from: none is left out silently."""

import pytest

from tests import databases, packages
from tests.databases import SERVERS, Server, database_url


@pytest.fixture(params=SERVERS, ids=lambda server: server.name)
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Server:
    """Return a server that is neither named nor running."""
    monkeypatch.delenv(request.param.variable, raising=False)
    monkeypatch.setattr(databases, "answers", lambda url: False)
    return request.param


def test_what_the_environment_names_is_taken_unseen(server: Server, monkeypatch) -> None:
    monkeypatch.setenv(server.variable, "postgres://elsewhere/test")
    with database_url(server) as url:
        assert url == "postgres://elsewhere/test"


def test_the_first_local_server_that_answers_is_taken(server: Server, monkeypatch) -> None:
    monkeypatch.setattr(databases, "answers", lambda url: url == server.local_urls[-1])
    with database_url(server) as url:
        assert url == server.local_urls[-1]


@pytest.mark.parametrize("root", [False, True])
def test_a_server_that_cannot_be_had_is_an_error(server: Server, monkeypatch, root: bool) -> None:
    installed: list[str] = []
    monkeypatch.setattr(databases, "_binaries", lambda server: [])
    monkeypatch.setattr(packages, "may_install", lambda: root)
    monkeypatch.setattr(packages, "install", lambda package, service: installed.append(package))
    with pytest.raises(SystemExit, match=f"set {server.variable} to its URL"), database_url(server):
        pass
    assert installed == [server.package] * root


def test_a_name_that_is_no_database_is_an_error() -> None:
    with pytest.raises(SystemExit, match="no such database: oracle; there are sqlite, postgresql"):
        databases.main(["oracle"])
