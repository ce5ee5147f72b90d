"""What a process believes about a breaker, and for how long it may.

A view is immutable and swapped by one assignment, so that calls read it without a lock.
"""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass
from typing import Literal

from ..breaker_policy import BreakerPolicy
from .values import Machine, Reply, Report, shown_state

STALENESS_SECONDS = 0.25
DENIAL_SECONDS = 0.1
"""How long a process that was denied a probe keeps from asking again."""
LEAST_SHARE = 0.1
"""What a ramp starts with."""
CALM_SECONDS = 1.0
"""Who has called so long ago calls so rarely that no ramp refuses him."""
_NEVER = -1.0


class Era:
    """The successes of one generation, counted without a lock: `next` of a counter is one step of the interpreter."""

    __slots__ = ("_slow", "_sound", "generation", "machine", "pid", "tick", "tick_slow")

    def __init__(self, machine: Machine, generation: int) -> None:
        self.machine = machine
        self.generation = generation
        self.pid = os.getpid()
        self.tick = itertools.count().__next__
        self.tick_slow = itertools.count().__next__
        self._sound = (0, 0)
        self._slow = (0, 0)

    def is_same(self, other: Era) -> bool:
        """Say whether the two are of one generation of one machine."""
        return self.machine is other.machine and self.generation == other.generation

    def take(self) -> Report:
        """Give what was counted since the last take; the caller holds the link's lock."""
        sound, self._sound = _counted(self.tick(), *self._sound)
        slow, self._slow = _counted(self.tick_slow(), *self._slow)
        return Report(self.generation, sound, slow)


def _counted(value: int, looks: int, taken: int) -> tuple[int, tuple[int, int]]:
    """Tell calls from looks: reading a counter moves it, too."""
    calls = value - looks
    return calls - taken, (looks + 1, calls)


@dataclass(frozen=True, slots=True)
class View:
    """How a breaker stands, by the monotonic clock of this process."""

    era: Era
    reply: Reply | None = None
    stance: Literal["pass", "ramp", "refuse"] = "pass"
    fast_until: float = _NEVER
    """Until then every call passes, without another thought."""
    fresh_until: float = _NEVER
    """Until then the stance holds without asking."""
    staleness: float = 0.0
    retry_at: float = 0.0
    ramp_at: float = 0.0

    @property
    def state(self) -> str:
        """Name the state in the words of the vocabulary."""
        return shown_state(self.reply.state, self.reply.mode) if self.reply else "closed"

    def is_older_than(self, reply: Reply) -> bool:
        """Say whether a reply is news; of two that overtook each other the older one is not."""
        known = self.reply
        if known is None or not 0 <= known.now_ms - reply.now_ms < 1000:
            return True  # more than a second back is no overtaking but another server, or its clock was set
        return reply.generation >= known.generation and reply.now_ms >= known.now_ms

    def share(self, now: float, ramp_seconds: float) -> float:
        """Give the share of calls that a ramp lets pass now."""
        return max(LEAST_SHARE, (now - self.ramp_at) / ramp_seconds)


def view_of(reply: Reply, era: Era, policy: BreakerPolicy, asked_at: float) -> View:
    """Make a view of a reply to a question asked at `asked_at`, by the monotonic clock."""

    def until(moment_ms: int) -> float:
        return asked_at + (moment_ms - reply.now_ms) / 1000

    stale_at = asked_at + STALENESS_SECONDS
    if reply.mode == "open":
        over = until(reply.mode_until_ms) if reply.mode_until_ms else asked_at + policy.open_seconds
        return View(era, reply, "refuse", fresh_until=min(stale_at, over), retry_at=over)
    if reply.mode:
        return View(era, reply, "pass", stale_at, stale_at, STALENESS_SECONDS)
    if reply.state == "open":
        over = until(reply.until_ms)
        return View(era, reply, "refuse", fresh_until=min(stale_at, over), retry_at=over)
    if reply.state == "half-open":
        wait = min(max(reply.wait_ms / 1000, DENIAL_SECONDS), 1.0)
        fresh = _NEVER if reply.wait_ms == 0 else asked_at + min(DENIAL_SECONDS, reply.wait_ms / 1000)
        return View(era, reply, "refuse", fresh_until=fresh, retry_at=asked_at + wait)
    staleness = STALENESS_SECONDS * max(0.0, 1 - 2 * pressure(reply, policy))
    fresh = asked_at + staleness if staleness else _NEVER
    if reply.ramp_ms and reply.now_ms - reply.ramp_ms < policy.ramp_seconds * 1000:
        return View(era, reply, "ramp", _NEVER, fresh, staleness, ramp_at=until(reply.ramp_ms))
    return View(era, reply, "pass", fresh, fresh, staleness)


def pressure(reply: Reply, policy: BreakerPolicy) -> float:
    """Say how near the breaker is to tripping: 0 not at all, 1 now."""
    enough = max(policy.minimum_calls, reply.calls)
    found = [0.0]
    if policy.failure_rate:
        found.append(reply.failures / (policy.failure_rate * enough))
    if policy.consecutive_failures:
        found.append(reply.consecutive / policy.consecutive_failures)
    if policy.slow_call_seconds:
        found.append(reply.slow / (policy.slow_call_rate * enough))
    return max(found)
