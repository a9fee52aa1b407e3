"""The migrations make what the models say, on every supported Django, and can be taken back."""

import pytest
from django.core.management import call_command
from django.db import connections

from tests.store.tools import USING

pytestmark = pytest.mark.django_db(transaction=True, databases=[USING])


@pytest.mark.django_db(databases=["default", "other", USING])
def test_nothing_is_left_to_migrate() -> None:
    call_command("makemigrations", "jobq", check=True, dry_run=True, skip_checks=True, verbosity=0)


def test_they_can_be_taken_back() -> None:
    def tables() -> set[str]:
        names = connections[USING].introspection.table_names()
        return {name for name in names if name.startswith("jobq_")}

    options = {"database": USING, "verbosity": 0, "skip_checks": True}
    try:
        call_command("migrate", "jobq", "zero", **options)
        assert tables() == set()
    finally:
        call_command("migrate", "jobq", **options)
    assert tables() == {"jobq_deadletter", "jobq_jobstart", "jobq_storedjob"}
