"""Publish whole messages through kombu: every one confirmed, or an error.

Used where the schedule cannot push into the broker itself. Waits are bounded; a message that reaches no queue is an
error, because the caller still has it.
"""

from __future__ import annotations

from typing import Any

from celery import Celery
from kombu import Connection, Exchange, Producer, Queue

from ..errors import UnroutableError
from .envelope import Envelope
from .target import family_of

CONFIRM_SECONDS = 5.0


class Publisher:
    """One connection, opened on first use and again after an error. Not for use by two threads.

    Connecting, sending and the confirm take at most `limit_seconds` each.
    """

    def __init__(self, app: Celery, *, limit_seconds: float = CONFIRM_SECONDS) -> None:
        self._app = app
        self._limit = limit_seconds
        self._declared: set[str] = set()
        self._connection: Connection | None = None
        self._producer: Producer | None = None
        self._returned: list[str] = []
        self.connection_errors: tuple[type[BaseException], ...] = tuple(app.connection_for_write().connection_errors)

    def publish(self, envelope: Envelope, queue: str, *, declare: bool = False) -> None:
        """Send a message to a queue by name, or to its exchange if no queue is given; raises if not confirmed.

        With `declare` the queue is made if there is none.
        """
        self._returned.clear()
        try:
            producer = self._ready()
            if declare and queue not in self._declared:
                declare_queue(self._app, producer.connection, queue)
                self._declared.add(queue)
            self._send(producer, envelope, queue)
        except Exception:
            self.close()
            raise
        if self._returned:
            self._declared.clear()  # it was deleted meanwhile
            raise UnroutableError(f"No queue takes {queue or envelope.routing_key!r}: {self._returned[-1]}")

    def close(self) -> None:
        """Close the connection; the next publish opens another."""
        connection, self._connection, self._producer = self._connection, None, None
        self._declared.clear()
        if connection is not None:
            connection.release()

    def _ready(self) -> Producer:
        if self._producer is None:
            self._connection = connection_within(self._app, self._limit, confirm_publish=True)
            channel = self._connection.channel()
            # Only AMQP gives messages back; kombu's virtual channels fail on being asked to.
            self._producer = Producer(channel, on_return=self._on_return if _is_amqp(self._connection) else None)
        return self._producer

    def _send(self, producer: Producer, envelope: Envelope, queue: str) -> None:
        limits: dict[str, Any] = {}
        if _is_amqp(producer.connection):
            limits = {"confirm_timeout": self._limit, "mandatory": True}
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


def connection_within(app: Celery, limit_seconds: float, **options: Any) -> Connection:
    """Open a connection of one's own that waits for the broker no longer than this, in any of its steps."""
    names = (
        ("read_timeout", "write_timeout") if family_of(app) == "amqp" else ("socket_timeout", "socket_connect_timeout")
    )
    impatient: dict[str, Any] = dict.fromkeys(names, limit_seconds)
    transport_options = {**(app.conf.broker_transport_options or {}), **impatient, **options}
    connection: Any = app.connection_for_write(
        transport_options=transport_options, connect_timeout=limit_seconds, heartbeat=0
    )
    # By itself kombu would try twice, with two seconds in between. The caller has the message and comes again.
    once_each = len(connection.alt or [""]) - 1
    connection.ensure_connection(max_retries=once_each, interval_start=0, reraise_as_library_errors=False)
    opened: Connection = connection
    return opened


def declare_queue(app: Celery, connection: Any, name: str) -> None:
    """Make a durable queue unless there is one, of whatever kind; one that the app configures is made as it says."""
    channel = connection.channel()
    try:
        Queue(name, channel=channel).queue_declare(passive=True)
        return
    except connection.channel_errors:
        channel = connection.channel()  # a refusal closes the channel
    known = app.amqp.queues.get(name) or Queue(name, Exchange(""), routing_key=name, durable=True)
    known.bind(channel).declare()
    channel.close()


def _is_amqp(connection: Any) -> bool:
    return bool(connection.transport.driver_type == "amqp")
