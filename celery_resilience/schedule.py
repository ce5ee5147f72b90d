"""The schedule: where delayed retries and parked messages wait, in Redis.

A message is in the schedule or in a queue, never in a worker's memory, and never lost between the two:
it is pushed and removed in one script where broker and schedule share a server, else leased, published, then removed.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from .attempts import HEADER, read_attempts
from .clock import Clock
from .crashpoints import crashpoint
from .errors import StoreUnavailableError
from .events import Event, tell
from .redis_store import RedisStore
from .transport.envelope import Envelope, unpack

logger = logging.getLogger(__name__)

Kind = Literal["retry", "park", "eta"]
KEEP_RECORD_SECONDS = 2 * 3600.0
WAKE_AT_ONCE = 1000
WAKE_AFTER_SECONDS = 0.3  # a process may refuse by what it knew 250 ms ago, and would park again for the whole old time


@dataclass(frozen=True, slots=True)
class Place:
    """One waiting message by name: where it goes and which it is. Written out, it is the member in Redis."""

    queue: str
    priority: int
    kind: Kind
    name: str

    def member(self) -> str:
        """Write the place as text."""
        return json.dumps([self.queue, self.priority, self.kind, self.name], separators=(",", ":"))

    @classmethod
    def of(cls, member: str | bytes) -> Place:
        """Read a place from its text."""
        return cls(*json.loads(member))


@dataclass(frozen=True, slots=True)
class Due:
    """What is due now, and how long until something else is (None: nothing else waits)."""

    places: list[Place]
    next_in_seconds: float | None


@dataclass(frozen=True, slots=True)
class Waiting:
    """One waiting message as a listing shows it."""

    task: str
    task_id: str
    queue: str
    kind: Kind
    due_at: float
    attempt: int
    why: str

    def as_dict(self) -> dict[str, Any]:
        """Give plain values for JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


