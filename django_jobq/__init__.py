"""Background jobs for Django: on RabbitMQ, or in memory."""

from django_jobq.context import JobContext, current_job
from django_jobq.control import Defer, Fatal, JobControl, JobTimeout, Retry
from django_jobq.decorator import job
from django_jobq.jobs import Job, PreparedJob, aenqueue_many, enqueue_many
from django_jobq.publication import EnqueuedJob
from django_jobq.retry import RetryPolicy

__version__ = "0.1.0"

__all__ = [
    "Defer",
    "EnqueuedJob",
    "Fatal",
    "Job",
    "JobContext",
    "JobControl",
    "JobTimeout",
    "PreparedJob",
    "Retry",
    "RetryPolicy",
    "aenqueue_many",
    "current_job",
    "enqueue_many",
    "job",
]
