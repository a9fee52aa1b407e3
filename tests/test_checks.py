"""System checks: each with its id, its text and its advice, and none that connects."""

from typing import Any

import pytest
from django.core import checks, mail
from django.test import override_settings

from django_jobq import job
from django_jobq.backends import handler
from django_jobq.backends.handler import backends
from django_jobq.checks import check_jobq
from django_jobq.conf import MEMORY_BACKEND, RABBITMQ_BACKEND

MEMORY = {"BACKEND": MEMORY_BACKEND}


def run() -> None: ...


def another_run() -> None: ...


def found(**jobq: Any) -> list[tuple[str, str, str]]:
    """Return id, text and hint of what the check says of a JOBQ setting."""
    with override_settings(JOBQ=jobq):
        messages = check_jobq()
    assert all(type(message) is checks.Error for message in messages)
    return [(message.id, message.msg, message.hint) for message in messages]


def test_a_sound_project_passes() -> None:
    assert found(default=MEMORY) == []


def test_the_check_is_registered_under_its_tag() -> None:
    assert checks.run_checks(tags=["jobq"]) == []
    with override_settings(JOBQ=None):
        assert [message.id for message in checks.run_checks(tags=["jobq"])] == ["jobq.E001"]


@pytest.mark.contract(90)
@pytest.mark.parametrize(
    ("jobq", "text"),
    [
        ({"default": {}}, "JOBQ['default'] has no 'BACKEND'"),
        (
            {"default": {**MEMORY, "QUEUES": {"email": {"retry": {"factor": 0}}}}},
            "JOBQ['default']['QUEUES']['email']['retry']: retry: factor 0 is no finite number above"
            " 0",
        ),
        (
            {"default": {"BACKEND": RABBITMQ_BACKEND, "QUEUES": {"a": {"durable": False}}}},
            "JOBQ['default']['QUEUES']['a']['durable']: False is refused, since jobs must survive a"
            " restart of their broker: leave 'durable' out; work that may be lost belongs to an"
            " alias with the memory backend",
        ),
        (
            {"default": {**MEMORY, "QUEUES": ["a*"]}},
            "JOBQ['default']['QUEUES']['a*']: a queue name holds neither *, # nor control"
            " characters",
        ),
    ],
)
def test_e001_a_setting_that_cannot_be_read(jobq: dict[str, Any], text: str) -> None:
    assert found(**jobq) == [("jobq.E001", text, "Correct the JOBQ setting.")]


@pytest.mark.contract(90)
@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (
            {"BACKEND": "shop.queues.Missing"},
            "JOBQ['default']['BACKEND']: cannot import 'shop.queues.Missing': No module named"
            " 'shop'",
        ),
        (
            {"BACKEND": "Missing"},
            "JOBQ['default']['BACKEND']: cannot import 'Missing': Missing doesn't look like a"
            " module path",
        ),
        (
            {"BACKEND": "django_jobq.conf.AliasSettings"},
            "JOBQ['default']['BACKEND']: 'django_jobq.conf.AliasSettings' is no Backend class",
        ),
        (
            {**MEMORY, "OPTIONS": {"max_pendng": 5}},
            "JOBQ['default']['OPTIONS']: unknown key 'max_pendng'; did you mean 'max_pending'?",
        ),
    ],
)
def test_e002_a_backend_that_cannot_be_made(entry: dict[str, Any], text: str) -> None:
    assert found(default=entry) == [("jobq.E002", text, "Correct JOBQ['default'].")]


@pytest.mark.contract(90)
def test_e002_every_alias_is_checked() -> None:
    said = found(default=MEMORY, a={"BACKEND": "x.A"}, b={"BACKEND": "x.B"})
    assert [(number, hint) for number, _, hint in said] == [
        ("jobq.E002", "Correct JOBQ['a']."),
        ("jobq.E002", "Correct JOBQ['b']."),
    ]


@pytest.mark.contract(54)
def test_e003_two_functions_under_one_name() -> None:
    job(name="same")(run)
    job(name="same")(another_run)
    places = [
        f"{__file__}:{func.__code__.co_firstlineno} ({__name__}.{func.__name__})"
        for func in (run, another_run)
    ]
    assert found(default=MEMORY) == [
        (
            "jobq.E003",
            f"Two functions are registered as job 'same': {places[0]} and {places[1]}.",
            "Give one of them another name.",
        )
    ]