class Schedule:
    """Messages that wait for their time.

    `broker` keeps messages of different brokers apart; `shared` says that broker and schedule are one server;
    `keep_seconds` is how long after its due time a lineage's record outlives an attempt: longer than any redelivery.
    """

    def __init__(
        self,
        store: RedisStore,
        clock: Clock,
        *,
        broker: str,
        shared: bool,
        keep_seconds: float = KEEP_RECORD_SECONDS,
    ) -> None:
        self.store = store
        self.clock = clock
        self.shared = shared
        self._keep_seconds = keep_seconds
        self.group = f"schedule:{broker}"
        self._keys = [store.key(self.group, "due"), store.key(self.group, "entries")]

    def add_attempt(self, envelope: Envelope, queue: str | None, lineage: str, number: int, delay: float) -> bool:
        """Store the next attempt of a lineage, due after `delay` seconds; False if it was stored before.

        `number` grows with each message of the lineage, an attempt or a park. The same script records it, so that a
        redelivered earlier message can see that it is behind.
        """
        place = Place(queue or "", envelope.priority, "retry", f"{lineage}:{number}")
        record = (self.record_key(lineage), number, int(delay + self._keep_seconds), "once")
        return self._add(place, envelope, delay * 1000, "in", *record)

    def add_park(
        self, envelope: Envelope, queue: str | None, lineage: str, number: int, delay: float, waits_for: str
    ) -> bool:
        """Store the same attempt again, to be tried after `delay` seconds or when what it waits for has come."""
        place = Place(queue or "", envelope.priority, "park", f"{lineage}:{number}")
        record = (self.record_key(lineage), number, int(delay + self._keep_seconds), "once")
        return self._add(place, envelope, delay * 1000, "in", *record, parked=self._parked(waits_for))

    def wake(self, waits_for: str, spread_seconds: float = 1.0) -> int:
        """Make what is parked for this due now, spread over a while; gives how many were woken."""
        keys = [self._keys[0], self._parked(waits_for)]
        args = [WAKE_AT_ONCE, int(spread_seconds * 1000), int(WAKE_AFTER_SECONDS * 1000)]
        woken = 0
        while True:
            looked_at, some = self.store.run("schedule_wake", keys, args)
            woken += int(some)
            if looked_at < WAKE_AT_ONCE:
                return woken

    def add_eta(
        self, envelope: Envelope, queue: str | None, name: str, due_at: float, *, is_unique: bool = True
    ) -> bool:
        """Store a user's message until its ETA, in seconds since the epoch.

        `name` is what `was_moved` will ask by; unless it is unique to this message, another one may be stored under it.
        """
        place = Place(queue or "", envelope.priority, "eta", name if is_unique else f"{name}:{self.clock.token()}")
        record = (self.record_key(name), 1, int(self._keep_seconds), "once" if is_unique else "anyway")
        return self._add(place, envelope, due_at * 1000, "at", *record)

    def record(self, lineage: str, attempt: int, delay: float) -> None:
        """Record an attempt that was published elsewhere; what fails here only leaves a redelivery unchecked."""
        try:
            keep = int(delay + self._keep_seconds)
            self.store.run("lineage_record", [self.record_key(lineage)], [attempt, keep])
        except StoreUnavailableError as error:
            tell(logger, logging.WARNING, Event.REDELIVERY_UNCHECKED, lineage=lineage, error=error)

    def was_moved(self, name: str) -> bool:
        """Say whether a message with an ETA was stored before."""
        return self.highest_attempt(name) > 0

    def highest_attempt(self, lineage: str) -> int:
        """Give the highest attempt stored for a lineage, 0 if none is on record."""
        return int(self.store.command("GET", self.record_key(lineage)) or 0)

    def due(self, limit: int) -> Due:
        """Look what is due, without taking it."""
        now, following, *members = self.store.run("schedule_due", self._keys[:1], [limit])
        wait = None if following < 0 else max(0.0, (following - now) / 1000)
        return Due([Place.of(member) for member in members], wait)

    def release(self, queue_list: str, places: Sequence[Place]) -> int:
        """Move due messages into a list of the broker on the same server, in one step.

        What was parked goes to the front: it has stood in the queue before, and a slot of a rate must not be missed.
        """
        moved = 0
        for push, some in (
            ("RPUSH", [place.member() for place in places if place.kind == "park"]),
            ("LPUSH", [place.member() for place in places if place.kind != "park"]),
        ):
            if some:
                moved += int(self.store.run("schedule_release", [*self._keys, queue_list], [push, *some]))
        return moved

    def claim(self, places: Sequence[Place], lease_seconds: float) -> list[tuple[Place, Envelope]]:
        """Lease due messages to this caller, who publishes and then removes them; a lost lease frees itself."""
        args = [int(lease_seconds * 1000), *(place.member() for place in places)]
        answer = self.store.run("schedule_claim", self._keys, args)
        pairs = [(Place.of(answer[i]), _read(answer[i + 1])) for i in range(0, len(answer), 2)]
        return [(place, envelope) for place, envelope in pairs if envelope is not None]

    def remove(self, places: Sequence[Place]) -> int:
        """Forget messages that were published."""
        removed: int = self.store.run("schedule_remove", self._keys, [place.member() for place in places])
        return removed

    def count(self) -> int:
        """Count what waits."""
        return int(self.store.command("ZCARD", self._keys[0]))

    def find(self, limit: int = 100, after: int = 0) -> list[Waiting]:
        """List what waits, the next due first; `after` skips that many."""
        rows = self.store.command("ZRANGE", self._keys[0], after, after + limit - 1, "WITHSCORES")
        pairs = _pairs(rows)
        if not pairs:
            return []
        packed = self.store.command("HMGET", self._keys[1], *(member for member, _ in pairs))
        found = [(member, score, _read(text)) for (member, score), text in zip(pairs, packed, strict=True) if text]
        return [_waiting(member, score, envelope) for member, score, envelope in found if envelope is not None]

    def record_key(self, lineage: str) -> str:
        """Name the key that holds the highest attempt of a lineage."""
        return self.store.key(self.group, "highest", lineage)

    def _parked(self, waits_for: str) -> str:
        return self.store.key(self.group, "parked", waits_for)

    def _add(self, place: Place, envelope: Envelope, ms: float, base: str, *record: Any, parked: str = "") -> bool:
        key, *kept = record
        args = [place.member(), envelope.pack(self.clock.token()), int(ms), base, *kept]
        stored = self.store.run("schedule_add", [*self._keys, key, *([parked] if parked else [])], args)
        crashpoint("schedule.stored")
        return bool(stored)


def _pairs(rows: Any) -> list[tuple[Any, float]]:
    """Read WITHSCORES in either shape that redis-py gives it."""
    if rows and isinstance(rows[0], (tuple, list)):
        return [(member, float(score)) for member, score in rows]
    return [(rows[i], float(rows[i + 1])) for i in range(0, len(rows), 2)]


def _read(packed: bytes) -> Envelope | None:
    """Read a message; one that is none is told of and left where it is, for it must not hold back the others."""
    try:
        return unpack(packed)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        tell(logger, logging.ERROR, Event.MESSAGE_GARBLED, error=repr(error))
        return None


def _waiting(member: bytes, score: float, envelope: Envelope) -> Waiting:
    place = Place.of(member)
    attempts = read_attempts(envelope.headers.get(HEADER))
    last = attempts.trail[-1] if attempts.trail else {}
    why = f"{last['class']}: {last['error']}" if "class" in last and "error" in last else "asked by the body"
    if place.kind == "park":
        why = f"waits for {', '.join(attempts.waits_for) or 'a limit'}"
    return Waiting(
        task=str(envelope.headers.get("task")),
        task_id=str(envelope.headers.get("id")),
        queue=place.queue or f"{envelope.exchange}/{envelope.routing_key}",
        kind=place.kind,
        due_at=score / 1000,
        attempt=attempts.attempt,
        why=f"ETA {envelope.headers.get('eta')}" if place.kind == "eta" else why,
    )
