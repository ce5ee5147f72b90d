"""The window of a local breaker: a ring of time buckets, or the last calls; and the rules to trip by."""

from __future__ import annotations

import math

from ..breaker_policy import BreakerPolicy
from .values import Report

BUCKETS = 10


class Window:
    """Counts of the recent calls. Not safe to share between threads: the machine that owns it has the lock."""

    def __init__(self, policy: BreakerPolicy) -> None:
        self.policy = policy
        self.clear()

    def clear(self) -> None:
        """Forget all calls."""
        self.consecutive = 0
        self._outcomes = ""
        self._buckets = [(-1, 0, 0, 0)] * BUCKETS

    def add(self, report: Report, at: int, now: int) -> None:
        """Count calls of a moment, as if the successes came first; of one before the window only the row is kept."""
        if not report.calls:
            return
        _, ok, slow_ok, failed, slow_failed, _ = report
        if last := self.policy.window_calls:
            runs = (("0", ok), ("1", slow_ok), ("2", failed), ("3", slow_failed))
            self._outcomes = (self._outcomes + "".join(letter * min(count, last) for letter, count in runs))[-last:]
        else:
            epoch = self._epoch(at)
            bucket = self._buckets[epoch % BUCKETS]
            _, calls, failures, slow = bucket if bucket[0] == epoch else (epoch, 0, 0, 0)
            counted = (calls + report.calls, failures + failed + slow_failed, slow + slow_ok + slow_failed)
            if epoch > self._epoch(now) - BUCKETS:
                self._buckets[epoch % BUCKETS] = (epoch, *counted)
        if ok + slow_ok:
            self.consecutive = 0
        self.consecutive += failed + slow_failed

    def totals(self, now: int) -> tuple[int, int, int]:
        """Give calls, failures and slow calls."""
        if self.policy.window_calls:
            failures = sum(letter in "23" for letter in self._outcomes)
            return len(self._outcomes), failures, sum(letter in "13" for letter in self._outcomes)
        epoch = self._epoch(now)
        recent = [bucket for bucket in self._buckets if epoch - BUCKETS < bucket[0] <= epoch]
        return sum(b[1] for b in recent), sum(b[2] for b in recent), sum(b[3] for b in recent)

    def trip_reason(self, now: int) -> str | None:
        """Say why the breaker must open, None if it need not."""
        policy = self.policy
        calls, failures, slow = self.totals(now)
        if policy.consecutive_failures and self.consecutive >= policy.consecutive_failures:
            return f"{self.consecutive} failures in a row"
        if calls >= policy.minimum_calls:
            if policy.failure_rate and failures / calls >= policy.failure_rate:
                return f"{failures} of {calls} calls failed"
            if policy.slow_call_seconds and slow / calls >= policy.slow_call_rate:
                return f"{slow} of {calls} calls were slow"
        return None

    def _epoch(self, now: int) -> int:
        return math.floor(now / (self.policy.window_seconds * 1000 / BUCKETS))
