"""jobq_status: the numbers of transports and databases, as a table and as JSON."""

import dataclasses
import json
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError

from django_jobq import job
from django_jobq.backends.base import Counts
from django_jobq.backends.memory import MemoryBackend
from django_jobq.exceptions import BackendUnavailable
from django_jobq.management.commands import jobq_status
from django_jobq.management.commands.jobq_status import EXIT_UNAVAILABLE
from django_jobq.status import BackendStatus, QueueStatus
from django_jobq.store import census
from tests.commands.test_jobq_enqueue import manage
from tests.store.tools import USING, elapse, enqueue, envelope, file, letter, put

Capture = pytest.CaptureFixture[str]


class Shared(MemoryBackend):
    """A transport that leaves storing jobs to the database, and knows of consumers."""

    driver = "shared"
    shared = True
    leaves_storing = True

    def counts(self, queue: str) -> Counts:
        return Counts(ready=len(queue), consumers=2)

    def unfiled(self) -> int:
        return 4


class Down(Shared):
    asked = 0

    def counts(self, queue: str) -> Counts:
        Down.asked += 1
        raise BackendUnavailable("no connection to the broker")


SHARED = {
    "BACKEND": "tests.commands.test_jobq_status.Shared",
    "DATABASE": USING,
    "QUEUES": ["default", "email"],
}
DOWN = {**SHARED, "BACKEND": "tests.commands.test_jobq_status.Down"}
MEMORY = {"BACKEND": "django_jobq.backends.memory.MemoryBackend", "QUEUES": ["default"]}

stores = pytest.mark.django_db(transaction=True, databases=[USING])


def text(capsys: Capture, *arguments: str) -> str:
    call_command("jobq_status", *arguments)
    return capsys.readouterr().out


def tree(capsys: Capture, *arguments: str) -> Any:
    return json.loads(text(capsys, "--format=json", *arguments))


def unavailable(capsys: Capture, *arguments: str) -> str:
    """Return what is written when a backend cannot be read."""
    with pytest.raises(CommandError, match=r"^unavailable: ") as failure:
        call_command("jobq_status", *arguments)
    assert failure.value.returncode == EXIT_UNAVAILABLE == 69
    return capsys.readouterr().out


# What is read


@pytest.mark.contract(22, 203)
@stores
def test_json_has_a_fixed_shape(settings: Any, capsys: Capture) -> None:
    settings.JOBQ = {"default": SHARED}
    assert tree(capsys) == {
        "status": "ok",
        "backends": {
            "default": {
                "status": "ok",
                "driver": "shared",
                "reason": None,
                "note": None,
                "unfiled": 4,
                "queues": {
                    name: {
                        "ready": ready,
                        "held": 0,
                        "undelivered": 0,
                        "oldest_undelivered": None,
                        "dead": 0,
                        "consumers": 2,
                        "note": None,
                    }
                    for name, ready in (("default", 7), ("email", 5))
                },
            }
        },
    }


@pytest.mark.contract(203)
@stores
def test_the_database_tells_what_is_held_and_undelivered(settings: Any, capsys: Capture) -> None:
    settings.JOBQ = {"default": SHARED}
    put(envelope(queue="email"), 300)
    enqueue(envelope(), envelope())
    file(letter(queue="email"))
    elapse(120)
    queues = tree(capsys)["backends"]["default"]["queues"]
    stored = ("held", "undelivered", "dead")
    assert [queues["email"][key] for key in stored] == [1, 0, 1]
    assert [queues["default"][key] for key in stored] == [0, 2, 0]
    assert 120 <= queues["default"]["oldest_undelivered"] < 180
    assert text(capsys).splitlines() == [
        "default (shared): ok",
        "  queue    ready  held    undelivered  dead  consumers",
        "  default      7     0  2 (oldest 2m)     0          2",
        "  email        5     1              0     1          2",
        "  dead letters not filed yet: 4",
    ]


@stores
def test_jobs_of_a_queue_that_nobody_names_are_not_hidden(settings: Any, capsys: Capture) -> None:
    settings.JOBQ = {"default": SHARED}
    put(envelope(queue="retired"), 300)
    retired = tree(capsys)["backends"]["default"]["queues"]["retired"]
    assert (retired["ready"], retired["held"]) == (None, 1)
    assert "not named by JOBQ" in retired["note"]
    file(letter(queue=""))
    shown = text(capsys)
    assert "  (none)  " in shown
    assert "not named by JOBQ, so that no worker serves it: (none), retired" in shown


