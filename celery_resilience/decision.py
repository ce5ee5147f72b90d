"""Decide what follows from a failure: pure functions of failure, history, policy and clock.

Nothing here acts; `task` has the one `match` that does.
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from enum import Enum

from .clock import Clock
from .errors import shorten
from .events import Event, tell
from .failure import Failure
from .policy import CustomStrategy, RetryPolicy

logger = logging.getLogger(__name__)

HINT_SPREAD = 0.1  # a server's hint is never undercut, but siblings must not all come back in the same instant


class DeadReason(str, Enum):
    """Why no further attempt follows."""

    EXHAUSTED = "exhausted"
    PERMANENT = "permanent"
    DEADLINE = "deadline"
    REFUSED = "max_retries"
    REFUSED_BY_GATE = "refused"
    POISON = "poison"
    TIME_LIMIT = "time-limit"
    WORKER_LOST = "worker-lost"
    UNDECODABLE = "undecodable"
    UNKNOWN_TASK = "unknown-task"
    MALFORMED = "malformed"
    CIRCUIT_OPEN = "circuit-open"
    REJECTED = "rejected"
    EXPIRED = "expired"
    CODE_CHANGE = "code-change"

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, slots=True)
class Retry:
    """Try again after `delay` seconds."""

    delay: float


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Try no more, because of `reason`."""

    reason: DeadReason


Decision = Retry | DeadLetter


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What decides besides the failure itself: attempts that failed so far (this one included) and times."""

    failed_attempts: int
    previous_delay: float | None = None
    deadline_at: float | None = None


def decide(failure: Failure, history: History, policy: RetryPolicy, clock: Clock) -> Decision:
    """Decide between another attempt and the end."""
    limit = policy.max_attempts or 1
    if history.failed_attempts >= limit:
        return DeadLetter(DeadReason.PERMANENT if limit == 1 else DeadReason.EXHAUSTED)
    delay = delay_for(failure, history, policy, clock)
    if history.deadline_at is not None and clock.time() + delay > history.deadline_at:
        return DeadLetter(DeadReason.DEADLINE)
    return Retry(delay)


def delay_for(failure: Failure, history: History, policy: RetryPolicy, clock: Clock) -> float:
    """Give the seconds to wait: the server's hint if there is one, else the growth law with jitter.

    Never below the floor; a hint is capped by the policy, so that a server cannot park a task for a year.
    """
    cap = policy.cap_seconds if policy.cap_seconds is not None else float("inf")
    floor = policy.floor_seconds or 0.0
    if failure.retry_after is not None:
        hinted = min(failure.retry_after, cap)
        spread = 0.0 if policy.jitter == "none" else clock.uniform(0.0, HINT_SPREAD * hinted)
        return max(floor, min(cap, hinted + spread))
    return max(floor, min(cap, _jittered(failure, history, policy, cap, clock)))


def backoff(failure: Failure, attempt: int, policy: RetryPolicy) -> float:
    """Give the growth law's own answer for this attempt, before cap and jitter."""
    base = policy.base_seconds or 0.0
    if callable(policy.strategy):
        custom = _custom(policy.strategy, attempt, failure)
        if custom is not None:
            return custom
    match policy.strategy:
        case "linear":
            return base * attempt
        case "fixed":
            return base
        case "immediate":
            return 0.0
        case _:
            return base * _power(policy.factor or 2.0, attempt - 1) if base else 0.0


def _jittered(failure: Failure, history: History, policy: RetryPolicy, cap: float, clock: Clock) -> float:
    delay = min(cap, backoff(failure, history.failed_attempts, policy))
    match policy.jitter:
        case "none":
            return delay
        case "equal":
            return delay / 2 + clock.uniform(0.0, delay / 2)
        case "decorrelated":
            base = min(cap, policy.base_seconds or 0.0)
            previous = base if history.previous_delay is None else history.previous_delay
            return clock.uniform(base, max(base, previous * 3))
        case _:
            return clock.uniform(0.0, delay)


def _custom(strategy: CustomStrategy, attempt: int, failure: Failure) -> float | None:
    """Ask the user's callable; a wrong answer must not cost the task, so exponential growth takes over."""
    try:
        seconds = float(strategy(attempt, failure))
    except Exception as error:
        tell(logger, logging.WARNING, Event.STRATEGY_FAILED, strategy=strategy, error=shorten(error))
        return None
    if math.isnan(seconds) or seconds < 0:
        tell(logger, logging.WARNING, Event.STRATEGY_FAILED, strategy=strategy, answer=seconds)
        return None
    return seconds


def _power(factor: float, exponent: int) -> float:
    """Raise without overflowing: past a year of seconds the cap decides anyway."""
    try:
        return float(factor) ** exponent
    except OverflowError:
        return float("inf")
