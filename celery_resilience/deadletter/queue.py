"""The DLQ: the broker's queue of dead letters, from a worker that gives up to the collector that archives.

A letter is published and confirmed, or an error; it leaves the queue only after `ack()`. No wait exceeds a second.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from celery import Celery

from ..clock import Clock
from ..errors import StoreUnavailableError, shorten
from ..redis_store import RedisStore
from ..transport.envelope import Envelope, unpack
from ..transport.publisher import Publisher
from ..transport.queues import redis_list_of
from ..transport.taker import Taker
from .letter import DeadLetter, read_letter, to_message

LIMIT_SECONDS = 1.0
LEASE_SECONDS = 60.0
BATCH_BYTES = 16 * 2**20
_GROUP = "dlq"
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Batch:
    """Letters taken from the queue: `ack()` once they are kept elsewhere, or `release()`. A lost batch comes back."""

    letters: list[DeadLetter]
    ack: Callable[[], None]
    release: Callable[[], None]


EMPTY = Batch([], lambda: None, lambda: None)


class DeadLetterQueue:
    """The DLQ of an app. `store` is the broker's own Redis if it has one, else everything goes through kombu.

    Safe for threads, but take one batch at a time. `name` may hold `{queue}`, the queue that a message came from; one
    that the app does not configure counts as its default queue, so that every DLQ can be found.
    """

    def __init__(
        self, app: Celery, store: RedisStore | None, *, name: str, cooldown_seconds: float, clock: Clock
    ) -> None:
        self._app = app
        self._store = store
        self._name = name
        self._cooldown_seconds = cooldown_seconds
        self._clock = clock
        self._away_until = 0.0
        self._publishing, self._taking = threading.Lock(), threading.Lock()
        self._publisher = None if store is not None else Publisher(app, limit_seconds=LIMIT_SECONDS)
        self._taker = None if store is not None else Taker(app, limit_seconds=LIMIT_SECONDS)

    def name_for(self, queue: str | None) -> str:
        """Name the DLQ of what came from this queue."""
        known = queue if queue in self._app.amqp.queues else None
        return self._name.replace("{queue}", known or str(self._app.conf.task_default_queue))

    def names(self) -> list[str]:
        """Name every DLQ of the app."""
        return sorted({self.name_for(queue) for queue in [*self._app.amqp.queues, None]})

    def publish(self, letter: DeadLetter) -> None:
        """Store a letter in the broker. Raises StoreUnavailableError; after a failure at once, for the cool-down."""
        name = self.name_for(letter.queue)
        if self._store is not None:
            # A script would do no more: one push is atomic, and kombu reads it as its own.
            self._store.command("LPUSH", redis_list_of(self._app, name), self._packed(letter, name))
            return
        with self._publishing:
            self._require_rested()
            try:
                self._confirm(letter, name)
            except Exception as error:
                self._away_until = self._clock.monotonic() + self._cooldown_seconds
                raise StoreUnavailableError(f"The letter could not be published to {name}: {error!r}") from error

    def take(self, limit: int = 500) -> Batch:
        """Take up to `limit` letters, the oldest first; of one DLQ, so ask again until it gives none.

        Raises StoreUnavailableError. On a Redis broker a batch whose taker died comes back after a minute.
        """
        for name in self.names():
            batch = self._take_leased(name, limit) if self._store is not None else self._take_held(name, limit)
            if batch.letters:
                return batch
        return EMPTY

    def depth(self) -> int:
        """Count the letters that wait to be collected, or are being. Raises StoreUnavailableError."""
        if self._store is not None:
            waiting = [int(self._store.command("LLEN", redis_list_of(self._app, name))) for name in self.names()]
            held = [int(self._store.command("HLEN", self._keys(name)[1])) for name in self.names()]
            return sum(waiting) + sum(held)
        taker = self._taker
        assert taker is not None
        with self._taking:
            return sum(_asked(partial(taker.count, name)) for name in self.names())

    def close(self) -> None:
        """Close the connections; what was taken and not acked goes back."""
        for one in (self._publisher, self._taker, self._store):
            if one is not None:
                one.close()

    def _packed(self, letter: DeadLetter, name: str) -> str:
        to_dlq = replace(to_message(letter), exchange="", routing_key=name)
        return to_dlq.pack(self._clock.token())

    def _confirm(self, letter: DeadLetter, name: str) -> None:
        publisher = self._publisher
        assert publisher is not None
        try:
            publisher.publish(to_message(letter), name, declare=True)
        except publisher.connection_errors:
            raise
        except Exception:  # most often: headers that AMQP cannot write. Whole, inside the body, they are only bytes
            publisher.publish(to_message(letter, wrapped=True), name, declare=True)

    def _require_rested(self) -> None:
        if self._away_until and self._clock.monotonic() < self._away_until:
            raise StoreUnavailableError("The broker is left alone after a failure.")
        self._away_until = 0.0

    def _keys(self, name: str) -> list[str]:
        assert self._store is not None
        return [self._store.key(_GROUP, "leases", name), self._store.key(_GROUP, "held", name)]

    def _take_leased(self, name: str, limit: int) -> Batch:
        store = self._store
        assert store is not None
        keys, queue_list = self._keys(name), redis_list_of(self._app, name)
        args = [limit, int(LEASE_SECONDS * 1000), self._clock.token(), BATCH_BYTES]
        answer = store.run("dlq_take", [queue_list, *keys], args)
        names, packed = answer[::2], answer[1::2]
        if not names:
            return EMPTY
        letters = [self._read(text) for text in packed]
        return Batch(
            letters,
            ack=lambda: store.run("dlq_ack", keys, names) and None,
            release=lambda: store.run("dlq_release", [queue_list, *keys], names) and None,
        )

    def _read(self, packed: bytes) -> DeadLetter:
        """Read what lay in the queue; what is no message at all is kept by its bytes."""
        try:
            message = unpack(packed)
            headers: object = message.headers
            kind: object = message.content_type
            if not isinstance(headers, Mapping) or not isinstance(kind, str):
                raise TypeError("not a message as kombu writes it")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            message = Envelope(packed, "application/octet-stream", "binary", {}, {}, "", "")
        # The packed text holds the delivery tag, so it is the same when this message is read again, and no other's.
        unique = hashlib.blake2b(packed, digest_size=16).hexdigest()
        return read_letter(message, unique=unique, clock=self._clock)

    def _take_held(self, name: str, limit: int) -> Batch:
        taker = self._taker
        assert taker is not None
        with self._taking:
            taken = _asked(lambda: taker.take(name, limit))
        letters = [read_letter(message, unique=unique, clock=self._clock) for message, unique in taken]
        return Batch(letters, ack=lambda: _asked(taker.ack), release=lambda: _asked(taker.release))


def _asked(ask: Callable[[], Answer]) -> Answer:
    """Ask the broker; whatever goes wrong is the broker's being away."""
    try:
        return ask()
    except Exception as error:
        raise StoreUnavailableError(f"The broker did not answer: {shorten(error)}") from error
