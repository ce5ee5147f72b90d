"""Breakers for tests: a shared machine whose time a test moves, stores that lose replies, and failing calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from celery_resilience.breaker import CircuitBreaker, Permit
from celery_resilience.breaker.shared import SharedMachine
from celery_resilience.errors import StoreUnavailableError
from celery_resilience.redis_store import RedisStore


class MovedMachine(SharedMachine):
    """The shared machine on a real Redis, by the clock of the test instead of Redis' own."""

    def server_time(self) -> str:
        """Give the test's time."""
        return str(int(self.clock.time() * 1000))


def move_with(breaker: CircuitBreaker) -> CircuitBreaker:
    """Let the breaker's shared state follow the clock it was given."""
    if breaker._link.shared is not None:
        breaker._link.shared.__class__ = MovedMachine
    return breaker


class UnreliableStore(RedisStore):
    """Answers, does nothing and fails (`lost` = "before"), or does it and fails (`lost` = "after"); counts commands."""

    lost: str = ""
    sent = 0

    def run(self, script: str, keys: Sequence[str], args: Sequence[Any] = ()) -> Any:
        """Run a script, or pretend that the line broke."""
        self.sent += 1
        if self.lost == "before":
            raise StoreUnavailableError("the request was lost")
        answer = super().run(script, keys, args)
        if self.lost == "after":
            raise StoreUnavailableError("the reply was lost")
        return answer


def fail(breaker: CircuitBreaker, times: int = 1, error: Exception | None = None) -> int:
    """Make calls that fail; gives how many were admitted."""
    admitted = 0
    for _ in range(times):
        answer = breaker.admit()
        if isinstance(answer, Permit):
            admitted += 1
            answer.failure(error or ConnectionError("refused"))
    return admitted


def succeed(breaker: CircuitBreaker, times: int = 1) -> int:
    """Make calls that succeed; gives how many were admitted."""
    admitted = 0
    for _ in range(times):
        answer = breaker.admit()
        if isinstance(answer, Permit):
            admitted += 1
            answer.success()
    return admitted