@stores
@pytest.mark.parametrize(
    ("keys", "held", "undelivered"),
    [
        ({"OUTBOX": "off"}, 0, None),
        ({"HOLDS": "broker"}, None, 0),
        ({"OUTBOX": "off", "HOLDS": "broker"}, None, None),
    ],
)
def test_what_the_database_does_not_store_it_does_not_count(
    settings: Any,
    capsys: Capture,
    keys: dict[str, str],
    held: int | None,
    undelivered: int | None,
) -> None:
    settings.JOBQ = {"default": {**SHARED, **keys}}
    queue = tree(capsys)["backends"]["default"]["queues"]["default"]
    assert (queue["held"], queue["undelivered"]) == (held, undelivered)


def test_without_a_table_in_use_no_database_is_asked(settings: Any, capsys: Capture) -> None:
    settings.JOBQ = {"default": {**SHARED, "OUTBOX": "off", "HOLDS": "broker"}}
    assert tree(capsys)["status"] == "ok"


@stores
def test_holds_that_an_earlier_setting_left_are_shown(settings: Any, capsys: Capture) -> None:
    settings.JOBQ = {"default": {**SHARED, "HOLDS": "broker"}}
    put(envelope(), 300)
    assert tree(capsys)["backends"]["default"]["queues"]["default"]["held"] == 1


@pytest.mark.contract(22, 203)
def test_the_memory_backend_says_whose_jobs_it_counts(
    memory: MemoryBackend, capsys: Capture
) -> None:
    @job(name="shop.jobs.ship")
    def ship() -> None: ...

    ship.enqueue()
    ship.enqueue_after("5m")
    backend = tree(capsys)["backends"]["default"]
    assert (backend["status"], backend["unfiled"]) == ("ok", None)
    assert "inside the process that enqueues them" in backend["note"]
    assert backend["queues"]["default"] == {
        "ready": 1,
        "held": 1,
        "undelivered": None,
        "oldest_undelivered": None,
        "dead": 0,
        "consumers": None,
        "note": None,
    }
    assert text(capsys).splitlines() == [
        "default (memory): ok",
        "  The memory backend keeps jobs inside the process that enqueues them; these are",
        "  the jobs of the process that asks.",
        "  queue    ready  held  undelivered  dead  consumers",
        "  default      1     1            -     0          -",
    ]


def test_a_process_of_its_own_reads_the_memory_backend_and_ends_well() -> None:
    done = manage("jobq_status", "--backend=memory", PROJECT_MEMORY="1")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("memory (memory): ok\n")


@pytest.mark.parametrize(
    ("seconds", "age"),
    [(0, "0s"), (119.4, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (10 * 86400, "10d")],
)
def test_ages_are_short(seconds: float, age: str) -> None:
    assert jobq_status._age(seconds) == age


@stores
def test_the_table_fits_a_terminal(settings: Any, capsys: Capture) -> None:
    settings.JOBQ = {"default": {**SHARED, "QUEUES": ["a-queue-of-thirty-characters.."]}}
    for _ in range(1000):
        enqueue(envelope(queue="a-queue-of-thirty-characters.."))
    elapse(3 * 86400)
    shown = text(capsys)
    assert "1000 (oldest 3d)" in shown
    assert max(map(len, shown.splitlines())) <= 80


# What is chosen


def test_every_alias_or_one(settings: Any, capsys: Capture) -> None:
    settings.JOBQ = {"default": MEMORY, "second": {**MEMORY, "QUEUES": ["far"]}}
    assert list(tree(capsys)["backends"]) == ["default", "second"]
    assert list(tree(capsys, "--backend=second")["backends"]) == ["second"]
    default, second = text(capsys).split("\n\n")
    assert default.startswith("default (memory): ok\n")
    assert second.startswith("second (memory): ok\n")


def test_queues_are_repeatable_and_a_comma_list(settings: Any, capsys: Capture) -> None:
    settings.JOBQ = {"default": {**MEMORY, "QUEUES": ["default", "email", "bulk"]}}
    for arguments in (["-q", "bulk", "-q", "email"], ["--queue=email, bulk"]):
        assert list(tree(capsys, *arguments)["backends"]["default"]["queues"]) == ["email", "bulk"]
    call_command("jobq_status", queues="email", verbosity=0)
    assert "bulk" not in capsys.readouterr().out


def test_a_queue_of_one_alias_is_no_error_of_the_other(settings: Any, capsys: Capture) -> None:
    settings.JOBQ = {"default": MEMORY, "second": {**MEMORY, "QUEUES": ["far"]}}
    backends = tree(capsys, "--queue=far")["backends"]
    assert {alias: list(backend["queues"]) for alias, backend in backends.items()} == {
        "default": [],
        "second": ["far"],
    }


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("--backend=defualt", "JOBQ has no backend 'defualt' (known: default)"),
        ("--queue=defualt", "no backend has the queue 'defualt'; did you mean 'default'?"),
        ("--queue=", "--queue names no queue"),
    ],
)
def test_what_does_not_exist_is_refused(
    settings: Any, capsys: Capture, argument: str, words: str
) -> None:
    settings.JOBQ = {"default": MEMORY}
    with pytest.raises(CommandError) as refusal:
        call_command("jobq_status", argument)
    assert (str(refusal.value), refusal.value.returncode) == (words, 1)
    assert capsys.readouterr().out == ""


