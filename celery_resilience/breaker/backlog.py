"""What a process counted while Redis was away, in the order in which it happened.

Sums alone would lie: single failures among many successes would arrive as one row of failures.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from .values import NO_HINT, Report, Run

MAX_RUNS = 1000  # as many calls as a window may hold; of more runs the oldest are forgotten
SAME_MOMENT_SECONDS = 0.01  # the shortest bucket of a window


class _Counted(NamedTuple):
    at: float
    report: Report


class Backlog:
    """Runs of successes with the failures that followed them; `generation` is that of the shared state before."""

    def __init__(self, generation: int = 0, counted: Iterable[_Counted] = ()) -> None:
        self.generation = generation
        self._counted = deque(counted, MAX_RUNS)

    def __bool__(self) -> bool:
        return bool(self._counted)

    def add(self, report: Report, at: float, window_seconds: float) -> None:
        """Keep calls that were counted at this moment of the monotonic clock."""
        if not report.calls:
            return
        last = self._counted[-1] if self._counted else None
        moment = max(SAME_MOMENT_SECONDS, window_seconds / 100)
        if last is not None and at - last.at < moment and _keeps_order(last.report, report):
            self._counted[-1] = _Counted(last.at, last.report.plus(report))
        else:
            self._counted.append(_Counted(at, report))

    def followed_by(self, later: Backlog) -> Backlog:
        """Give both, in this order."""
        return Backlog(self.generation, (*self._counted, *later._counted))

    def runs(self, now: float) -> tuple[Run, ...]:
        """Give what is kept, the oldest first, with its age."""
        return tuple(Run(max(0, int((now - at) * 1000)), *report[1:5]) for at, report in self._counted)

    def hint_ms(self, now: float) -> int:
        """Give what is left of the longest wait that a failure asked for."""
        left = [report.hint_ms - int((now - at) * 1000) for at, report in self._counted if report.hint_ms >= 0]
        return max([NO_HINT, *left])


def _keeps_order(first: Report, then: Report) -> bool:
    """Say whether the sum of both, successes before failures, is still what happened."""
    return not (first.failures + first.slow_failures) or not (then.successes + then.slow_successes)
