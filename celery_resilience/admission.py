"""Admit one run through its gates, and tell them how it ended.

A refusal gives back whatever was taken before it; it never costs an attempt.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .attempts import Attempts, slot, slot_of
from .breaker import Permit, Refusal
from .errors import BreakerOpenError, LimitReachedError, ResilienceError
from .failure import Failure, FailureClass
from .gates import Gates
from .rate import Rate
from .runtime import Runtime

BUDGET = "retry budget"
SLOT_LASTS_SECONDS = 1.0  # how late a message may come for its slot
LONGEST_REST_SECONDS = 3600.0
PACE_SECONDS = 0.05  # a slot this near is waited for in place: exact, and cheaper than a way through the schedule
AGAIN_SECONDS = (0.5, 1.5)  # a full bulkhead says nothing about when a place comes free: ask again soon, spread out
AGAIN_GROWTH_LIMIT = 8.0
LINE_SECONDS = (30.0, 60.0)  # when to come back to a retry budget whose line is full


@dataclass(frozen=True, slots=True)
class Refused:
    """Why a run may not start now, and when it may be tried again."""

    by: str
    delay: float
    error: ResilienceError
    reserved: tuple[str, ...] = ()
    owed: tuple[str, ...] = ()


class Admission:
    """The gates of one run: entered in order, left when it ends."""

    def __init__(self, gates: Gates, runtime: Runtime, attempts: Attempts, token: str) -> None:
        self._gates = gates
        self._runtime = runtime
        self._attempts = attempts
        self._token = token
        self._permits: list[Permit] = []
        self._has_place = False
        self._reserved = attempts.reserved
        self._limit: tuple[str, Rate] | None = None

    def enter(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Refused | None:
        """Ask every gate; gives the first refusal, after handing back what the others gave."""
        try:
            refused = (
                self._ask_breakers(args, kwargs)
                or self._ask_budgets()
                or self._ask_rate(args, kwargs)
                or self._ask_bulkhead()
            )
        except BaseException:  # a user's function that names a breaker or a rate
            self.cancel()
            raise
        if refused is not None:
            self.cancel()
        return refused

    def has_fallback(self, error: BaseException) -> bool:
        """Say whether there is something to do instead of what this error refused."""
        return self._gates.fallback is not None and isinstance(error, BreakerOpenError)

    def fall_back(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Give the result that takes the place of the body's."""
        return None if self._gates.fallback is None else self._gates.fallback(*args, **kwargs)

    def succeeded(self) -> None:
        """Tell the gates that the body succeeded."""
        for permit in self._permits:
            permit.success()
            self._runtime.note_success(permit.name)
        self._leave()

    def failed(self, failure: Failure) -> None:
        """Tell the gates that the body failed; a server that asked for rest is given it by the whole fleet."""
        for permit in self._permits:
            permit.failure(failure)
        self._leave()
        seconds = failure.retry_after
        if failure.failure_class is not FailureClass.RATE_LIMITED or not seconds or self._runtime.is_eager:
            return
        if self._limit is not None and self._runtime.limits is not None:
            self._runtime.limits.hold(*self._limit, min(seconds, LONGEST_REST_SECONDS))
        for permit in self._permits:
            self._runtime.breaker(permit.name).rest(seconds)

    def spend(self, cost: float) -> tuple[float, tuple[str, ...]]:
        """Take a retry from the budgets of the breakers; gives the seconds until its turn, and what is left to pay."""
        return self._pay([(permit.name, cost) for permit in self._permits])

    def cancel(self) -> None:
        """Hand back what was taken, unused."""
        for permit in self._permits:
            permit.cancel()
        self._permits = []
        self._leave()

    def _ask_breakers(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Refused | None:
        for name, policy in self._gates.breakers(args, kwargs):
            answer = self._runtime.breaker(name, policy).enter()
            if isinstance(answer, Refusal):
                return Refused(name, answer.retry_after, answer.error(), owed=self._attempts.owed)
            self._permits.append(answer)
        return None

    def _ask_budgets(self) -> Refused | None:
        """Pay for a retry that found the line full when it was scheduled; a deadline is not waited past."""
        if not self._attempts.owed:
            return None
        wait, owed = self._pay([slot_of(one) for one in self._attempts.owed])
        deadline_at = self._attempts.deadline_at
        if wait <= 0 or (deadline_at is not None and self._runtime.clock.time() + wait > deadline_at):
            return None
        return Refused(BUDGET, wait, LimitReachedError(BUDGET, wait), owed=owed)

    def _pay(self, debts: Sequence[tuple[str, float]]) -> tuple[float, tuple[str, ...]]:
        limits, wait = self._runtime.limits, 0.0
        owed: list[str] = []
        if limits is None:
            return 0.0, ()
        for name, cost in debts:
            answer = limits.spend(name, cost, self._runtime.take_successes(name))
            wait = max(wait, answer.wait if answer.is_admitted else self._runtime.clock.uniform(*LINE_SECONDS))
            owed += [] if answer.is_admitted else [slot(name, cost)]
        return wait, tuple(owed)

    def _ask_rate(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Refused | None:
        self._limit = limit = self._gates.rate_of(args, kwargs)
        if limit is None or self._runtime.limits is None:
            return None
        name, rate = limit
        now = self._runtime.clock.time()
        if any(slot_of(one)[0] == name and now - slot_of(one)[1] <= SLOT_LASTS_SECONDS for one in self._reserved):
            return None  # a slot that was missed, by a deploy or another gate, is asked for anew
        answer = self._runtime.limits.rate(name, rate)
        self._reserved = (slot(name, now + answer.wait),) if answer.is_admitted else ()
        if answer.is_admitted and answer.wait <= PACE_SECONDS:
            self._runtime.clock.sleep(answer.wait)
            return None
        return Refused(f"rate {name}", answer.wait, LimitReachedError(f"rate {name}", answer.wait), self._reserved)

    def _ask_bulkhead(self) -> Refused | None:
        places, limits = self._gates.places, self._runtime.limits
        if places is None or limits is None:
            return None
        answer = limits.enter(self._gates.task, places, self._token)
        self._has_place = answer.is_admitted
        if answer.is_admitted:
            return None
        growth = min(AGAIN_GROWTH_LIMIT, 1.2**self._attempts.parks)
        delay = min(answer.wait, self._runtime.clock.uniform(*AGAIN_SECONDS) * growth)
        error = LimitReachedError(f"bulkhead {self._gates.task}", delay)
        return Refused(f"bulkhead {self._gates.task}", delay, error, self._reserved)

    def _leave(self) -> None:
        if self._has_place and self._runtime.limits is not None:
            self._has_place = False
            self._runtime.limits.leave(self._gates.task, self._token)
