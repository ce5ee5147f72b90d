"""Fetch messages from a Redis broker so that none is ever in a worker's hands only.

kombu takes a message off its list (BRPOP) and notes it as held by a second command: a worker killed between the two
loses it. Here one script does both. While the lists are empty nothing is asked: the server tells of the next push
(client tracking), so a message is taken as soon as by BRPOP. Every idle worker is told and one of them gets it: those
that come too late again and again wait a random moment before they ask, so that a large fleet does not ask in chorus.
"""

from __future__ import annotations

import hashlib
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from kombu.asynchronous import get_event_loop
from kombu.utils.encoding import bytes_to_str
from kombu.utils.json import loads
from kombu.utils.scheduling import round_robin_cycle
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ReadOnlyError, ResponseError

from .. import lua
from ..clock import Clock
from ..events import Event, tell
from .sound import sound

logger = logging.getLogger(__name__)

AT_ONCE = 100
PATIENT_LOSSES = 3  # pushes that others answered sooner, in a row, before a worker takes its time
LONGEST_MOMENT = 0.05  # seconds; among many idle workers the shortest of their moments is far shorter
UNREADABLE = "resilience.unreadable"  # a hash: what is no message, until it has its letter

Unreadable = Callable[[str, bytes, Callable[[], None]], None]
"""Told of what is no message: its name, which ends in that of its queue, its bytes, and how to let go of it."""


