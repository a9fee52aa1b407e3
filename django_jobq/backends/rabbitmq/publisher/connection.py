"""The client's connection and its types: parameters, properties, many frames in one write."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pika
from pika.adapters.select_connection import SelectConnection

from django_jobq.backends.rabbitmq.codec import PERSISTENT, Message
from django_jobq.backends.rabbitmq.options import RabbitMQOptions
from django_jobq.backends.rabbitmq.url import BrokerAddress


class GatheringConnection(SelectConnection):  # type: ignore[misc]
    """Write what is published together with one system call, instead of one a frame."""

    _gathered: list[bytes] | None = None

    @contextlib.contextmanager
    def gathering(self) -> Iterator[None]:
        """Hold back what is written meanwhile, and write it at the end."""
        self._gathered = []
        try:
            yield
        finally:
            gathered, self._gathered = self._gathered, None
            if gathered and not self.is_closed:
                self._adapter_emit_data(b"".join(gathered))

    def _adapter_emit_data(self, data: bytes) -> None:
        if self._gathered is None:
            super()._adapter_emit_data(data)
        else:
            self._gathered.append(data)


def parameters(address: BrokerAddress, options: RabbitMQOptions) -> pika.ConnectionParameters:
    """Return what the client needs to connect."""
    return pika.ConnectionParameters(
        host=address.host,
        port=address.port,
        virtual_host=address.vhost,
        credentials=pika.PlainCredentials(address.user, address.password),
        heartbeat=int(options.heartbeat),
        blocked_connection_timeout=None,
        socket_timeout=options.publish_timeout,
        stack_timeout=options.publish_timeout * 2,
        ssl_options=(
            pika.SSLOptions(options.tls_context(), options.server_hostname or address.host)
            if address.tls
            else None
        ),
        client_properties={"connection_name": f"{options.connection_name} publisher"},
    )


def properties(message: Message) -> pika.BasicProperties:
    """Return the properties of a message as the client wants them."""
    return pika.BasicProperties(
        content_type=message.content_type,
        delivery_mode=PERSISTENT,
        message_id=message.message_id,
        type=message.type,
        priority=message.priority,
        headers=dict(message.headers),
    )
