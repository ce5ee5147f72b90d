"""Take messages off a queue in batches, through kombu: acked or put back as one.

On AMQP the body is taken as its bytes, before any decoding. Waits are bounded.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from celery import Celery
from kombu import Queue

from .envelope import Envelope
from .publisher import connection_within

IDLE_SECONDS = 0.5  # what was counted but does not come by then is somebody else's
READ_BYTES = 16 * 1024
FEWEST_AT_ONCE, MOST_AT_ONCE, LARGE_BYTES = 20, 1000, 8 * 2**20
_TOLD_APART = ("application_headers", "content_type", "content_encoding")
_NOT_OURS = (*_TOLD_APART, "delivery_info", "delivery_tag", "body_encoding")
Taken = tuple[Envelope, str | None]


class Taker:
    """One connection and one batch at a time. Not for use by two threads."""

    def __init__(self, app: Celery, *, limit_seconds: float) -> None:
        self._app = app
        self._limit = limit_seconds
        self._connection: Any = None
        self._channel: Any = None
        self._tags: list[Any] = []
        self._prefetch = FEWEST_AT_ONCE

    def take(self, queue: str, limit: int) -> list[Taken]:
        """Take up to `limit` messages; each with what tells it from others, where the broker says so (Redis)."""
        try:
            waiting = min(limit, self._prefetch, self.count(queue))
            if not waiting:
                return []
            return self._consume(queue, waiting) if self._is_amqp() else self._get(queue, waiting)
        except Exception:
            self.close()
            raise

    def count(self, queue: str) -> int:
        """Count what waits in a queue; one that does not exist holds nothing."""
        self._ready()
        try:
            declared: Any = Queue(queue, channel=self._channel).queue_declare(passive=True)
            return int(declared.message_count)
        except self._connection.channel_errors:
            self._channel = None  # a refusal closes the channel
            return 0

    def ack(self) -> None:
        """Have the broker forget the batch."""
        tags, self._tags = self._tags, []
        if tags and self._is_amqp():
            self._tell(lambda: self._channel.basic_ack(tags[-1], multiple=True))
        for tag in [] if self._is_amqp() else tags:
            self._tell(partial(self._channel.basic_ack, tag))

    def release(self) -> None:
        """Put the batch back."""
        tags, self._tags = self._tags, []
        for tag in reversed(tags):
            self._tell(partial(self._channel.basic_reject, tag, requeue=True))

    def close(self) -> None:
        """Close the connection, which puts back what was not acked; the next batch opens another."""
        connection, self._connection, self._channel = self._connection, None, None
        self._tags.clear()
        if connection is not None:
            connection.release()

    def _ready(self) -> None:
        if self._connection is None:
            self._connection = connection_within(self._app, self._limit)
            _read_more_at_once(self._connection)
        if self._channel is None:
            self._channel = self._connection.channel()
            self._channel.auto_decode = False  # of AMQP: the bytes as they are

    def _is_amqp(self) -> bool:
        return self._connection is not None and bool(self._connection.transport.driver_type == "amqp")

    def _consume(self, queue: str, waiting: int) -> list[Taken]:
        taken: list[Any] = []
        self._channel.basic_qos(0, waiting, False)
        consumer = self._channel.basic_consume(queue, callback=taken.append)
        while len(taken) < waiting:
            try:
                self._connection.drain_events(timeout=IDLE_SECONDS)
            except TimeoutError:
                break
        self._channel.basic_cancel(consumer)
        self._tags = [raw.delivery_info["delivery_tag"] for raw in taken]
        # AMQP counts messages and not bytes: begin with few, and take more while they are small.
        is_large = sum(len(raw.body) for raw in taken) > LARGE_BYTES
        self._prefetch = max(1, self._prefetch // 4) if is_large else min(MOST_AT_ONCE, self._prefetch * 4)
        return [(_of_amqp(raw), None) for raw in taken]

    def _get(self, queue: str, waiting: int) -> list[Taken]:
        taken: list[Taken] = []
        for _ in range(waiting):
            message = self._channel.basic_get(queue)
            if message is None:
                break
            self._tags.append(message.delivery_tag)
            taken.append((_of_virtual(message), str(message.delivery_tag)))
        return taken

    def _tell(self, settle: Callable[[], Any]) -> None:
        try:
            settle()
        except Exception:
            self.close()
            raise


def _read_more_at_once(connection: Any) -> None:
    """Have amqp take what the socket has, and not nine small pieces for each message. Private API, if it is there."""
    transport = getattr(connection.connection, "transport", None)
    receive = getattr(transport, "_quick_recv", None)
    if transport is not None and receive is not None and hasattr(transport, "_read_buffer"):
        transport._quick_recv = lambda wanted: receive(max(wanted, READ_BYTES))


def _of_amqp(raw: Any) -> Envelope:
    body, told = raw.body, raw.properties
    return Envelope(
        body=body.encode("utf-8") if isinstance(body, str) else bytes(body),
        content_type=told.get("content_type") or "",
        content_encoding=told.get("content_encoding") or "",
        headers=dict(told.get("application_headers") or {}),
        properties={name: value for name, value in told.items() if name not in _NOT_OURS},
        exchange=raw.delivery_info.get("exchange") or "",
        routing_key=raw.delivery_info.get("routing_key") or "",
    )


def _of_virtual(message: Any) -> Envelope:
    body, told = message.body, message.delivery_info or {}
    return Envelope(
        body=body.encode("utf-8") if isinstance(body, str) else bytes(body),
        content_type=message.content_type or "",
        content_encoding=message.content_encoding or "",
        headers=dict(message.headers or {}),
        properties={name: value for name, value in message.properties.items() if name not in _NOT_OURS},
        exchange=told.get("exchange") or "",
        routing_key=told.get("routing_key") or "",
    )
