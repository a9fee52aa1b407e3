"""The OPTIONS of the RabbitMQ backend; durations are seconds."""

from __future__ import annotations

import dataclasses
import random
import ssl
from typing import Any

from django_jobq import conf, durations
from django_jobq.backends.base import BackendOptions
from django_jobq.backends.rabbitmq.topology import QueueType
from django_jobq.retry import exponential_backoff


def _one_of(*names: str) -> Any:
    def read(value: object) -> str:
        if value not in names:
            raise ValueError(f"{value!r} is none of {', '.join(names)}")
        return str(value)

    return read


def _text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{value!r} is no text")
    return value


def _prefix(value: object) -> str:
    text = _text(value)
    if any(char in "*#" or not char.isprintable() for char in text) or len(text.encode()) > 100:
        raise ValueError(f"{value!r} holds *, #, a control character or more than 100 bytes")
    return text


def _limit(value: object) -> int:
    limit = conf.read_positive_int(value)
    if limit < 2:
        raise ValueError("1 would give up a job that ran beside the one that killed its worker")
    return limit


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RabbitMQOptions(BackendOptions):
    """Hold the RabbitMQ backend's OPTIONS.

    ``prefix`` begins every name on the broker: two projects on one vhost need different ones.
    ``hold_type`` None is the queue type. The reconnect waits grow from ``reconnect_base`` to
    ``reconnect_max``, each a random share (full jitter).
    """

    prefix: str = conf.option("jobq", _prefix)
    queue_type: QueueType = conf.option("classic", _one_of("classic", "quorum"))  # noqa: RUF009
    hold_type: QueueType | None = conf.option(None, _one_of("classic", "quorum"))  # noqa: RUF009
    heartbeat: float = conf.option(60.0, durations.parse_positive)
    connection_name: str = conf.option("django_jobq", _text)
    reconnect_base: float = conf.option(0.5, durations.parse_positive)
    reconnect_max: float = conf.option(30.0, durations.parse_positive)
    delivery_limit: int = conf.option(5, _limit)
    cafile: str | None = conf.option(None, _text)
    certfile: str | None = conf.option(None, _text)
    keyfile: str | None = conf.option(None, _text)
    server_hostname: str | None = conf.option(None, _text)

    def reconnect_wait(self, failures: int) -> float:
        """Return for how many seconds to wait after so many failures to connect."""
        longest = exponential_backoff(
            failures, base=self.reconnect_base, factor=2.0, longest=self.reconnect_max
        )
        return random.uniform(0, longest)

    def tls_context(self) -> ssl.SSLContext:
        """Return a context that checks the certificate and the host name."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self.cafile:
            context.load_verify_locations(self.cafile)
        else:
            context.load_default_certs()
        if self.certfile:
            context.load_cert_chain(self.certfile, self.keyfile)
        return context
