"""What the broker and its client say, as errors of the library; theirs is the cause."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from pika.exceptions import ChannelClosedByBroker

from django_jobq.backends.rabbitmq.url import BrokerAddress
from django_jobq.exceptions import (
    AccessRefused,
    BackendError,
    BackendUnavailable,
    PublishFailed,
    TopologyMismatch,
)

if TYPE_CHECKING:
    from django_jobq.backends.rabbitmq.publisher.items import Publish

NOT_FOUND, PRECONDITION_FAILED, REFUSED = 404, 406, 403


def copy_of(error: BackendError) -> BackendError:
    """Return an error for one more waiter: what is raised twice grows its traceback."""
    copy = type(error)(*error.args)
    copy.__cause__ = error.__cause__
    return copy


def connect_error(address: BrokerAddress, error: Any) -> BackendError:
    """Tell a refusal, which no waiting mends, from an outage.

    The client guesses at a refusal whenever a connection ends early; the broker's own words count.
    """
    text = f"{error} {getattr(error, 'exceptions', '')}"
    found: BackendError
    if "ACCESS_REFUSED" in text:
        found = AccessRefused(f"the broker refuses the user or password of {address}")
    elif "NOT_ALLOWED" in text:
        found = AccessRefused(f"the broker refuses or does not have the vhost of {address}")
    else:
        reason = str(error) or type(error).__name__
        found = BackendUnavailable(f"cannot connect to {address}: {reason}")
    found.__cause__ = error if isinstance(error, BaseException) else None
    return found


def is_about(reason: ChannelClosedByBroker, item: Publish) -> bool:
    """Return whether a publish is what the broker closed its channel for, as far as it says so."""
    if reason.reply_code in (NOT_FOUND, REFUSED):
        return f"'{item.exchange}'" in reason.reply_text
    # "message size 20000000 is larger than configured max size 16777216"
    sizes = [int(number) for number in re.findall(r"\d+", reason.reply_text)]
    return "size" in reason.reply_text and len(sizes) > 1 and len(item.message.body) > sizes[-1]


def channel_error(reason: ChannelClosedByBroker, what: str) -> BackendError:
    """Return what the broker closed a channel for, while it was asked for ``what``."""
    text = f"{what}: {reason.reply_code} {reason.reply_text}"
    found: BackendError
    if reason.reply_code == PRECONDITION_FAILED:
        found = TopologyMismatch(
            f"{text}. It exists with other arguments: change the setting back, delete it, or give"
            " the queue another 'revision'"
        )
    elif reason.reply_code == REFUSED:
        found = AccessRefused(text)
    elif reason.reply_code == NOT_FOUND:
        found = PublishFailed(text)
    else:
        found = BackendError(text)
    found.__cause__ = reason
    return found
