"""What happens to jobs, as Django signals.

The sender is the registered Job, or None if there is none. Durations are float seconds. Receivers
run robustly: what one raises is logged and changes nothing. Receivers of the worker's signals run
where the job ran, all but those of job_started after its outcome is stored.

=====================  =======================================================================
signal                 keyword arguments
=====================  =======================================================================
job_enqueued           envelope, delay, backend (alias), driver
job_enqueue_failed     envelope, error, backend (alias): lost, as publishing failed after the commit
job_started            context
job_succeeded          context, duration
job_retried            context, duration, error, delay, next_attempt
job_deferred           context, duration, delay, reason, deferrals
job_dead_lettered      envelope (None if it cannot be decoded), cause, reason, max_attempts,
                       context, duration, error (None if the job did not run)
=====================  =======================================================================

job_enqueued is sent once the job is durably accepted: the transport has confirmed it, or its row is
committed. A quick job may have started before. Nothing tells of a commit while autocommit is off.
"""

from __future__ import annotations

import logging
from asyncio import CancelledError
from typing import Any

from django.dispatch import Signal

logger = logging.getLogger("django_jobq.signals")

job_enqueued = Signal()
job_enqueue_failed = Signal()
job_started = Signal()
job_succeeded = Signal()
job_retried = Signal()
job_deferred = Signal()
job_dead_lettered = Signal()


def send(signal: Signal, sender: Any, **kwargs: Any) -> None:
    """Send a signal so that no receiver changes what happens next.

    Behind one that exits or is cancelled the other receivers are not called.
    """
    try:
        signal.send_robust(sender, **kwargs)
    except (SystemExit, CancelledError) as error:
        # send_robust() logs an Exception by itself and lets these through.
        logger.exception("A signal receiver raised %s; ignored", type(error).__name__)
