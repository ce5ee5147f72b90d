"""Many flaky tasks at once, and the account of which attempts each has made."""

from __future__ import annotations

from collections.abc import Callable

from tests.support.stage import Stage
from tests.support.waiting import wait_until


class Load:
    """Sends `count` tasks; `plan(n)` gives how often the n-th fails and the delay between its attempts in seconds."""

    def __init__(self, stage: Stage, count: int, plan: Callable[[int], tuple[int, float]]) -> None:
        self._stage = stage
        self.failures: dict[str, int] = {}
        self._ids: dict[str, str] = {}
        for n in range(count):
            failures, delay = plan(n)
            key = stage.key()
            self.failures[key] = failures
            self._ids[key] = stage.send("flaky", key, failures, resilience={"base_seconds": delay}).id

    def attempts(self) -> dict[str, list[int]]:
        """Give the attempts of every task so far, in the order they began."""
        with self._stage.record.pipeline() as pipe:
            for key in self.failures:
                pipe.lrange(f"run:{key}", 0, -1)
            return {key: [int(n) for n in runs] for key, runs in zip(self.failures, pipe.execute(), strict=True)}

    def done(self) -> int:
        """Count the tasks whose last attempt has begun."""
        return len(self.failures) - len(self.unfinished())

    def unfinished(self) -> set[str]:
        """Give the ids of the others."""
        attempts = self.attempts()
        return {self._ids[key] for key, failures in self.failures.items() if failures + 1 not in attempts[key]}

    def wait_done(self, count: int, seconds: float) -> None:
        """Wait until that many are done."""
        wait_until(lambda: self.done() >= count, seconds, lambda: f"{count} ended tasks, not {self.done()}")

    def wrong(self) -> dict[str, list[int]]:
        """Give the tasks that did not make each of their attempts, or made one too many."""
        return {
            key: made for key, made in self.attempts().items() if set(made) != set(range(1, self.failures[key] + 2))
        }

    def repeated(self) -> int:
        """Count the runs that repeat an attempt of their task."""
        return sum(len(made) - len(set(made)) for made in self.attempts().values())
