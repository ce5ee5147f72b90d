"""Publish whole messages through kombu: every one confirmed, or an error.

Used where the schedule cannot push into the broker itself. Waits are bounded; a message that reaches no queue is an
error, because the caller still has it.
"""

from __future__ import annotations

from typing import Any

from celery import Celery
from kombu import Connection, Producer

from ..errors import UnroutableError
from .envelope import Envelope

CONFIRM_SECONDS = 5.0


class Publisher:
    """One connection, opened on first use and again after an error. Not for use by two threads."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._connection: Connection | None = None
        self._producer: Producer | None = None
        self._returned: list[str] = []

    def publish(self, envelope: Envelope, queue: str) -> None:
        """Send a message to a queue by name, or to its exchange if no queue is given; raises if not confirmed."""
        self._returned.clear()
        try:
            self._send(self._ready(), envelope, queue)
        except Exception:
            self.close()
            raise
        if self._returned:
            raise UnroutableError(f"No queue takes {queue or envelope.routing_key!r}: {self._returned[-1]}")

    def close(self) -> None:
        """Close the connection; the next publish opens another."""
        connection, self._connection, self._producer = self._connection, None, None
        if connection is not None:
            connection.release()

    def _ready(self) -> Producer:
        if self._producer is None:
            options = {**self._app.conf.broker_transport_options, "confirm_publish": True}
            limit = CONFIRM_SECONDS
            self._connection = self._app.connection_for_write(transport_options=options, connect_timeout=limit)
            self._producer = Producer(self._connection.channel(), on_return=self._on_return)
        return self._producer

    def _send(self, producer: Producer, envelope: Envelope, queue: str) -> None:
        connection: Any = producer.connection
        amqp = connection.transport.driver_type == "amqp"
        limits: dict[str, Any] = {"confirm_timeout": CONFIRM_SECONDS, "mandatory": True} if amqp else {}
        properties = {k: v for k, v in envelope.properties.items() if k not in ("content_type", "content_encoding")}
        headers = {**(properties.pop("application_headers", None) or {}), **envelope.headers}
        producer.publish(
            envelope.body,
            exchange="" if queue else envelope.exchange,
            routing_key=queue or envelope.routing_key,
            content_type=envelope.content_type,
            content_encoding=envelope.content_encoding,
            headers=headers,
            retry=False,
            **limits,
            **properties,
        )

    def _on_return(self, _exception: Any, _exchange: Any, routing_key: str, _message: Any) -> None:
        self._returned.append(routing_key)
