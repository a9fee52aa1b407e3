"""``manage.py jobq_requeue``: let the jobs of dead letters run again."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from django_jobq.backends.base import Backend
from django_jobq.management.letters import LettersCommand
from django_jobq.store import dead_letters


class Command(LettersCommand):
    """Requeue dead letters."""

    help = "Lets the jobs of dead letters run again, from their first attempt."
    done = "requeued"

    def resolve(self, ids: Collection[int], backend: Backend) -> tuple[int, Mapping[int, str]]:
        """Hold the jobs in the database, from where the workers publish them."""
        result = dead_letters.requeue(ids, using=backend.settings.database)
        return result.count, result.refused
