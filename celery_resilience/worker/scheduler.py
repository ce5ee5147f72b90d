"""The scheduler: brings messages whose time has come from the schedule back to their queues.

Every worker has one and any of them serves; what two see as due, one of them moves.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import Any

from celery import bootsteps

from ..crashpoints import crashpoint
from ..events import Event, tell
from ..runtime import Runtime, runtime_of
from ..schedule import Place, Schedule
from ..transport.publisher import Publisher
from ..transport.queues import redis_list
from .duty import Duty

logger = logging.getLogger(__name__)

BATCH = 200
LEASE_SECONDS = 30.0
BUSY_WITHIN_SECONDS = 1.0  # while messages come due, others with short delays are likely to be added:
BUSY_POLL_SECONDS = 0.05  # look more often, or they would be late in bunches


class SchedulerStep(bootsteps.StartStopStep):
    """Runs the scheduler while the worker consumes."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._duty: Duty | None = None

    def start(self, consumer: Any) -> None:
        """Begin to release what is due."""
        runtime = runtime_of(consumer.app)
        if runtime.schedule is None:
            return
        self._duty = Duty("scheduler", Scheduler(runtime, runtime.schedule, consumer.task_consumer.channel).work)
        self._duty.start()

    def stop(self, consumer: Any) -> None:
        """Release no more; what is due waits for another worker."""
        duty, self._duty = self._duty, None
        if duty is not None:
            duty.stop()


class Scheduler:
    """Moves what is due: straight into the broker where it is the schedule's own Redis, else by publishing."""

    def __init__(self, runtime: Runtime, schedule: Schedule, channel: Any) -> None:
        self._poll_seconds = runtime.settings.schedule_poll_seconds
        self._clock = runtime.clock
        self._schedule = schedule
        self._channel = channel
        self._publisher = Publisher(runtime.app)

    def work(self) -> float:
        """Move one batch; gives the seconds until the next look."""
        due = self._schedule.due(BATCH)
        direct: dict[str, list[Place]] = defaultdict(list)
        indirect: list[Place] = []
        for place in due.places:
            if self._schedule.shared and place.queue:
                direct[redis_list(self._channel, place.queue, place.priority)].append(place)
            else:
                indirect.append(place)
        for queue_list, places in direct.items():
            self._release(queue_list, places)
        if indirect:
            self._publish(indirect)
        if len(due.places) == BATCH:
            return 0.0
        # Spread, so that a fleet does not look in the same instant.
        is_busy = bool(due.places) or (due.next_in_seconds is not None and due.next_in_seconds < BUSY_WITHIN_SECONDS)
        pause = min(self._poll_seconds, BUSY_POLL_SECONDS if is_busy else self._poll_seconds)
        pause *= self._clock.uniform(0.8, 1.0)
        if due.next_in_seconds is None:
            return pause
        return min(pause, due.next_in_seconds + self._clock.uniform(0.001, 0.01))

    def _release(self, queue_list: str, places: list[Place]) -> None:
        """Move the messages of one queue; what is wrong with them must not hold back those of others."""
        try:
            self._schedule.release(queue_list, places)
        except UnicodeError as error:
            self._schedule.claim(places, LEASE_SECONDS)  # not again at the next look
            tell(logger, logging.ERROR, Event.MESSAGE_UNROUTABLE, queue=ascii(queue_list), error=error)

    def _publish(self, places: list[Place]) -> None:
        """Lease, publish, remove: a crash in between publishes again and loses nothing.

        A message that cannot be published waits for its lease to end; its neighbours do not, unless the broker is away.
        """
        for place, envelope in self._schedule.claim(places, LEASE_SECONDS):
            try:
                self._publisher.publish(envelope, place.queue)
            except self._publisher.connection_errors:
                raise
            except Exception as error:
                task_id = envelope.headers.get("id")
                tell(logger, logging.ERROR, Event.MESSAGE_UNROUTABLE, task_id=task_id, error=repr(error))
                continue
            crashpoint("scheduler.published")
            self._schedule.remove([place])
