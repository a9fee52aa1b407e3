"""``manage.py jobq_worker``: runworker under a name that no other app has."""

from django_jobq.management.commands.runworker import Command

__all__ = ["Command"]
