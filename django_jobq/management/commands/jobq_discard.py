"""``manage.py jobq_discard``: resolve dead letters whose jobs are not to run again."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from django_jobq.backends.base import Backend
from django_jobq.management.letters import LettersCommand
from django_jobq.store import dead_letters


class Command(LettersCommand):
    """Discard dead letters."""

    help = "Resolves dead letters whose jobs are not to run again."
    done = "discarded"

    def resolve(self, ids: Collection[int], backend: Backend) -> tuple[int, Mapping[int, str]]:
        """Resolve the letters; they are deleted once the retention is over."""
        return dead_letters.discard(ids, using=backend.settings.database), {}
