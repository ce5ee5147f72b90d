"""The lease of a message on a Redis broker: how long it stays ours without an ack.

kombu redelivers a message under the same tag, so a run whose lease has lapsed must neither ack nor reject: that would
take away the live run's safety net. Private kombu API is used in `hold` and nowhere else.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

import redis
from kombu.message import Message
from redis.backoff import NoBackoff
from redis.retry import Retry

from .. import lua
from ..clock import Clock
from ..events import Event, tell

logger = logging.getLogger(__name__)

BATCH = 1000


class Lease:
    """One delivery's right to its message; `since` is when it was last known to hold, in monotonic seconds."""

    __slots__ = ("lost", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.lost = False


class HeldTag(str):
    """A delivery tag that knows its lease, so that two runs under one tag can be told apart."""

    lease: Lease


class Broker:
    """What a holding needs of the broker; `hold` fills it from kombu, tests with less."""

    def __init__(
        self, client: Any, index_key: str, drop: Callable[[str], None], restore: Callable[[str], None]
    ) -> None:
        self._client = client
        self._index_key = index_key
        self.drop = drop
        self.restore = restore

    def renew(self, tags: Sequence[str]) -> set[str]:
        """Renew the leases of these tags by Redis's clock; gives those that are no longer there."""
        gone = self._client.eval(lua.source("lease_renew"), 1, self._index_key, *tags)
        return {_text(tag) for tag in gone}

    def orphans(self, timeout: float) -> list[str]:
        """List tags that nobody renewed for a whole timeout, by Redis's clock."""
        return [
            _text(tag) for tag in self._client.eval(lua.source("lease_orphans"), 1, self._index_key, timeout, BATCH)
        ]

    def close(self) -> None:
        """Close the connection that renews."""
        self._client.close()


class Holding:
    """Every message that one channel holds, each with its lease. Safe to use from several threads."""

    def __init__(self, broker: Broker, timeout: float, clock: Clock) -> None:
        self.broker = broker
        self.timeout = timeout
        self._clock = clock
        self._held: dict[str, Lease] = {}
        self._lock = threading.Lock()

    @property
    def renewal_seconds(self) -> float:
        """Give how often to renew: four times in a timeout, so that some may fail."""
        return min(15.0, max(0.1, self.timeout / 4))

    def take(self, tag: str) -> HeldTag:
        """Start the lease of a message that was just delivered."""
        held = HeldTag(tag)
        held.lease = Lease(self._clock.monotonic())
        with self._lock:
            self._held[str(tag)] = held.lease
        return held

    def end(self, tag: str) -> bool:
        """End a lease; False if it had lapsed, and the message may be somebody else's by now."""
        if not isinstance(tag, HeldTag):
            return True
        lease = tag.lease
        with self._lock:
            if self._held.get(tag) is lease:
                del self._held[tag]
        return not (lease.lost or self._lapsed(lease))

    def holds(self, tag: str) -> bool:
        """Say whether a delivery under this tag is held now."""
        with self._lock:
            return tag in self._held

    def renew(self) -> None:
        """Renew every lease that has not lapsed, and let go of those that have; raises what the client raises."""
        started = self._clock.monotonic()
        with self._lock:
            known = list(self._held.items())
        for tag, lease in known:
            if self._lapsed(lease):
                self._lose(tag, lease)
        alive = [(tag, lease) for tag, lease in known if not lease.lost]
        for start in range(0, len(alive), BATCH):
            batch = alive[start : start + BATCH]
            gone = self.broker.renew([tag for tag, _ in batch])
            for tag, lease in batch:
                if tag in gone:
                    self._lose(tag, lease)
                else:
                    lease.since = max(lease.since, started)

    def restore_orphans(self) -> int:
        """Put back what nobody renewed for a whole timeout; gives how many."""
        tags = self.broker.orphans(self.timeout)
        for tag in tags:
            self.broker.restore(tag)
        return len(tags)

    def give_up(self) -> None:
        """Treat every lease as lost: the channel is closed, and kombu has put its messages back."""
        with self._lock:
            for lease in self._held.values():
                lease.lost = True
            self._held.clear()
        self.broker.close()

    def _lapsed(self, lease: Lease) -> bool:
        return self._clock.monotonic() - lease.since > self.timeout

    def _lose(self, tag: str, lease: Lease) -> None:
        with self._lock:
            lease.lost = True
            if self._held.get(tag) is not lease:
                return  # acked meanwhile, or delivered again
            del self._held[tag]
        self.broker.drop(tag)
        tell(logger, logging.WARNING, Event.LEASE_LOST, delivery_tag=tag)


def hold(channel: Any, clock: Clock) -> Holding:
    """Watch over every message that this channel takes from now on.

    The only user of kombu's private Redis API: `qos.append/ack/reject/restore_by_tag/_quick_ack`, `_get_pool`,
    `Client`, `global_keyprefix`, `unacked_index_key`, `visibility_timeout`.
    """
    qos, timeout = channel.qos, float(channel.visibility_timeout)
    pool = channel._get_pool()
    pool.connection_kwargs.update(socket_timeout=max(0.2, min(2.0, timeout / 8)), retry=Retry(NoBackoff(), 0))
    prefixed = channel.Client(connection_pool=pool)
    broker = Broker(
        client=redis.Redis(connection_pool=pool),
        index_key=f"{channel.global_keyprefix}{channel.unacked_index_key}",
        drop=qos._quick_ack,  # marks the tag for removal, as kombu allows from other threads; no Redis command
        restore=lambda tag: qos.restore_by_tag(tag, prefixed),
    )
    holding = Holding(broker, timeout, clock)
    append, ack, reject = qos.append, qos.ack, qos.reject

    def append_held(message: Message, delivery_tag: str) -> None:
        append(message, delivery_tag)
        # Only now: a renewal between the two would not find the tag in Redis and take it for lost.
        message.delivery_tag = holding.take(delivery_tag)

    def settle(delivery_tag: str, answer: Callable[[], None]) -> None:
        if holding.end(delivery_tag):
            answer()
        elif not holding.holds(delivery_tag):
            qos._quick_ack(delivery_tag)

    qos.append = append_held
    qos.ack = lambda delivery_tag: settle(delivery_tag, lambda: ack(delivery_tag))
    qos.reject = lambda delivery_tag, requeue=False: settle(delivery_tag, lambda: reject(delivery_tag, requeue))
    return holding


def _text(tag: str | bytes) -> str:
    return tag.decode() if isinstance(tag, bytes) else tag
