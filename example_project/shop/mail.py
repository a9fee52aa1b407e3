"""Mail that is written to files, over a line that drops now and then, but never by chance.

The first attempt at the receipt of every third order (3, 6, 9, …) loses its connection, as if
the mail server had hung up; every other attempt succeeds. The job tells the transport which order
and which attempt a message belongs to in two headers.
"""

from __future__ import annotations

from collections.abc import Sequence
from smtplib import SMTPServerDisconnected
from typing import Any

from django.conf import settings
from django.core.mail import EmailMessage
from django.core.mail.backends.filebased import EmailBackend

ORDER_HEADER = "X-Shop-Order"
ATTEMPT_HEADER = "X-Shop-Attempt"
EVERY = 3


class FlakyEmailBackend(EmailBackend):
    """Write each message to a file in MAIL_FOLDER, unless its connection drops."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{**options, "file_path": settings.MAIL_FOLDER})

    def send_messages(self, email_messages: Sequence[EmailMessage]) -> int:
        """Send the messages, or lose the connection before the first byte of them."""
        if any(is_dropped(message) for message in email_messages):
            raise SMTPServerDisconnected("Connection unexpectedly closed")
        return super().send_messages(email_messages) or 0


def is_dropped(message: EmailMessage) -> bool:
    """Tell whether the connection drops while this message is sent."""
    order = int(message.extra_headers.get(ORDER_HEADER, 0))
    attempt = int(message.extra_headers.get(ATTEMPT_HEADER, 0))
    return order > 0 and order % EVERY == 0 and attempt == 1