def test_settings_that_cannot_be_read_are_told(settings: Any) -> None:
    settings.JOBQ = []
    with pytest.raises(CommandError, match="JOBQ is no dict") as refusal:
        call_command("jobq_status")
    assert refusal.value.returncode == 1


# What cannot be read


@pytest.mark.contract(203)
@stores
def test_a_transport_that_is_down_is_asked_once_and_the_database_still_tells(
    settings: Any, capsys: Capture
) -> None:
    settings.JOBQ = {"default": DOWN, "memory": MEMORY}
    enqueue(envelope(), envelope())
    Down.asked = 0
    shown = unavailable(capsys).splitlines()
    assert Down.asked == 1
    assert shown[:2] == ["default (shared): unavailable", "  no connection to the broker"]
    assert shown[3].split()[:4] == ["default", "-", "0", "2"]
    assert "memory (memory): ok" in shown
    found = json.loads(unavailable(capsys, "--format=json"))
    assert found["status"] == found["backends"]["default"]["status"] == "unavailable"
    assert found["backends"]["memory"]["status"] == "ok"
    assert found["backends"]["default"]["reason"] == "no connection to the broker"
    assert found["backends"]["default"]["unfiled"] is None
    assert found["backends"]["default"]["queues"]["default"]["ready"] is None
    assert found["backends"]["default"]["queues"]["default"]["undelivered"] == 2


@pytest.mark.contract(203)
@stores
def test_a_missing_table_is_a_hint_to_migrate(settings: Any, capsys: Capture) -> None:
    settings.JOBQ = {"default": SHARED}
    options = {"database": USING, "verbosity": 0, "skip_checks": True}
    try:
        call_command("migrate", "jobq", "zero", **options)
        capsys.readouterr()
        found = json.loads(unavailable(capsys, "--format=json"))["backends"]["default"]
    finally:
        call_command("migrate", "jobq", **options)
    assert found["reason"] == (
        f"database {USING!r} has no table of stored jobs: run manage.py migrate --database {USING}"
    )
    queue = found["queues"]["default"]
    assert (queue["ready"], queue["held"], queue["undelivered"]) == (7, None, None)


@pytest.mark.contract(203)
def test_a_database_that_is_down_is_told_in_one_line(
    settings: Any, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OperationalError("connection failed:\n\tConnection refused\n")

    monkeypatch.setattr(census, "by_queue", refuse)
    settings.JOBQ = {"default": SHARED}
    found = json.loads(unavailable(capsys, "--format=json"))["backends"]["default"]
    assert found["reason"] == f"database {USING!r}: connection failed: Connection refused"


def test_a_database_that_is_not_configured_is_told(settings: Any, capsys: Capture) -> None:
    settings.JOBQ = {"default": {**SHARED, "DATABASE": "nowhere"}}
    assert "database 'nowhere': " in unavailable(capsys)


def test_a_backend_that_cannot_be_made_leaves_the_others(settings: Any, capsys: Capture) -> None:
    settings.JOBQ = {"default": {"BACKEND": "nowhere.Backend"}, "memory": MEMORY}
    found = json.loads(unavailable(capsys, "--format=json"))["backends"]
    assert found["default"]["driver"] is None
    assert "nowhere.Backend" in found["default"]["reason"]
    assert found["default"]["queues"] == {}
    assert found["memory"]["status"] == "ok"
    assert unavailable(capsys).startswith("default: unavailable\n")


def test_nothing_that_is_known_is_left_out_of_json(settings: Any, capsys: Capture) -> None:
    settings.JOBQ = {"default": MEMORY}
    backend = tree(capsys)["backends"]["default"]
    names = {field.name for field in dataclasses.fields(BackendStatus)}
    assert set(backend) == names - {"alias"} | {"status"}
    names = {field.name for field in dataclasses.fields(QueueStatus)}
    assert set(backend["queues"]["default"]) == names - {"name"}
