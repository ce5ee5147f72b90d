"""The visibility heartbeat: renews the lease of every message that this worker holds on a Redis broker.

Running, prefetched and waiting messages alike; so a task may take longer than `visibility_timeout`, and the timeout can
be short, which lets the orphans of a killed worker start again soon.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from celery import bootsteps
from celery.concurrency import solo
from celery.worker import state

from ..runtime import runtime_of
from ..transport.fetch import AT_ONCE
from ..transport.lease import Holding, hold
from .duty import Duty
from .intake import bury_unreadable


class LeaseStep(bootsteps.StartStopStep):
    """Watches the consumer's channel; a reconnect brings a new channel, beside what still runs from the old one.

    It goes on through a warm shutdown, whose last tasks may run for long: only `shutdown` ends it.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._holdings: list[Holding] = []
        self._running: set[str] = set()
        self._duty = Duty("lease", self._keep)

    def start(self, consumer: Any) -> None:
        """Watch the channel that the worker is about to consume from."""
        if consumer.connection.transport.driver_type != "redis":
            return
        clock = runtime_of(consumer.app).clock
        # A solo pool runs each message where it is delivered: what else was taken would wait behind it.
        at_once = 1 if isinstance(consumer.pool, solo.TaskPool) else AT_ONCE
        bury = partial(bury_unreadable, consumer)
        self._holdings.append(hold(consumer.task_consumer.channel, clock, tags_still_running, at_once, bury))
        self._duty.start()

    def stop(self, consumer: Any) -> None:
        """Go on: tasks that still run need their lease."""

    def shutdown(self, consumer: Any) -> None:
        """End with the worker."""
        self._duty.stop()
        for holding in self._holdings:
            holding.close()

    def _keep(self) -> float:
        *old, current = self._holdings
        if old:
            self._keep_old(old)
        current.renew()
        current.restore_orphans()
        return current.renewal_seconds

    def _keep_old(self, holdings: list[Holding]) -> None:
        """Keep what still runs from closed channels; a run that was cancelled never acks, so its lease must end.

        A run that has just ended is not active any more and about to ack: it is missed twice before it is let go.
        """
        running = tags_still_running()
        recently, self._running = running | self._running, running
        for holding in holdings:
            holding.keep_only(recently)
            holding.renew()
            if not len(holding):
                self._holdings.remove(holding)
                holding.close()


def tags_still_running() -> set[str]:
    """Give the tags whose runs go on although their channel closes: none when the worker itself is stopping."""
    stops: tuple[Any, Any] = (state.should_stop, state.should_terminate)
    if any(stop is not None and stop is not False for stop in stops):
        return set()
    return {str(request.message.delivery_tag) for request in tuple(state.active_requests)}
