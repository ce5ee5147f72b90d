"""What a breaker's state is told and what it answers: plain values, the same from Redis and from the local machine.

Times are milliseconds since the epoch by the clock of whoever answers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple, Protocol

State = Literal["closed", "open", "half-open"]
Mode = Literal["", "open", "closed", "disabled"]
Outcome = Literal["success", "failure", "slow", "cancel"]
NO_HINT = -1


class Report(NamedTuple):
    """Calls that were counted in one generation."""

    generation: int = 0
    successes: int = 0
    slow_successes: int = 0
    failures: int = 0
    slow_failures: int = 0
    hint_ms: int = NO_HINT
    """The longest wait a failure asked for."""

    @property
    def calls(self) -> int:
        """Count all of them."""
        return self.successes + self.slow_successes + self.failures + self.slow_failures

    def plus(self, other: Report) -> Report:
        """Add the counts of another; the generation stays."""
        return Report(
            self.generation,
            self.successes + other.successes,
            self.slow_successes + other.slow_successes,
            self.failures + other.failures,
            self.slow_failures + other.slow_failures,
            max(self.hint_ms, other.hint_ms),
        )


class Run(NamedTuple):
    """Calls that were counted some time ago: successes, and the failures that followed them."""

    age_ms: int
    successes: int
    slow_successes: int
    failures: int
    slow_failures: int


@dataclass(frozen=True, slots=True)
class Transition:
    """One change of state, as the event stream keeps it."""

    breaker: str
    event: str
    """opened, half-opened, closed, forced or released."""
    from_state: str
    to_state: str
    reason: str
    who: str
    generation: int
    at: float = 0.0
    """Seconds since the epoch."""

    def as_dict(self) -> dict[str, Any]:
        """Give plain values for JSON."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """How things stand, after what was told was taken in."""

    state: State
    generation: int
    now_ms: int
    until_ms: int
    calls: int
    failures: int
    slow: int
    consecutive: int
    mode: Mode
    mode_until_ms: int
    ramp_ms: int
    reason: str = ""
    granted: bool = False
    wait_ms: int = 0
    breakers: int = 0
    told: tuple[Transition, ...] = ()

    @property
    def refusal_reason(self) -> str:
        """Say why a call is refused."""
        return "probes are under way" if self.state == "half-open" else self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A breaker as an operator sees it; times in seconds since the epoch, 0 where there is none."""

    name: str
    state: str
    """closed, open, half-open, forced open, forced closed or disabled."""
    reason: str = ""
    since: float = 0.0
    open_until: float = 0.0
    generation: int = 0
    calls: int = 0
    failures: int = 0
    slow_calls: int = 0
    consecutive_failures: int = 0
    times_opened: int = 0
    """How often it opened since it was last closed."""
    probes: int = 0
    probe_successes: int = 0
    override_who: str = ""
    override_why: str = ""
    override_until: float = 0.0
    used_at: float = 0.0
    seen_at: float = 0.0
    """The moment of looking, by the clock of the state: differences to it are right whatever the clock here says."""
    policy: dict[str, Any] = field(default_factory=dict)

    @property
    def refuses_for_seconds(self) -> float:
        """Give how long every call is refused from the moment of looking; 0 if not every one, infinite without end."""
        if self.state == "forced open":
            return self.override_until - self.seen_at if self.override_until else math.inf
        return max(0.0, self.open_until - self.seen_at) if self.state == "open" else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Give plain values for JSON."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


class Machine(Protocol):
    """Where a breaker's state lives. The shared one raises StoreUnavailableError, the local one nothing."""

    def sync(self, report: Report, token: str, earlier: Sequence[Run] = ()) -> Reply:
        """Take in counts, those of earlier first, and say how things stand; with a token also ask for a permit."""

    def settle(self, generation: int, token: str, outcome: Outcome, hint_ms: int) -> Reply:
        """Give a probe's permit back with its outcome."""

    def override(self, mode: Mode, who: str, why: str, lasts_ms: int) -> Reply:
        """Override the breaker, or with mode '' end the override and start anew."""

    def look(self) -> Snapshot | None:
        """Look without touching; None if nobody ever used the breaker."""

    def history(self, limit: int) -> list[Transition]:
        """List transitions, the newest first."""


def shown_state(state: str, mode: str) -> str:
    """Name the state in the words of the vocabulary."""
    return state if not mode else "disabled" if mode == "disabled" else f"forced {mode}"
