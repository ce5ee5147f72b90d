"""The lease of a message on a Redis broker: how long it stays ours without an ack.

kombu redelivers a message under the same tag, so a run whose lease has lapsed must neither ack nor reject: that would
take away the live run's safety net. Private kombu API is used in `hold` and nowhere else.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import redis
from kombu.message import Message
from kombu.transport.virtual import QoS
from redis.backoff import NoBackoff
from redis.retry import Retry

from .. import lua
from ..clock import Clock
from ..events import Event, tell
from .fetch import AT_ONCE, Fetch, Unreadable

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """What a holding needs of the broker; `hold` fills it from kombu."""

    client: Any
    index_key: str
    forget: Callable[[str], None]
    restore: Callable[[str], None]

    def renew(self, tags: Sequence[str]) -> set[str]:
        """Renew the leases of these tags by Redis's clock; gives those that are no longer there."""
        gone = self.client.eval(lua.source("lease_renew"), 1, self.index_key, *tags)
        return {_text(tag) for tag in gone}

    def orphans(self, timeout: float) -> list[str]:
        """List tags that nobody renewed for a whole timeout, by Redis's clock."""
        tags = self.client.eval(lua.source("lease_orphans"), 1, self.index_key, timeout, BATCH)
        return [_text(tag) for tag in tags]


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

    def __len__(self) -> int:
        with self._lock:
            return len(self._held)

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

    def keep_only(self, tags: Collection[str]) -> None:
        """Treat the leases of all other tags as lost: the channel is closing, and puts those messages back."""
        with self._lock:
            for tag in set(self._held) - set(tags):
                self._held.pop(tag).lost = True

    def close(self) -> None:
        """Close the connection that renews."""
        self.broker.client.close()

    def _lapsed(self, lease: Lease) -> bool:
        return self._clock.monotonic() - lease.since > self.timeout

    def _lose(self, tag: str, lease: Lease) -> None:
        with self._lock:
            lease.lost = True
            if self._held.get(tag) is not lease:
                return  # acked meanwhile, or delivered again
            del self._held[tag]
        self.broker.forget(tag)
        tell(logger, logging.WARNING, Event.LEASE_LOST, delivery_tag=tag)


def hold(
    channel: Any,
    clock: Clock,
    still_running: Callable[[], Collection[str]],
    at_once: int = AT_ONCE,
    on_unreadable: Unreadable | None = None,
) -> Holding:
    """Watch over every message that this channel takes from now on, at most `at_once` in one step.

    `on_unreadable` is told of what is no message, and lets go of it when it is kept elsewhere.

    `still_running` gives the tags of runs that go on when the channel closes, as they do when the connection is lost:
    their messages are kept and acked by a connection of our own. (kombu would put them back for a second run, and ends
    the worker when it cannot.) Private kombu API is used here and in `_answers` only: `_get_pool`, `Client`, `closed`,
    `global_keyprefix`, `unacked_index_key`, `visibility_timeout`, and of `qos`: `append`, `ack`, `reject`,
    `_quick_ack`, `restore_by_tag`, `restore_unacked_once`, `_remove_from_indices`.
    """
    qos, timeout = channel.qos, float(channel.visibility_timeout)
    pool = channel._get_pool()
    pool.connection_kwargs.update(socket_timeout=max(0.2, min(2.0, timeout / 8)), retry=Retry(NoBackoff(), 0))
    own_client = channel.Client(connection_pool=pool)
    broker = Broker(
        client=redis.Redis(connection_pool=pool),
        index_key=f"{channel.global_keyprefix}{channel.unacked_index_key}",
        forget=qos._quick_ack,  # marks the tag for removal, as kombu allows from other threads; no Redis command
        restore=lambda tag: qos.restore_by_tag(tag, own_client),
    )
    holding = Holding(broker, timeout, clock)
    append, restore_once = qos.append, qos.restore_unacked_once
    fetch = Fetch(channel, clock, at_once, on_unreadable)
    fetch.install()

    def append_held(message: Message, delivery_tag: str) -> None:
        if delivery_tag == fetch.delivering:
            QoS.append(qos, message, delivery_tag)  # the fetch has noted it in Redis already
        else:
            append(message, delivery_tag)  # of a broadcast, or where kombu's own fetch goes on
        # Only now: a renewal between the two would not find the tag in Redis and take it for lost.
        message.delivery_tag = holding.take(delivery_tag)

    def restore_but_running(stderr: Any = None) -> None:
        running = still_running()
        for tag in running:
            qos._quick_ack(str(tag))
        holding.keep_only(running)
        _without_raising(lambda: restore_once(stderr))

    qos.append, qos.restore_unacked_once = append_held, restore_but_running
    qos.ack, qos.reject = _answers(channel, holding, own_client)
    return holding


def _answers(channel: Any, holding: Holding, own_client: Any) -> tuple[Callable[..., None], Callable[..., None]]:
    """Make the channel's ack and reject, which leave alone what is not ours any more."""
    qos = channel.qos
    reject = qos.reject
    kept_client = channel._create_client()  # kombu makes one for each ack, which costs more than the ack itself
    in_turn = threading.Lock()  # many threads or greenlets at once would use up the connections, and acks be lost

    def remove(delivery_tag: str, client: Any) -> None:
        qos._remove_from_indices(delivery_tag, client.pipeline()).execute()

    def ack_held(delivery_tag: str) -> None:
        if not holding.end(delivery_tag):
            _forget_unless_held(holding, delivery_tag)
        elif channel.closed:
            _without_raising(lambda: remove(delivery_tag, own_client))
        else:
            with in_turn:
                remove(delivery_tag, kept_client)
            qos._quick_ack(delivery_tag)

    def reject_held(delivery_tag: str, requeue: bool = False) -> None:
        # On a closed channel kombu could not route it: unrenewed, it becomes an orphan that a living one puts back.
        if not holding.end(delivery_tag) or channel.closed:
            _forget_unless_held(holding, delivery_tag)
        else:
            with in_turn:
                _reject_or_leave(holding, delivery_tag, lambda: reject(delivery_tag, requeue))

    return ack_held, reject_held


def _reject_or_leave(holding: Holding, tag: str, reject: Callable[[], None]) -> None:
    """Put a message back; a Redis that is full refuses that: unrenewed, it is put back when its lease has run out."""
    try:
        reject()
    except redis.ResponseError as error:
        tell(logger, logging.WARNING, Event.BROKER_LOST, error=repr(error))
        _forget_unless_held(holding, tag)


def _forget_unless_held(holding: Holding, tag: str) -> None:
    if not holding.holds(tag):
        holding.broker.forget(tag)


def _without_raising(call: Callable[[], object]) -> None:
    """Talk to a broker that may be gone: what fails now is made good when the lease runs out."""
    try:
        call()
    except Exception as error:
        tell(logger, logging.WARNING, Event.BROKER_LOST, error=repr(error))


def _text(tag: str | bytes) -> str:
    return tag.decode() if isinstance(tag, bytes) else tag
