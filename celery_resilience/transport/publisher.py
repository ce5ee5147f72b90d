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
        self.connection_errors: tuple[type[BaseException], ...] = tuple(app.connection_for_write().connection_errors)

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
            channel = self._connection.channel()
            # Only AMQP gives messages back; kombu's virtual channels fail on being asked to.
            self._producer = Producer(channel, on_return=self._on_return if _is_amqp(self._connection) else None)
        return self._producer

    def _send(self, producer: Producer, envelope: Envelope, queue: str) -> None:
        limits: dict[str, Any] = {}
        if _is_amqp(producer.connection):
            limits = {"confirm_timeout": CONFIRM_SECONDS, "mandatory": True}
        # A time to live that began with the first publish; the header `expires` tells the worker the same.
        properties = {name: value for name, value in envelope.properties.items() if name != "expiration"}
        producer.publish(
            envelope.body,
            exchange="" if queue else envelope.exchange,
            routing_key=queue or envelope.routing_key,
            content_type=envelope.content_type,
            content_encoding=envelope.content_encoding,
            headers=dict(envelope.headers),
            retry=False,
            **limits,
            **properties,
        )

    def _on_return(self, _exception: Any, _exchange: Any, routing_key: str, _message: Any) -> None:
        self._returned.append(routing_key)


def _is_amqp(connection: Any) -> bool:
    return bool(connection.transport.driver_type == "amqp")