@pytest.mark.contract(54)
def test_e003_the_same_function_twice_is_none() -> None:
    job(name="same")(run)
    job(name="same")(run)
    assert found(default=MEMORY) == []


@pytest.mark.contract(90)
def test_e004_a_job_of_an_unknown_backend() -> None:
    job(name="lost", backend="defualt")(run)
    [(number, text, hint)] = found(default=MEMORY, second=MEMORY)
    assert number == "jobq.E004"
    assert text == "Job lost uses the backend 'defualt', which JOBQ does not name."
    assert "did you mean 'default'?" in hint


@pytest.mark.contract(90)
def test_e004_the_hint_is_a_sentence() -> None:
    job(name="lost", backend="defualt")(run)
    job(name="far", backend="zzz")(run)
    close, far = [hint for _, _, hint in found(default=MEMORY)]
    assert not close.endswith("?.")
    assert far.count("default") == 1


@pytest.mark.contract(90)
def test_e004_a_project_without_any_backend() -> None:
    said = found()
    assert [number for number, _, _ in said] == ["jobq.E004"]
    assert said[0][1] == (
        "Job tests.app.jobs.note uses the backend 'default', which JOBQ does not name."
    )
    assert "none" in said[0][2]


@pytest.fixture
def production(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this process not look like one of a test runner."""
    monkeypatch.delattr(mail, "outbox")


@pytest.mark.usefixtures("production")
def test_e005_the_memory_backend_in_production() -> None:
    assert found(default=MEMORY) == [
        (
            "jobq.E005",
            "JOBQ['default'] is the memory backend and DEBUG is off: its jobs live in one process"
            " and are lost with it.",
            "Choose a backend that keeps jobs, or set OPTIONS['allow_in_production'] to True.",
        )
    ]


@pytest.mark.usefixtures("production")
def test_e005_is_silent_where_it_was_allowed() -> None:
    assert found(default={**MEMORY, "OPTIONS": {"allow_in_production": True}}) == []


@pytest.mark.usefixtures("production")
@override_settings(DEBUG=True)
def test_e005_is_silent_in_development() -> None:
    assert found(default=MEMORY) == []


@pytest.mark.contract(90)
def test_e006_a_job_of_an_unknown_queue() -> None:
    job(name="send", queue="emial")(run)
    [(number, text, hint)] = found(default={**MEMORY, "QUEUES": ["default", "email"]})
    assert number == "jobq.E006"
    assert text == "Job send uses the queue 'emial', which JOBQ['default'] does not name."
    assert hint.startswith("Add it to JOBQ['default']['QUEUES'], or correct the job")
    assert "did you mean 'email'?" in hint


@pytest.mark.contract(90)
def test_e006_the_hint_is_a_sentence() -> None:
    job(name="send", queue="emial")(run)
    [(_, _, hint)] = found(default={**MEMORY, "QUEUES": ["default", "email"]})
    assert not hint.endswith("?.")


@pytest.mark.contract(90)
def test_e006_without_queues_every_queue_of_a_job_is_known() -> None:
    job(name="send", queue="whatever")(run)
    assert found(default=MEMORY) == []


@pytest.mark.contract(90)
@pytest.mark.parametrize(("max_priority", "priority", "last"), [(5, 5, 4), (1, 1, 0)])
def test_e007_a_priority_without_a_level(max_priority: int, priority: int, last: int) -> None:
    job(name="urgent", queue="email", priority=priority)(run)
    entry = {**MEMORY, "QUEUES": {"default": {}, "email": {"max_priority": max_priority}}}
    assert found(default=entry) == [
        (
            "jobq.E007",
            f"Job urgent: priority {priority} does not fit queue 'email', whose priorities are 0 to"
            f" {last}.",
            "Lower the job's priority.",
        )
    ]


def test_e007_a_queue_without_levels_takes_every_priority() -> None:
    job(name="urgent", queue="email", priority=200)(run)
    entry = {**MEMORY, "QUEUES": {"default": {}, "email": {"max_priority": 0}}}
    assert found(default=entry) == []


@pytest.mark.contract(45)
def test_no_check_opens_a_backend_or_shows_a_url() -> None:
    said = found(
        default={**MEMORY, "URL": "amqp://user:secret@host", "OPTIONS": {"x": 1}},
        broken={"BACKEND": "x.A", "URL": "amqp://user:secret@host"},
    )
    assert [number for number, _, _ in said] == ["jobq.E002", "jobq.E002"]
    assert "secret" not in str(said)
    assert backends.opened() == []


def test_a_backend_whose_packages_are_missing_names_the_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(path: str) -> None:
        raise ModuleNotFoundError("No module named 'aio_pika'")

    monkeypatch.setattr(handler, "import_string", refuse)
    with override_settings(JOBQ={"default": {"BACKEND": RABBITMQ_BACKEND, "URL": "amqp://h"}}):
        (error,) = [item for item in check_jobq() if item.id == "jobq.E002"]
    assert error.msg.endswith(
        "No module named 'aio_pika'; run pip install \"django-jobq[rabbitmq]\""
    )


@override_settings(JOBQ_AUTODISCOVERY="jobs", JOBQ_URL="amqp://guest:guest@localhost/")
def test_e008_a_setting_that_nothing_reads() -> None:
    assert found(default=MEMORY) == [
        (
            "jobq.E008",
            "The setting JOBQ_AUTODISCOVERY is read by nothing.",
            "Correct its name; did you mean 'JOBQ_AUTODISCOVER'?",
        )
    ]


@override_settings(JOBQ_COLOUR="blue")
def test_e008_names_the_known_settings_when_none_is_near() -> None:
    [(_, _, hint)] = found(default=MEMORY)
    names = "JOBQ, JOBQ_AUTODISCOVER, JOBQ_ON_DEAD_LETTER, JOBQ_RETENTION"
    assert hint == f"Correct its name; known: {names}"


@override_settings(JOBQ_RETENTION="for ever")
def test_e001_a_retention_that_is_no_duration() -> None:
    [(number, text, hint)] = found(default=MEMORY)
    assert (number, hint) == ("jobq.E001", "Write a duration such as '30d', or None.")
    assert text.startswith("JOBQ_RETENTION: 'for ever' is no duration")


@override_settings(JOBQ_AUTODISCOVER=None, JOBQ_ON_DEAD_LETTER=None)
def test_e008_leaves_the_known_settings_alone() -> None:
    assert found(default=MEMORY) == []


STORING = {"BACKEND": "tests.remote.StoringBackend"}


@pytest.mark.contract(90)
@pytest.mark.parametrize("entry", [MEMORY, STORING])
def test_e010_a_database_that_does_not_exist(entry: dict[str, Any]) -> None:
    assert found(default={**entry, "DATABASE": "othr", "OUTBOX_DATABASES": ["default", "x"]}) == [
        (
            "jobq.E010",
            "JOBQ['default']['DATABASE']: DATABASES has no alias 'othr'.",
            "Correct its name; did you mean 'other'?",
        ),
        (
            "jobq.E010",
            "JOBQ['default']['OUTBOX_DATABASES']: DATABASES has no alias 'x'.",
            "Correct its name; known: default, other, stored",
        ),
    ]


def test_e010_known_databases_pass() -> None:
    assert found(default={**STORING, "DATABASE": "other", "OUTBOX_DATABASES": ["stored"]}) == []


def test_e011_aliases_that_differ_only_in_case() -> None:
    another = {**STORING, "DATABASE": "other", "OUTBOX": "off"}
    shared = {"OUTBOX_DATABASES": ["other"]}
    assert found(default=MEMORY, mail=another, Mail={**STORING, **shared}) == [
        (
            "jobq.E011",
            "JOBQ['mail'] and JOBQ['Mail'] store jobs in database 'other' and differ only in case.",
            "Give one of them another name.",
        )
    ]


@pytest.mark.parametrize(
    "entry",
    [MEMORY, {**STORING, "DATABASE": "other"}, {**STORING, "OUTBOX": "off", "HOLDS": "broker"}],
)
def test_e011_is_silent_where_no_table_is_shared(entry: dict[str, Any]) -> None:
    assert found(default=MEMORY, mail=STORING, Mail=entry) == []
