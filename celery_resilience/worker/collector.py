"""The collector: moves letters from the DLQ into the ledger, and looks after those that are there.

A real thread in each worker's parent. A database that is away leaves the letters in the DLQ and touches no task.
"""

from __future__ import annotations

from typing import Any

from celery import bootsteps

from ..clock import Clock
from ..deadletter.chords import keep_joins
from ..runtime import Runtime, runtime_of
from .duty import Duty

POLL_SECONDS = 2.0
BATCH = 5000  # letters at one go, so that chords are looked after while very many are collected
TEND_SECONDS = 60.0
JOINS_PER_LIFE = 4  # how often join keys are renewed while they would live by themselves
DAY = 86400.0


class CollectorStep(bootsteps.StartStopStep):
    """Runs the collector while the worker consumes; absent where dead letters are switched off."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        settings = runtime_of(consumer.app).settings
        self.enabled = settings.dlq_enabled and settings.dlq_collect
        self._duty: Duty | None = None

    def start(self, consumer: Any) -> None:
        """Begin to collect."""
        self._duty = Duty("collector", Collector(Runtime(consumer.app)).work, is_blocking=True)
        self._duty.start()

    def stop(self, consumer: Any) -> None:
        """Collect no more; what is in the DLQ waits for another worker."""
        duty, self._duty = self._duty, None
        if duty is not None:
            duty.stop()


class Collector:
    """What is done in one round, and how long until the next; its runtime, and so its connections, are its own."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._clock: Clock = runtime.clock
        self._tend_at = self._keep_at = 0.0

    def work(self) -> float:
        """Collect what is there, then look after the ledger if it is time; gives the seconds until the next round."""
        desk, now = self._runtime.desk, self._clock.monotonic()
        if now >= self._keep_at:
            self._keep_at = now + self._join_seconds() / JOINS_PER_LIFE
            self._keep_joins()
        if now >= self._tend_at:
            self._tend_at = now + TEND_SECONDS
            desk.tend()
        if desk.depth() and desk.collect(BATCH) >= BATCH:
            return 0.0
        return POLL_SECONDS * self._clock.uniform(0.8, 1.2)

    def _keep_joins(self) -> None:
        """Keep the chords alive that wait for letters: each sibling that returns has set their end anew."""
        groups = self._runtime.desk.ledger.parked_groups()
        keep_joins(self._runtime.app, groups, self._runtime.settings.dlq_retention_days * DAY)

    def _join_seconds(self) -> float:
        """Give how long join keys live by themselves; an hour at the most, as siblings come and go."""
        expires = self._runtime.app.conf.result_expires
        seconds = expires.total_seconds() if hasattr(expires, "total_seconds") else float(expires or 0)
        return min(3600.0, seconds) if seconds > 0 else 3600.0
