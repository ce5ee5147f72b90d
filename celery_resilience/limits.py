"""Shared limits: rates, bulkheads and retry budgets of the whole fleet, in Redis.

A limit that cannot be asked, because its store is away, admits: it protects a dependency, it must not stop the work.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .errors import StoreUnavailableError
from .events import Event, tell
from .failure import FailureClass
from .rate import Rate
from .redis_store import RedisStore

logger = logging.getLogger(__name__)

GROUP = "limits"
LEASE_SECONDS = 30.0
LONGEST_RESERVATION_SECONDS = 7 * 86400.0
BUDGET_SHARE = 0.2  # of the successes of a breaker may be retries,
BUDGET_PER_SECOND = 10.0  # and so many in any case;
BUDGET_SAVED_SECONDS = 10.0  # of which as much is saved up,
BUDGET_LINE_SECONDS = 60.0  # and as much is given in advance
BUDGET_COST = {FailureClass.RATE_LIMITED: 2.0}  # what a retry of a class takes from the budget; 1 where not told


@dataclass(frozen=True, slots=True)
class Answer:
    """What a limit says: admitted, after `wait` seconds if that is not 0; or not, and when to ask again."""

    is_admitted: bool
    wait: float = 0.0


ADMITTED = Answer(True)


class Limits:
    """Asks the shared limits; each question is one round trip."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store

    def rate(self, name: str, rate: Rate, longest_wait: float = LONGEST_RESERVATION_SECONDS) -> Answer:
        """Ask a rate for one call; a call that must wait has its slot reserved and need not ask again."""
        args = [int(rate.interval_seconds * 1e6), rate.burst, int(longest_wait * 1e6)]
        return self._ask("rate_admit", self._key("rate", name), args, 1e6)

    def hold(self, name: str, rate: Rate, seconds: float) -> None:
        """Let nobody through a rate for a while, because the server asked for rest. Never raises."""
        early = rate.interval_seconds * (rate.burst - 1)
        try:
            self._store.run("rate_hold", [self._key("rate", name)], [int(seconds * 1e6), int(early * 1e6)])
        except StoreUnavailableError as error:
            tell(logger, logging.WARNING, Event.LIMIT_UNASKED, limit=name, error=error)

    def enter(self, name: str, places: int, token: str) -> Answer:
        """Take a place in a bulkhead until `leave`, or until its lease is not renewed any more."""
        return self._ask("bulkhead_enter", self._key("bulkhead", name), [token, places, int(LEASE_SECONDS * 1000)], 1e3)

    def leave(self, name: str, token: str) -> None:
        """Give a place back; a store that is away frees it by itself."""
        try:
            self._store.command("ZREM", self._key("bulkhead", name), token)
        except StoreUnavailableError as error:
            tell(logger, logging.WARNING, Event.LIMIT_UNASKED, limit=name, error=error)

    def renew(self, name: str, tokens: Sequence[str]) -> int:
        """Renew the leases of places that are still held; gives how many were."""
        args = [int(LEASE_SECONDS * 1000), *tokens]
        kept: int = self._store.run("bulkhead_renew", [self._key("bulkhead", name)], args)
        return kept

    def spend(
        self,
        name: str,
        cost: float,
        successes: int,
        *,
        share: float = BUDGET_SHARE,
        per_second: float = BUDGET_PER_SECOND,
        longest_wait: float = BUDGET_LINE_SECONDS,
    ) -> Answer:
        """Spend from a retry budget; in a storm the turn comes after `wait`, and later than `longest_wait` never.

        Not admitted means that the line is full and nothing was spent: ask again.
        """
        most = max(10.0, per_second * BUDGET_SAVED_SECONDS)
        args = [cost, successes, share, per_second, most, int(longest_wait * 1000)]
        return self._ask("budget_spend", self._key("budget", name), args, 1e3)

    def _ask(self, script: str, key: str, args: Sequence[Any], per_second: float) -> Answer:
        try:
            is_admitted, wait = self._store.run(script, [key], args)
        except StoreUnavailableError as error:
            tell(logger, logging.WARNING, Event.LIMIT_UNASKED, script=script, error=error)
            return ADMITTED
        return Answer(bool(is_admitted), float(wait) / per_second)

    def _key(self, kind: str, name: str) -> str:
        return self._store.key(GROUP, kind, name)
