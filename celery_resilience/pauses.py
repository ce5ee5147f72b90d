"""Pauses: queues and tasks that an operator has stopped for the whole fleet.

They are in Redis until somebody resumes them or their time is over; workers look every other second and apply them.
What a worker looked up last is kept here: asking for each message costs nothing, and a lost Redis changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from .checks import number, one_of, text
from .clock import Clock
from .errors import ConfigurationError, TooManyPausesError
from .redis_store import RedisStore
from .schedule import Schedule

PauseKind = Literal["queue", "task"]
KINDS = ("queue", "task")
MAX_PAUSES = 1000
MAX_NAME = 200
MAX_WORDS = 500
GROUP = "pauses"
_NOTHING: Mapping[Any, Any] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """One paused queue or task. `at` and `until` are seconds since the epoch by Redis' clock; None: until resumed.

    `left_seconds` is what is left of it at the moment of looking.
    """

    kind: PauseKind
    name: str
    who: str
    why: str
    at: float
    until: float | None
    left_seconds: float | None

    def as_dict(self) -> dict[str, Any]:
        """Give plain values for JSON."""
        return {name: getattr(self, name) for name in self.__slots__}


class Pauses:
    """The pauses of the fleet. Every method but `known` and `all_known` raises StoreUnavailableError."""

    def __init__(self, store: RedisStore, schedule: Schedule | None = None) -> None:
        self._store = store
        self._schedule = schedule
        self._key = store.key(GROUP, "all")
        self._known: Mapping[tuple[str, str], tuple[Pause, float | None]] = _NOTHING

    def pause(self, kind: PauseKind, name: str, *, who: str, why: str, for_seconds: float | None = None) -> Pause:
        """Pause a queue or task, for a while or until it is resumed; again, to change reason or end.

        Raises TooManyPausesError beyond 1,000, and ConfigurationError for a name that cannot be one, or without a why.
        """
        check(kind, name, for_seconds, why=why)
        lasting = "" if for_seconds is None else f"{for_seconds:.3f}"
        args = [f"{kind}:{name}", who[:MAX_WORDS], why[:MAX_WORDS], lasting, MAX_PAUSES]
        stored = self._store.run("pause_set", [self._key], args)
        if stored is None:
            self.active()  # drops those whose time is over: there may be room after all
            stored = self._store.run("pause_set", [self._key], args)
        pause = None if stored is None else _read(f"{kind}:{name}".encode(), stored, None)
        if pause is None:
            raise TooManyPausesError(MAX_PAUSES)
        return pause

    def resume(self, kind: PauseKind, name: str) -> bool:
        """End a pause and wake what was parked for it; False if nothing was paused under this name."""
        was_paused = bool(self._store.command("HDEL", self._key, f"{kind}:{name}"))
        if kind == "task":
            self.wake(name)  # also if it was not paused: its time may have ended it
        return was_paused

    def active(self) -> list[Pause]:
        """List the pauses, by kind and name."""
        now_ms, *rest = self._store.run("pause_list", [self._key])
        found = [_read(rest[i], rest[i + 1], now_ms / 1000) for i in range(0, len(rest), 2)]
        return sorted((one for one in found if one is not None), key=lambda one: (one.kind, one.name))

    def wake(self, task: str) -> int:
        """Bring back the messages that were parked because this task was paused; gives how many."""
        return 0 if self._schedule is None else self._schedule.wake(waits_for(task))

    def refresh(self) -> None:
        """Look what is paused, in one command, and keep it; what was known stays if Redis is away."""
        now = self._clock.monotonic()
        self._known = {
            (one.kind, one.name): (one, None if one.left_seconds is None else now + one.left_seconds)
            for one in self.active()
        }

    def known(self, kind: PauseKind, name: str) -> Pause | None:
        """Say whether something was paused at the last look and its time is not over; asks nobody."""
        if not self._known:
            return None
        pause, ends = self._known.get((kind, name), (None, None))
        return None if ends is not None and self._clock.monotonic() >= ends else pause

    def all_known(self, kind: PauseKind) -> dict[str, Pause]:
        """Give what `known` would, by name."""
        names = [name for of_kind, name in self._known if of_kind == kind]
        return {name: pause for name in names if (pause := self.known(kind, name)) is not None}

    @property
    def _clock(self) -> Clock:
        return self._store.clock


def waits_for(task: str) -> str:
    """Name what the messages of a paused task wait for."""
    return f"pause:task:{task}"


def check(kind: str, name: str, for_seconds: float | None = None, *, why: str | None = None) -> None:
    """Refuse what cannot be paused; raises ConfigurationError."""
    one_of("kind", kind, KINDS)
    text(kind, name, "celery" if kind == "queue" else "shop.charge")
    if len(name) > MAX_NAME:
        raise ConfigurationError(kind, name, f"is longer than {MAX_NAME} characters", "Give the name alone.")
    number("for_seconds", for_seconds, low=0.001, high=366 * 86400)
    text("why", why, "maintenance until noon")


def _read(field: bytes | str, stored: bytes | str, now: float | None) -> Pause | None:
    """Read one entry; None if it cannot be one of ours."""
    kind, _, name = (field.decode("utf-8", "replace") if isinstance(field, bytes) else field).partition(":")
    try:
        known = json.loads(stored)
        at, until = float(known["at"]), known["until"]
        until = None if until is None else float(until)
        who, why = str(known["who"]), str(known["why"])
    except (ValueError, TypeError, KeyError):
        return None
    if kind not in KINDS:
        return None
    left = None if until is None else until - (at if now is None else now)
    return Pause(kind=cast(PauseKind, kind), name=name, who=who, why=why, at=at, until=until, left_seconds=left)
