"""Renews the places that this worker's running tasks hold in bulkheads; a dead worker's places free themselves."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from celery import bootsteps
from celery.worker import state

from .. import limits as shared_limits
from ..limits import Limits
from ..runtime import runtime_of
from ..transport.lineage import lineage_name
from .duty import Duty


class BulkheadStep(bootsteps.StartStopStep):
    """Runs only in workers that know a task with `max_concurrent`; goes on until the last task has ended."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **kwargs: Any) -> None:
        super().__init__(consumer, **kwargs)
        self._duty: Duty | None = None

    def start(self, consumer: Any) -> None:
        """Begin to renew."""
        limits = runtime_of(consumer.app).limits
        has_bulkhead = any(getattr(task, "max_concurrent", None) for task in consumer.app.tasks.values())
        if self._duty is None and limits is not None and has_bulkhead:
            self._duty = Duty("bulkhead", lambda: renew(limits))
            self._duty.start()

    def stop(self, consumer: Any) -> None:
        """Go on: tasks that still run keep their places."""

    def shutdown(self, consumer: Any) -> None:
        """End with the worker."""
        if self._duty is not None:
            self._duty.stop()


def renew(limits: Limits) -> float:
    """Renew the places of what runs now; gives the seconds until the next time."""
    held: dict[str, list[str]] = defaultdict(list)
    for request in tuple(state.active_requests):
        if getattr(request.task, "max_concurrent", None):
            nesting = request.request_dict.get("replaced_task_nesting")
            token = lineage_name(request.message.properties, request.id, nesting)  # as the process that runs it says
            held[request.task.name].append(token)
    for name, tokens in held.items():
        limits.renew(name, tokens)
    return shared_limits.LEASE_SECONDS / 3
