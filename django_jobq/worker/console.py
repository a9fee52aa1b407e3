"""Log lines on the terminal for projects whose LOGGING says nothing of ours.

A project that handles ``django_jobq`` records, or all records, keeps its own configuration.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

# They write several ERROR lines for each attempt to connect, of which ours tell in one.
_CLIENTS = ("aio_pika", "aiormq", "pika")
LEVELS = {0: logging.WARNING, 1: logging.INFO}


def show_logs(verbosity: int) -> None:
    """Write our records to standard error, if nobody else handles them."""
    logger = logging.getLogger("django_jobq")
    is_ours = not logger.hasHandlers()
    if is_ours:
        handler = logging.StreamHandler()
        handler.setFormatter(
            logging.Formatter("{asctime} {levelname:<7} {message}", "%H:%M:%S", "{")
        )
        logger.addHandler(handler)
        _silence(_CLIENTS)
    # A project that handles our records decides on their level too, unless -v asks for another.
    if logger.level == logging.NOTSET and (is_ours or verbosity != 1):
        logger.setLevel(LEVELS.get(verbosity, logging.DEBUG))


def _silence(names: Iterable[str]) -> None:
    for name in names:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET and not logger.handlers:
            logger.setLevel(logging.CRITICAL)
