"""The breaker of one process: the same state machine as lua/_breaker.lua, in memory.

It decides where no Redis is configured and while Redis is away, and it is the model the scripts are tested against:
whoever changes one changes the other.
"""

from __future__ import annotations

import json
import math
import threading
from collections import deque
from collections.abc import Sequence

from ..breaker_policy import BreakerPolicy
from ..clock import Clock
from .values import Mode, Outcome, Reply, Report, Run, Snapshot, State, Transition, shown_state
from .window import Window

MAX_OPENS = 30
MIN_OPEN_MS = 100
MAX_EVENTS = 1000


class LocalMachine:
    """A breaker's state in memory, safe to share between threads. Nothing here raises."""

    def __init__(self, name: str, policy: BreakerPolicy, clock: Clock) -> None:
        self.name = name
        self.policy = policy
        self.clock = clock
        self._lock = threading.Lock()
        self._told: list[Transition] = []
        self._events: deque[Transition] = deque(maxlen=MAX_EVENTS)
        self._start("closed", self._now())

    def _start(self, state: State, now: int) -> None:
        self._state: State = state
        self._generation = now
        self._since = now
        self._used = 0
        self._until = self._opens = self._successes = self._ramp = self._mode_until = 0
        self._mode: Mode = ""
        self._reason = self._who = self._why = ""
        self._window = Window(self.policy)
        self._probes: dict[str, int] = {}

    def adopt(self, last: Reply | None, age_ms: int) -> int:
        """Go on from what was heard of the shared state `age_ms` ago, with an empty window; gives the generation."""
        with self._lock:
            now = self._now()
            self._start("closed", max(now, self._generation + 1))
            self._used = now
            if last is None:
                return self._generation
            self._state, self._mode, self._reason = last.state, last.mode, last.reason
            self._until = now + max(0, last.until_ms - last.now_ms - age_ms) if last.state == "open" else 0
            self._opens = int(last.state != "closed")
            self._mode_until = now + last.mode_until_ms - last.now_ms - age_ms if last.mode_until_ms else 0
            return self._generation

    def sync(self, report: Report, token: str, earlier: Sequence[Run] = ()) -> Reply:
        """Take in counts, those of earlier first, and say how things stand; with a token also ask for a permit."""
        with self._lock:
            now = self._now()
            is_new = self._touch(now)
            self._release_if_over(now)
            if self._state == "closed" and (is_new or report.generation in (0, self._generation)):
                for run in earlier:
                    self._window.add(Report(0, *run[1:]), now - run.age_ms, now)
                self._window.add(report, now, now)
                reason = self._window.trip_reason(now) if not self._mode else None
                if reason:
                    self._open(reason, report.hint_ms, now)
            if token and self._state == "open" and now >= self._until:
                self._enter("half-open", "the open time is over", now)
                self._tell("half-opened", "open", "half-open", self._reason)
            granted, wait = self._lease(token, now) if token and self._state == "half-open" else (False, 0)
            return self._answer(now, granted, wait)

    def settle(self, generation: int, token: str, outcome: Outcome, hint_ms: int) -> Reply:
        """Give a probe's permit back with its outcome."""
        with self._lock:
            now = self._now()
            self._touch(now)
            self._release_if_over(now)
            self._probes.pop(token, None)
            if not self._mode and self._state == "half-open" and generation == self._generation:
                if outcome == "success":
                    self._count_success(now)
                elif outcome != "cancel":
                    self._open("a probe was slow" if outcome == "slow" else "a probe failed", hint_ms, now)
            return self._answer(now)

    def override(self, mode: Mode, who: str, why: str, lasts_ms: int) -> Reply:
        """Override the breaker, or with mode '' end the override and start anew."""
        with self._lock:
            now = self._now()
            self._touch(now)
            before = shown_state(self._state, self._mode)
            self._mode = mode
            self._who, self._why = (who, why) if mode else ("", "")
            self._mode_until = now + lasts_ms if mode and lasts_ms > 0 else 0
            self._close(why, now)
            self._tell("forced" if mode else "closed", before, shown_state("closed", mode), why, who)
            return self._answer(now)

    def look(self) -> Snapshot | None:
        """Look without touching; None if nobody ever used the breaker."""
        with self._lock:
            if not self._used:
                return None
            now = self._now()
            has_mode = bool(self._mode) and not (self._mode_until and now >= self._mode_until)
            calls, failures, slow = self._window.totals(now)
            return Snapshot(
                name=self.name,
                state=shown_state(self._state, self._mode if has_mode else ""),
                reason=self._reason,
                since=self._since / 1000,
                open_until=self._until / 1000,
                generation=self._generation,
                calls=calls,
                failures=failures,
                slow_calls=slow,
                consecutive_failures=self._window.consecutive,
                times_opened=self._opens,
                probes=sum(deadline > now for deadline in self._probes.values()),
                probe_successes=self._successes,
                override_who=self._who if has_mode else "",
                override_why=self._why if has_mode else "",
                override_until=self._mode_until / 1000 if has_mode else 0.0,
                used_at=self._used / 1000,
                seen_at=now / 1000,
                policy=json.loads(json.dumps(self.policy.as_dict())),
            )

    def history(self, limit: int) -> list[Transition]:
        """List transitions, the newest first."""
        with self._lock:
            return list(self._events)[::-1][:limit]

    def _touch(self, now: int) -> bool:
        """Note the use; says whether it is the first."""
        is_new, self._used = not self._used, now
        if is_new:
            self._generation = self._since = now
        return is_new

    def _now(self) -> int:
        return int(self.clock.time() * 1000)

    def _lease(self, token: str, now: int) -> tuple[bool, int]:
        self._probes = {one: deadline for one, deadline in self._probes.items() if deadline > now}
        if token in self._probes:
            return True, 0  # a call within the probe
        if len(self._probes) >= self.policy.half_open_permits:
            return False, min(self._probes.values()) - now
        self._probes[token] = now + math.floor(self.policy.probe_lease_seconds * 1000)
        return True, 0

    def _count_success(self, now: int) -> None:
        self._successes += 1
        if self._successes >= self.policy.successes_to_close:
            self._close(f"{self._successes} probes succeeded", now, with_ramp=True)
            self._tell("closed", "half-open", "closed", self._reason)

    def _release_if_over(self, now: int) -> None:
        if self._mode and self._mode_until and now >= self._mode_until:
            mode, who = self._mode, self._who
            self._mode, self._mode_until, self._who, self._why = "", 0, "", ""
            self._close("the override is over", now, with_ramp=mode == "open")
            self._tell("released", shown_state("closed", mode), "closed", self._reason, who)

    def _open(self, reason: str, hint_ms: int, now: int) -> None:
        before = self._state
        self._opens = min(self._opens + 1, MAX_OPENS)
        growth = 2.0 ** (self._opens - 1)
        length = self.policy.open_seconds * 1000 * growth * (0.9 + 0.2 * self.clock.uniform(0, 1))
        if hint_ms >= 0:
            length = max(hint_ms, MIN_OPEN_MS * growth)
        self._enter("open", reason, now)
        self._until = now + math.floor(min(length, self.policy.open_cap_seconds * 1000))
        self._tell("opened", before, "open", reason)

    def _close(self, reason: str, now: int, *, with_ramp: bool = False) -> None:
        self._enter("closed", reason, now)
        self._opens = 0
        self._ramp = now if with_ramp else 0

    def _enter(self, state: State, reason: str, now: int) -> None:
        self._state, self._reason, self._since = state, reason, now
        self._generation += 1
        self._until = self._ramp = self._successes = 0
        self._window.clear()
        self._probes = {}

    def _tell(self, event: str, before: str, after: str, reason: str, who: str = "") -> None:
        told = Transition(self.name, event, before, after, reason, who, self._generation, self._now() / 1000)
        self._told.append(told)
        self._events.append(told)

    def _answer(self, now: int, granted: bool = False, wait: int = 0) -> Reply:
        calls, failures, slow = self._window.totals(now)
        told, self._told = tuple(self._told), []
        return Reply(
            state=self._state,
            generation=self._generation,
            now_ms=now,
            until_ms=self._until,
            calls=calls,
            failures=failures,
            slow=slow,
            consecutive=self._window.consecutive,
            mode=self._mode,
            mode_until_ms=self._mode_until,
            ramp_ms=self._ramp,
            reason=self._reason,
            granted=granted,
            wait_ms=wait,
            told=told,
        )
