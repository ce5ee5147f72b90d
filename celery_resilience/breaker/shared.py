"""The breaker of the fleet: its state in Redis, changed only by the scripts lua/breaker_*.lua.

Each call here is one command. A lost reply is an error here and may have happened there; a probe's outcome is therefore
never sent twice, and counts that are sent again may count twice.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import Any

from ..breaker_policy import BreakerPolicy
from ..clock import Clock
from ..errors import StoreUnavailableError
from ..redis_store import RedisStore
from .values import Mode, Outcome, Reply, Report, Run, Snapshot, Transition, shown_state

GROUP = "breakers"
MAX_BREAKERS = 1000
_PAGE = 1000


class SharedMachine:
    """A breaker's state in Redis. Every method raises StoreUnavailableError and nothing else."""

    def __init__(
        self, name: str, policy: BreakerPolicy, store: RedisStore, clock: Clock, *, max_breakers: int = MAX_BREAKERS
    ) -> None:
        self.name = name
        self.store = store
        self.clock = clock
        self.max_breakers = max_breakers
        self._policy = json.dumps(policy.as_dict(), separators=(",", ":"))
        self._keys = [*breaker_keys(store, name), events_key(store), index_key(store)]

    def server_time(self) -> str:
        """Give the time for the scripts in ms; '' for Redis' own. Only tests that move the clock say anything else."""
        return ""

    def sync(self, report: Report, token: str, earlier: Sequence[Run] = ()) -> Reply:
        """Take in counts, those of earlier first, and say how things stand; with a token also ask for a permit."""
        reply = self._run("breaker_sync", *report, token, json.dumps(earlier) if earlier else "")
        if reply.breakers > self.max_breakers:
            with contextlib.suppress(StoreUnavailableError):  # the counts are in; the next one may prune
                prune(self.store, self.max_breakers)
        return reply

    def settle(self, generation: int, token: str, outcome: Outcome, hint_ms: int) -> Reply:
        """Give a probe's permit back with its outcome."""
        return self._run("breaker_settle", generation, token, outcome, hint_ms)

    def override(self, mode: Mode, who: str, why: str, lasts_ms: int) -> Reply:
        """Override the breaker, or with mode '' end the override and start anew."""
        return self._run("breaker_override", mode, who, why, lasts_ms)

    def look(self) -> Snapshot | None:
        """Look without touching; None if nobody ever used the breaker."""
        text = self.store.run("breaker_look", self._keys, self._head())
        return _snapshot(self.name, json.loads(text)) if text else None

    def history(self, limit: int) -> list[Transition]:
        """List transitions, the newest first."""
        return history(self.store, limit, self.name)

    def _head(self) -> list[Any]:
        return [self.server_time(), self.clock.uniform(0, 1), self.name, self._policy]

    def _run(self, script: str, *args: Any) -> Reply:
        return _reply(self.name, json.loads(self.store.run(script, self._keys, [*self._head(), *args])))


def breaker_keys(store: RedisStore, name: str) -> list[str]:
    """Name the keys that belong to one breaker: its hash and its probes."""
    return [store.key(GROUP, "breaker", name), store.key(GROUP, "probes", name)]


def events_key(store: RedisStore) -> str:
    """Name the stream of all breakers' events."""
    return store.key(GROUP, "events")


def index_key(store: RedisStore) -> str:
    """Name the sorted set of breakers by last use."""
    return store.key(GROUP, "index")


def names(store: RedisStore) -> list[str]:
    """List known breakers, the last used first; raises StoreUnavailableError."""
    return [_text(name) for name in store.command("ZREVRANGE", index_key(store), 0, -1)]


def prune(store: RedisStore, max_breakers: int) -> int:
    """Forget the least recently used breakers above the limit, 100 at the most; gives how many."""
    excess = int(store.command("ZCARD", index_key(store))) - max_breakers
    if excess <= 0:
        return 0
    # Some more than needed are offered: overridden ones stay, and must not shield the others.
    count = min(excess, 100)
    rows = store.command("ZRANGE", index_key(store), 0, count + 49, "WITHSCORES")
    pairs = rows if rows and isinstance(rows[0], (tuple, list)) else list(zip(rows[::2], rows[1::2], strict=True))
    keys: list[str] = [index_key(store)]
    args: list[Any] = [count]
    for raw, score in pairs:
        keys += breaker_keys(store, _text(raw))
        args += [_text(raw), float(score)]
    return int(store.run("breaker_forget", keys, args))


def history(store: RedisStore, limit: int, name: str | None = None) -> list[Transition]:
    """List transitions of one breaker or of all, the newest first; raises StoreUnavailableError."""
    found: list[Transition] = []
    before = "+"
    while len(found) < limit:
        page = store.command("XREVRANGE", events_key(store), before, "-", "COUNT", _PAGE)
        entries = [(_text(entry_id), _fields(raw)) for entry_id, raw in page]
        found += [_transition(entry) for _, entry in entries if name is None or entry["name"] == name]
        if len(entries) < _PAGE:
            break
        before = f"({entries[-1][0]}"
    return found[:limit]


def _text(raw: Any) -> str:
    return raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)


def _fields(raw: Any) -> dict[str, str]:
    """Read an entry of a stream in either shape that redis-py gives it."""
    pairs = raw.items() if isinstance(raw, dict) else zip(raw[::2], raw[1::2], strict=True)
    return {_text(key): _text(value) for key, value in pairs}


def _transition(entry: dict[str, Any]) -> Transition:
    return Transition(
        breaker=entry["name"],
        event=entry["event"],
        from_state=entry["from"],
        to_state=entry["to"],
        reason=entry["reason"],
        who=entry["who"],
        generation=int(entry["generation"]),
        at=int(entry.get("at", 0)) / 1000,
    )


def _reply(name: str, said: dict[str, Any]) -> Reply:
    return Reply(
        state=said["state"],
        generation=int(said["generation"]),
        now_ms=int(said["now"]),
        until_ms=int(said["until"]),
        calls=said["calls"],
        failures=said["failures"],
        slow=said["slow"],
        consecutive=said["consecutive"],
        mode=said["mode"],
        mode_until_ms=int(said["mode_until"]),
        ramp_ms=int(said["ramp"]),
        reason=said["reason"],
        granted=said.get("granted", False),
        wait_ms=int(said.get("wait", 0)),
        breakers=said.get("breakers", 0),
        told=tuple(_transition({**one, "name": name, "at": said["now"]}) for one in said.get("told", ())),
    )


def _snapshot(name: str, said: dict[str, Any]) -> Snapshot:
    return Snapshot(
        name=name,
        state=shown_state(said["state"], said["mode"]),
        reason=said["reason"],
        since=said["since"] / 1000,
        open_until=said["until"] / 1000,
        generation=int(said["generation"]),
        calls=said["calls"],
        failures=said["failures"],
        slow_calls=said["slow"],
        consecutive_failures=said["consecutive"],
        times_opened=said["opens"],
        probes=said["probes"],
        probe_successes=said["successes"],
        override_who=said["who"],
        override_why=said["why"],
        override_until=said["mode_until"] / 1000,
        used_at=said["used"] / 1000,
        seen_at=said["now"] / 1000,
        policy=json.loads(said["policy"]) if said["policy"] else {},
    )
