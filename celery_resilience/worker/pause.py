"""Applies pauses in this worker: a paused queue is not consumed, messages of a paused task are parked.

Queues are switched in the thread of the worker's event loop, which owns the consumer. While Redis is away the last
known pauses go on; those with an end still end. A queue that waits for one breaker is paused while that refuses all.
"""

from __future__ import annotations

import contextlib
import logging
import math
from dataclasses import replace
from functools import partial
from typing import Any

from celery import bootsteps
from kombu.message import Message

from ..attempts import HEADER, Attempts, attempts_for
from ..errors import StoreUnavailableError
from ..events import Event, tell
from ..pauses import Pause, Pauses, waits_for
from ..runtime import Runtime, runtime_of
from ..schedule import Schedule
from ..signals import task_parked
from ..transport.envelope import Envelope, original
from ..transport.lineage import has_own_lineage, lineage_name
from ..transport.queues import origin_queue
from .duty import Duty

logger = logging.getLogger(__name__)

POLL_SECONDS = 2.0
PARK_SECONDS = 3600.0  # then it is looked at again, and parked again if the pause goes on
SPREAD_SECONDS = 1.0
WAKES = 2  # a message may be parked by what was known a moment before: its task is woken at two looks


class PauseStep(bootsteps.StartStopStep):
    """Looks for pauses before the worker begins to consume, and then every other second."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._duty: Duty | None = None
        self._stopped: set[str] = set()  # the queues that this worker would consume if they were not paused
        self._held: dict[str, Pause] = {}  # queues that wait for a breaker
        self._tasks: set[str] = set()
        self._to_wake: dict[str, int] = {}

    def start(self, consumer: Any) -> None:
        """Leave paused queues out; after a reconnect too."""
        runtime = runtime_of(consumer.app)
        pauses = runtime.pauses
        if pauses is None:
            return
        with contextlib.suppress(StoreUnavailableError):
            pauses.refresh()
        self._held = held_by_breakers(runtime)
        self._duty = Duty("pause", partial(self._look, consumer, pauses, runtime))
        self.switch(consumer, pauses)
        self._duty.start()

    def stop(self, consumer: Any) -> None:
        """Look no more."""
        duty, self._duty = self._duty, None
        if duty is not None:
            duty.stop()

    def switch(self, consumer: Any, pauses: Pauses) -> None:
        """Stop consuming what is paused, and begin again with what no longer is; for the event loop's thread."""
        if self._duty is None or consumer.task_consumer is None:
            return  # asked for before the connection was lost or the worker stopped
        paused = self._paused(pauses)
        for queue in self._to_stop(consumer, paused):
            self._stopped.add(queue)
            consumer.cancel_task_queue(queue)
            tell(logger, logging.WARNING, Event.QUEUE_PAUSED, queue=queue, who=paused[queue].who, why=paused[queue].why)
        for queue in sorted(self._stopped - paused.keys()):
            consumer.add_task_queue(queue)
            self._stopped.discard(queue)
            tell(logger, logging.WARNING, Event.QUEUE_RESUMED, queue=queue)

    def _look(self, consumer: Any, pauses: Pauses, runtime: Runtime) -> float:
        try:
            pauses.refresh()
        finally:
            self._held = held_by_breakers(runtime)
            paused = self._paused(pauses)
            if self._to_stop(consumer, paused) or self._stopped - paused.keys():
                consumer.call_soon(self.switch, consumer, pauses)
        self._wake_ended(pauses)
        # The first to come after an open time is the probe: it should not wait for the next round.
        ends = [one.left_seconds for one in self._held.values() if one.left_seconds is not None]
        return min([POLL_SECONDS * runtime.clock.uniform(0.8, 1.0), *(seconds + 0.05 for seconds in ends)])

    def _paused(self, pauses: Pauses) -> dict[str, Pause]:
        return {**self._held, **pauses.all_known("queue")}

    def _to_stop(self, consumer: Any, paused: dict[str, Pause]) -> list[str]:
        """Name the paused queues that this worker consumes; any other is not its business."""
        return [queue for queue in paused if queue in consumer.app.amqp.queues.consume_from]

    def _wake_ended(self, pauses: Pauses) -> None:
        """Wake what this worker may have parked after somebody else's resume, before it knew."""
        tasks = set(pauses.all_known("task"))
        self._to_wake |= dict.fromkeys(self._tasks - tasks, WAKES)
        self._tasks = tasks
        for name, times in list(self._to_wake.items()):
            if name not in tasks:
                pauses.wake(name)
            self._to_wake[name] = times - 1
            if times == 1:
                del self._to_wake[name]


