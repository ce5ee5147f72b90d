"""Deliveries that are not the first: whether they may run, and how often they were started without coming to an end.

Only redelivered and requeued messages are looked at; a first delivery costs nothing, so its start is not on record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from .attempts import Attempts
from .schedule import Schedule

Verdict = Literal["run", "behind", "poison", "duplicate"]
KEEP_SECONDS = 7 * 86400.0  # a crash may take a whole visibility timeout to come back, and a worker may be off for days


@dataclass(frozen=True, slots=True)
class Begun:
    """Whether a message may run; `starts` counts those without an end, this one included."""

    verdict: Verdict
    starts: int


class Deliveries:
    """The record of starts and of requeues; `requeue_seconds` is how long a requeue is remembered."""

    def __init__(self, schedule: Schedule, *, requeue_seconds: float) -> None:
        self._schedule = schedule
        self._store = schedule.store
        self._requeue_seconds = requeue_seconds

    def begin(self, attempts: Attempts, lineage: str, *, is_redelivered: bool, max_crashes: int) -> Begun:
        """Ask whether a message may run, and record its start; 0 for `max_crashes` records none.

        Raises StoreUnavailableError.
        """
        requeue, _, nonce = (attempts.requeue or "").rpartition(":")
        keys = [
            self._schedule.record_key(lineage),
            self._starts(attempts, lineage),
            self._store.key(self._schedule.group, "requeue", requeue),
        ]
        args = [
            attempts.step + 1,
            int(is_redelivered),
            max_crashes,
            int(KEEP_SECONDS),
            nonce,
            int(self._requeue_seconds),
        ]
        verdict, starts = self._store.run("delivery_begin", keys, args)
        told: Any = verdict.decode() if isinstance(verdict, bytes) else verdict
        return Begun(told, int(starts))

    def crashed(self, attempts: Attempts, lineage: str, *, is_redelivered: bool) -> int:
        """Count the death of the process that ran a message; gives its starts without an end so far."""
        args = [int(not is_redelivered), int(KEEP_SECONDS)]
        return int(self._store.run("delivery_crash", [self._starts(attempts, lineage)], args))

    def ended(self, attempts: Attempts, lineage: str) -> None:
        """Forget the starts of a message: it came to an orderly end, whichever."""
        self._store.command("DEL", self._starts(attempts, lineage))

    def _starts(self, attempts: Attempts, lineage: str) -> str:
        # Of one message: the next attempt and the requeued letter begin at nought.
        name = f"{lineage}:{attempts.generation}:{attempts.step + 1}"
        return self._store.key(self._schedule.group, "starts", name)


def is_redelivered(delivery_info: Mapping[str, Any] | None, headers: Mapping[str, Any]) -> bool:
    """Say whether a message may have been started before: marked so, or counted so by a quorum queue."""
    if (delivery_info or {}).get("redelivered"):
        return True
    count = headers.get("x-delivery-count")
    return isinstance(count, int) and count >= 1
