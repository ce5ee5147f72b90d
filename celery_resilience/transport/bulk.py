"""Publish many whole messages and wait for the broker's word on all of them at once.

Private amqp API: `Channel._basic_publish`, which sends without waiting.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celery import Celery

from ..clock import SYSTEM_CLOCK, Clock
from ..errors import StoreUnavailableError
from .envelope import Envelope
from .publisher import Publisher, connection_within

CONFIRM_SECONDS = 10.0
_STEP_SECONDS = 1.0


class BulkPublisher:
    """One connection, opened on first use and again after an error. Not for use by two threads."""

    def __init__(self, app: Celery, clock: Clock = SYSTEM_CLOCK) -> None:
        self._app = app
        self._clock = clock
        self._connection: Any = None
        self._channel: Any = None
        self._single = Publisher(app)
        self._sent = 0
        self._open: dict[int, int] = {}
        self._refused: set[int] = set()
        self._returned: set[str] = set()

    def publish(self, messages: Sequence[tuple[Envelope, str, str]]) -> list[bool]:
        """Send messages, each with its queue and the header whose text is its own; says of each if a queue has it.

        Raises StoreUnavailableError where the broker does not confirm in time: then nothing is known.
        """
        try:
            self._ready()
            if not self._is_amqp():
                return [self._publish_one(envelope, queue) for envelope, queue, _ in messages]
            for place, (envelope, queue, _) in enumerate(messages):
                self._send(place, envelope, queue)
            self._wait()
        except Exception as error:
            self.close()
            raise StoreUnavailableError(f"The broker did not confirm: {error!r}") from error
        fates = [
            place not in self._refused and str(envelope.headers.get(header)) not in self._returned
            for place, (envelope, _, header) in enumerate(messages)
        ]
        self._refused.clear()
        self._returned.clear()
        return fates

    def close(self) -> None:
        """Close the connections; the next batch opens others."""
        connection, self._connection, self._channel = self._connection, None, None
        self._open.clear()
        self._refused.clear()
        self._returned.clear()
        self._sent = 0
        self._single.close()
        if connection is not None:
            connection.release()

    def _ready(self) -> None:
        if self._connection is None:
            self._connection = connection_within(self._app, CONFIRM_SECONDS)
        if self._channel is None and self._is_amqp():
            self._channel = self._connection.channel()
            self._channel.confirm_select()
            self._channel.events["basic_ack"].add(self._on_ack)
            self._channel.events["basic_nack"].add(self._on_nack)
            self._channel.events["basic_return"].add(self._on_return)

    def _is_amqp(self) -> bool:
        return bool(self._connection.transport.driver_type == "amqp")

    def _publish_one(self, envelope: Envelope, queue: str) -> bool:
        self._single.publish(envelope, queue)
        return True

    def _send(self, place: int, envelope: Envelope, queue: str) -> None:
        properties = {"delivery_mode": 2, **envelope.properties}
        properties.pop("expiration", None)
        message = self._channel.prepare_message(
            envelope.body,
            priority=properties.pop("priority", None),
            content_type=envelope.content_type,
            content_encoding=envelope.content_encoding,
            headers=dict(envelope.headers),
            properties=properties,
        )
        try:
            self._channel._basic_publish(message, exchange="", routing_key=queue, mandatory=True)
        except (*self._connection.connection_errors, *self._connection.channel_errors):
            raise
        except Exception:  # AMQP has no way to write it, so nothing was sent
            self._refused.add(place)
            return
        self._sent += 1
        self._open[self._sent] = place

    def _wait(self) -> None:
        over = self._clock.monotonic() + CONFIRM_SECONDS
        while self._open:
            if self._clock.monotonic() > over:
                raise TimeoutError(f"{len(self._open)} messages are not confirmed")
            try:
                self._connection.drain_events(timeout=_STEP_SECONDS)
            except TimeoutError:
                continue

    def _on_ack(self, tag: int, multiple: bool) -> None:
        self._settled(tag, multiple)

    def _on_nack(self, tag: int, multiple: bool) -> None:
        self._refused.update(self._settled(tag, multiple))

    def _on_return(self, _exception: Any, _exchange: Any, _routing_key: Any, message: Any) -> None:
        headers = message.properties.get("application_headers") or {}
        self._returned.update(value for value in headers.values() if isinstance(value, str))

    def _settled(self, tag: int, multiple: bool) -> list[int]:
        tags = [known for known in self._open if known <= tag] if multiple else [tag]
        return [self._open.pop(known) for known in tags if known in self._open]