def held_by_breakers(runtime: Runtime) -> dict[str, Pause]:
    """Give the queues whose breaker refuses every call now; none while Redis is away: then each process decides."""
    held: dict[str, Pause] = {}
    for queue, name in runtime.settings.queue_breakers.items():
        with contextlib.suppress(StoreUnavailableError):
            seen = runtime.breakers.find(name)
            left = 0.0 if seen is None else seen.refuses_for_seconds
            if seen is not None and left > 0:
                until, ends = (None, None) if math.isinf(left) else (seen.seen_at + left, left)
                held[queue] = Pause(
                    kind="queue",
                    name=queue,
                    who=f"breaker {name}",
                    why=seen.override_why or seen.reason,
                    at=seen.since,
                    until=until,
                    left_seconds=ends,
                )
    return held


def park_if_paused(message: Message, task: str, runtime: Runtime) -> bool:
    """Park a message whose task is paused, without spending an attempt; False if it is to be run.

    It is run if it cannot be stored, and if its deadline is over: that ends it.
    """
    pauses, schedule = runtime.pauses, runtime.schedule
    pause = None if pauses is None else pauses.known("task", task)
    if pause is None or schedule is None:
        return False
    envelope = original(message.properties, message.delivery_info)
    attempts = attempts_for(message.headers.get(HEADER), message.headers.get("id")).after_park(waits_for(task))
    delay = _delay(pause, attempts.deadline_at, runtime)
    if envelope is None or delay is None:
        return False
    task_id, nesting = message.headers.get("id"), message.headers.get("replaced_task_nesting")
    lineage = attempts.lineage or lineage_name(message.properties, task_id, nesting)
    is_namesake = attempts.lineage is None and not has_own_lineage(message.properties)
    queue = attempts.queue or origin_queue(runtime.app, message.delivery_info)
    attempts = replace(attempts, lineage=lineage, queue=queue, task_id=task_id)
    told = {"task_id": task_id, "task": task, "attempt": attempts.attempt}
    try:
        is_stored = _park(schedule, envelope, attempts, delay)
        if not is_stored and is_namesake and not message.delivery_info.get("redelivered"):
            # On record already, but perhaps for another message with the same task id: it gets a line of its own.
            _park(schedule, envelope, replace(attempts, lineage=f"{lineage}:{runtime.clock.token()}"), delay)
    except StoreUnavailableError as error:
        tell(logger, logging.WARNING, Event.PAUSE_PASSED, **told, error=error)
        return False
    tell(logger, logging.INFO, Event.TASK_PARKED, **told, waits_for=waits_for(task), delay=round(delay, 3))
    task_parked.send(sender=task, task_id=task_id, waits_for=waits_for(task), delay=delay)
    return True


def _delay(pause: Pause, deadline_at: float | None, runtime: Runtime) -> float | None:
    """Give the seconds to park for; None if the deadline is over."""
    now = runtime.clock.time()
    if deadline_at is not None and now > deadline_at:
        return None
    ends = [PARK_SECONDS]
    ends += [pause.left_seconds] if pause.left_seconds is not None else []
    ends += [deadline_at - now] if deadline_at is not None else []
    return max(0.0, min(ends)) + runtime.clock.uniform(SPREAD_SECONDS / 2, SPREAD_SECONDS)


def _park(schedule: Schedule, envelope: Envelope, attempts: Attempts, delay: float) -> bool:
    """Store the same message again; it keeps its ETA, if it has one: a resume may come before."""
    message = replace(envelope, headers={**envelope.headers, HEADER: attempts.to_header()})
    lineage, number = str(attempts.lineage), attempts.step + 1
    return schedule.add_park(message, attempts.queue, lineage, number, delay, attempts.waits_for[0])
