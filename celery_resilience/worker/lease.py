"""The visibility heartbeat: renews the lease of every message that this worker holds on a Redis broker.

Running, prefetched and waiting messages alike; so a task may take longer than `visibility_timeout`, and the timeout can
be short, which lets the orphans of a killed worker start again soon.
"""

from __future__ import annotations

from typing import Any

from celery import bootsteps

from ..runtime import runtime_of
from ..transport.lease import Holding, hold
from .duty import Duty


class LeaseStep(bootsteps.StartStopStep):
    """Watches the consumer's channel; a reconnect brings a new channel and so a new watch.

    It goes on through a warm shutdown, whose last tasks may run for long: only `shutdown` ends it.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._holding: Holding | None = None
        self._duty: Duty | None = None

    def start(self, consumer: Any) -> None:
        """Watch the channel that the worker is about to consume from."""
        self._end()
        if consumer.connection.transport.driver_type != "redis":
            return
        self._holding = hold(consumer.task_consumer.channel, runtime_of(consumer.app).clock)
        self._duty = Duty("lease", self._keep)
        self._duty.start()

    def stop(self, consumer: Any) -> None:
        """Go on: tasks that still run need their lease."""

    def shutdown(self, consumer: Any) -> None:
        """End with the worker."""
        self._end()

    def _keep(self) -> float:
        holding = self._holding
        if holding is None:
            return 1.0
        holding.renew()
        holding.restore_orphans()
        return holding.renewal_seconds

    def _end(self) -> None:
        duty, self._duty = self._duty, None
        holding, self._holding = self._holding, None
        if duty is not None:
            duty.stop()
        if holding is not None:
            holding.give_up()
