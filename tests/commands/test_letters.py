"""jobq_requeue, jobq_discard and jobq_prune: which letters they take, and what they say."""

import io
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db.models import F

from django_jobq.models import DeadLetter
from django_jobq.store import dead_letters
from tests.store.tools import USING, claim, envelope, file, letter, put, stored
from tests.stored.conftest import StoringBackend, make_storing, storing

__all__ = ["make_storing", "storing"]

pytestmark = [
    pytest.mark.django_db(transaction=True, databases=[USING]),
    pytest.mark.usefixtures("storing"),
]

Letters = list[DeadLetter]


@pytest.fixture
def letters() -> Letters:
    return file(
        letter(envelope(job="shop.ship"), queue="ship"),
        letter(envelope(job="shop.ship"), queue="ship", cause="fatal"),
        letter(envelope(job="shop.mail"), queue="mail", cause="fatal"),
        letter(b"\0", queue="mail", cause="decode"),
    )


def run(command: str, *arguments: Any, **options: Any) -> str:
    out, err = io.StringIO(), io.StringIO()
    try:
        call_command(command, *map(str, arguments), stdout=out, stderr=err, **options)
    except CommandError as error:
        return f"{out.getvalue()}{err.getvalue()}{error}"
    return out.getvalue().strip()


def resolutions() -> list[str]:
    return [row.resolution for row in file()]


@pytest.mark.contract(117)
def test_letters_are_chosen_by_their_ids_and_those_of_their_jobs(letters: Letters) -> None:
    assert run("jobq_requeue", letters[0].pk, letters[2].job_id) == "2 dead letter(s) requeued"
    assert resolutions() == ["requeued", "open", "requeued", "open"]
    assert [row.job for row in stored()] == ["shop.ship", "shop.mail"]


@pytest.mark.contract(117)
@pytest.mark.parametrize(
    ("arguments", "chosen"),
    [
        (["--job", "shop.ship"], [0, 1]),
        (["--queue", "mail"], [2, 3]),
        (["--cause", "fatal"], [1, 2]),
        (["--cause", "fatal", "--queue", "mail"], [2]),
        (["--all", "--job", "shop.mail"], [2]),
        (["--job", "none"], []),
        (["--all"], [0, 1, 2, 3]),
    ],
)
def test_letters_are_chosen_by_what_they_have_in_common(
    letters: Letters, arguments: list[str], chosen: list[int]
) -> None:
    assert run("jobq_discard", *arguments) == f"{len(chosen)} dead letter(s) discarded"
    assert [n for n, text in enumerate(resolutions()) if text == "discarded"] == chosen
    assert stored() == []


def test_letters_are_chosen_by_the_kind_of_their_failure(letters: Letters) -> None:
    assert run("jobq_requeue", "--fingerprint", letters[1].fingerprint) == (
        "1 dead letter(s) requeued"
    )
    assert resolutions() == ["open", "requeued", "open", "open"]


def test_a_dry_run_only_counts(letters: Letters) -> None:
    assert [line.split() for line in run("jobq_requeue", "--all", "--dry-run").splitlines()] == [
        ["1", "decode", "(no", "envelope)"],
        ["1", "fatal", "shop.mail"],
        ["1", "exhausted", "shop.ship"],
        ["1", "fatal", "shop.ship"],
        ["4", "dead", "letter(s)", "would", "be", "requeued"],
    ]
    assert set(resolutions()) == {"open"}


@pytest.mark.contract(119)
def test_what_cannot_be_requeued_is_told_and_the_rest_is_requeued(letters: Letters) -> None:
    put(envelope(job_id=letters[0].job_id))
    claim()
    said = run("jobq_requeue", "--all")
    assert said.startswith("2 dead letter(s) requeued")
    assert "mail (decode) has no job that could run" in said
    assert f"{letters[0].job_id} is being published just now" in said
    assert said.endswith("2 dead letter(s) not requeued")
    assert resolutions() == ["open", "requeued", "requeued", "open"]


def test_ids_of_nothing_that_is_open_are_refused_and_nothing_is_done(letters: Letters) -> None:
    run("jobq_discard", letters[0].pk)
    unknown = uuid.uuid4()
    said = run("jobq_requeue", letters[0].pk, letters[1].pk, unknown)
    assert said == f"no such open dead letter: {letters[0].pk}, {unknown}"
    assert resolutions()[1] == "open"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name ids, or --job, --queue, --cause or --fingerprint, or --all"),
        (["seven"], "'seven' is neither the id of a letter nor of a job"),
        (["--all", "--backend", "slow"], "JOBQ has no backend 'slow'"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments: list[str], said: str) -> None:
    assert run("jobq_requeue", *arguments).startswith(said)


def test_a_backend_that_keeps_its_letters_itself_is_refused(
    make_storing: Callable[..., StoringBackend],
) -> None:
    make_storing().leaves_storing = False  # type: ignore[misc]
    assert run("jobq_requeue", "--all").startswith("JOBQ['default'] is the memory backend, which")


def test_letters_of_other_backends_are_left_alone(letters: Letters) -> None:
    file(letter(), alias="slow")
    run("jobq_discard", "--all")
    assert resolutions()[-1] == "open"


def age(letters: Letters, **ago: float) -> None:
    """Let letters be discarded so long ago."""
    ids = [row.pk for row in letters]
    dead_letters.discard(ids, using=USING)
    resolved = DeadLetter.objects.using(USING).filter(id__in=ids)
    resolved.update(resolved_at=F("resolved_at") - timedelta(**ago))


def prune(*arguments: str) -> str:
    return run("jobq_prune", "--database", USING, *arguments)


@pytest.mark.contract(117)
def test_prune_deletes_what_was_resolved_long_ago(letters: Letters) -> None:
    age(letters[:2], days=31)
    age(letters[2:3], days=2)
    assert prune("--dry-run") == "stored: 2 dead letter(s) would be deleted"
    assert (prune("--batch", "1"), len(file())) == ("stored: 2 dead letter(s) deleted", 2)
    assert prune() == "stored: 0 dead letter(s) deleted"
    assert (prune("--older-than", "1d"), len(file())) == ("stored: 1 dead letter(s) deleted", 1)
    assert (prune("--older-than", "0s"), resolutions()) == (
        "stored: 0 dead letter(s) deleted",
        ["open"],
    )


def test_prune_takes_the_databases_of_the_backends(settings: Any) -> None:
    settings.JOBQ = {
        name: {"BACKEND": "django_jobq.backends.memory.MemoryBackend", "DATABASE": USING}
        for name in ("default", "slow")
    }
    assert run("jobq_prune") == "stored: 0 dead letter(s) deleted"


def test_prune_wants_to_know_how_old_if_everything_is_kept(settings: Any) -> None:
    settings.JOBQ_RETENTION = None
    assert prune() == "JOBQ_RETENTION keeps everything: give --older-than"
    assert prune("--older-than", "1d") == "stored: 0 dead letter(s) deleted"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--batch", "0"], "--batch is a whole number from 1"),
        (["--older-than", "a month"], "'a month' is no duration"),
    ],
)
def test_prune_refuses_what_makes_no_sense(arguments: list[str], said: str) -> None:
    assert prune(*arguments).startswith(said)