class Fetch:
    """The way of messages from the lists of one channel to its consumers; for the thread that consumes only.

    It takes the place of kombu's BRPOP by the private names that `install` sets, and reads those that `_keys`, `_ask`
    and `_deliver_one` do. `_in_poll` tells kombu that something is under way on the connection.
    """

    def __init__(
        self, channel: Any, clock: Clock, at_once: int = AT_ONCE, on_unreadable: Unreadable | None = None
    ) -> None:
        self._channel = channel
        self._clock = clock
        self._at_once = at_once
        self._on_unreadable = on_unreadable
        self._source = lua.source("fetch")
        self._digest = hashlib.sha1(self._source.encode(), usedforsecurity=False).hexdigest()
        self._queues: list[str] = []
        self._limit = 0
        self._asked_at = 0.0
        # The other strategies of kombu want the first queue empty before the next is looked at.
        self._turns = int(type(channel._queue_cycle) is round_robin_cycle)
        self.delivering: str | None = None
        self._arrived: deque[tuple[str, str, bytes]] = deque()
        self._is_asked = False
        self._is_waiting = False
        self._look_again_at = 0.0
        self._was_woken = False
        self._losses = 0
        self._has_credit = channel.qos.can_consume
        # Before 5.6 kombu polls again and again what it may not read for want of credit.
        self._would_spin = not hasattr(channel.connection.cycle, "_paused_brpop")
        self._counts_tasks = "can_consume" in vars(channel.qos)  # Celery's worker_disable_prefetch: one at a time

    def install(self) -> bool:
        """Take the place of kombu's fetch; False if the server cannot serve it, and kombu's own goes on."""
        channel, pool = self._channel, self._channel.async_pool
        connection = pool.connection_class(**{**pool.connection_kwargs, "protocol": 3})
        connection.register_connect_callback(self._greet)
        try:
            connection.connect()
        except ResponseError as error:
            connection.disconnect()
            tell(logger, logging.WARNING, Event.FETCH_DEGRADED, error=error)
            return False
        self._take_place_of(getattr(channel.client, "connection", None))
        channel.client.connection = connection
        channel._brpop_start, channel._brpop_read = self.start, self.read
        channel.handlers["BRPOP"] = self.read
        channel.qos.can_consume = self.can_consume
        with channel.conn_or_acquire() as client:
            for name, raw in client.hgetall(f"{channel.global_keyprefix}{UNREADABLE}").items():
                self._tell_unreadable(bytes_to_str(name), raw)
        return True

    def _take_place_of(self, former: Any) -> None:
        """Have the poller forget a connection that was used before, as mingle does, with what is under way on it."""
        channel, cycle = self._channel, self._channel.connection.cycle
        ident = (channel, channel.client, "BRPOP")
        if ident in cycle._chan_to_sock:
            cycle._unregister(*ident)
            cycle._fd_to_chan.pop(cycle._chan_to_sock.pop(ident).fileno(), None)
        if former is not None:
            former.disconnect()
        channel._in_poll = None

    def start(self, timeout: float | None = None) -> None:
        """Ask for messages, after delivering what an error has kept from being delivered."""
        if self._arrived:
            self._deliver()
        elif self._channel.active_queues:
            self._ask()

    def read(self, **_options: Any) -> None:
        """Read what the server sends: the answer to a question, or word of a push."""
        connection = self._channel.client.connection
        try:
            if self._is_asked:
                self._receive(connection)
            elif self._hears_of_push(connection):
                self._wake()
        except NoScriptError:
            self._send(connection, "EVAL", self._source)
        except ResponseError as error:
            tell(logger, logging.WARNING, Event.FETCH_FAILED, error=error)
            self._wait()
            if isinstance(error, ReadOnlyError):  # a master no more: another connection finds the new one
                connection.disconnect()
        except self._channel.connection_errors:
            self._be_idle()
            connection.disconnect()
            raise
        self._deliver()

    def can_consume(self) -> bool:
        """Answer as before; and look again after a while, in case word of a push was lost."""
        has_credit: bool = self._has_credit()
        if has_credit and self._is_waiting and self._clock.monotonic() >= self._look_again_at:
            self._be_idle()
        elif not has_credit and self._would_spin and not self._is_asked:
            self._hears_of_push(self._channel.client.connection)
        return has_credit

    def _receive(self, connection: Any) -> None:
        has_more, *taken = connection.read_response()
        if self._clock.monotonic() - self._asked_at > self._channel.visibility_timeout:
            tell(logger, logging.WARNING, Event.LEASE_LOST, delivery_tag=[bytes_to_str(tag) for tag in taken[1::3]])
            taken = []  # frozen since it asked: others have put these back
        for position, tag, packed in zip(taken[::3], taken[1::3], taken[2::3], strict=True):
            if position < 0:
                self._tell_unreadable(bytes_to_str(tag), packed)
            else:
                self._arrived.append((self._queues[position - 1], bytes_to_str(tag), packed))
        self._losses = self._losses + 1 if self._was_woken and not taken else 0
        self._was_woken = False
        self._be_idle()
        if not has_more and not self._hears_of_push(connection):
            self._wait()

    def _ask(self) -> None:
        """Ask for a quarter of what may be taken, so that other workers get their share of a burst."""
        channel = self._channel
        credit = channel.qos.can_consume_max_estimate()
        limit = self._at_once if credit is None else min(self._at_once, credit // 4)
        self._limit = 1 if self._counts_tasks else max(1, limit)
        self._queues = list(channel._queue_cycle.consume(len(channel.active_queues)))
        self._asked_at = self._clock.monotonic()
        self._send(channel.client.connection, "EVALSHA", self._digest)

    def _send(self, connection: Any, command: str, script: str) -> None:
        keys = self._keys(self._queues)
        connection.send_command(
            command, script, len(keys), *keys, self._limit, self._clock.token(), self._turns, *self._queues
        )
        self._is_asked, self._is_waiting = True, False
        self._channel._in_poll, self._channel._brpop_sent_at = connection, self._clock.monotonic()

    def _keys(self, queues: list[str]) -> list[str]:
        channel = self._channel
        lists = [channel._q_for_pri(queue, priority) for priority in channel.priority_steps for queue in queues]
        names = [channel.unacked_key, channel.unacked_index_key, UNREADABLE, *lists]
        return [f"{channel.global_keyprefix}{name}" for name in names]

    def _greet(self, connection: Any) -> None:
        """Have the server tell of pushes, and see that it knows the script; on every connect."""
        connection.send_command("CLIENT", "TRACKING", "ON", "NOLOOP", check_health=False)
        connection.read_response()
        connection.send_command("EVAL", self._source, 4, *self._keys([""])[:4], 0, "", 1, "", check_health=False)
        try:
            connection.read_response()
        except ReadOnlyError as error:
            raise RedisConnectionError(f"The broker is a replica for now: {error}") from error

    def _hears_of_push(self, connection: Any) -> bool:
        is_heard = False
        while connection.can_read(timeout=0):
            connection.read_response(push_request=True)
            is_heard = True
        return is_heard

    def _wait(self) -> None:
        self._is_asked, self._is_waiting = False, True
        self._look_again_at = self._clock.monotonic() + (getattr(self._channel, "brpop_timeout", None) or 1)
        # Under way for kombu, which then leaves the connection alone; but no answer is due.
        self._channel._in_poll, self._channel._brpop_sent_at = self._channel.client.connection, None

    def _be_idle(self) -> None:
        self._is_asked = self._is_waiting = False
        self._channel._in_poll = None

    def _wake(self) -> None:
        """Ask now, or after a moment if others have been sooner each time."""
        if getattr(self._channel, "_closing", False):
            return  # nobody would read the answer
        self._was_woken = True
        hub = get_event_loop()
        if self._losses < PATIENT_LOSSES:
            self._ask()
        elif hub is not None:
            moment = self._moment()
            self._look_again_at = min(self._look_again_at, self._clock.monotonic() + moment)
            hub.call_later(moment, _tick)  # the loop turns, and `can_consume` finds that it is time
        else:
            self._clock.sleep(self._moment())
            self._ask()

    def _moment(self) -> float:
        return self._clock.uniform(0.0, min(LONGEST_MOMENT, 0.001 * 2.0 ** min(10, self._losses)))

    def _deliver(self) -> None:
        while self._arrived:
            self._deliver_one(*self._arrived.popleft())

    def _deliver_one(self, queue: str, tag: str, packed: bytes) -> None:
        channel = self._channel
        channel._queue_cycle.rotate(queue)
        self.delivering = tag
        try:
            channel.connection._deliver(_under_tag(loads(bytes_to_str(packed)), tag, queue), queue)
        except channel.connection_errors:
            raise
        except Exception:
            if tag in channel.qos._delivered:
                raise  # the message is whole: it is the consumer's error
            self._set_aside(f"{self._clock.token()}:0:{queue}", tag, packed)
        finally:
            self.delivering = None

    def _set_aside(self, name: str, tag: str, packed: bytes) -> None:
        """Keep what the script took for a message and kombu cannot read."""
        channel = self._channel
        with channel.conn_or_acquire() as client:
            pipe = client.pipeline().hset(UNREADABLE, name, packed)
            pipe.zrem(channel.unacked_index_key, tag).hdel(channel.unacked_key, tag).execute()
        self._tell_unreadable(name, packed)

    def _tell_unreadable(self, name: str, packed: bytes) -> None:
        tell(logger, logging.ERROR, Event.MESSAGE_REJECTED, name=name, size=len(packed))
        if self._on_unreadable is not None:
            self._on_unreadable(name, packed, partial(self._let_go, name))

    def _let_go(self, name: str) -> None:
        with self._channel.conn_or_acquire() as client:
            client.hdel(UNREADABLE, name)


def _tick() -> None:
    """Do nothing."""


def _under_tag(message: dict[str, Any], tag: str, queue: str) -> dict[str, Any]:
    """Give the message under the tag that it is held by; marked as malformed if it has no place for one."""
    properties = message.get("properties") or {}
    given = properties.get("delivery_tag") if isinstance(properties, dict) else properties
    if given == tag:
        return message
    whole = message if given is None or isinstance(given, str) else sound(message, queue)
    return {**whole, "properties": {**(whole.get("properties") or {}), "delivery_tag": tag}}
