"""Sending a task: who must look first whether there is room in its queue.

What a body sends is limited like what anybody sends. What is sent on for a task that has run must pass: it is in the
system already, and nobody would be there to send it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from celery._state import get_current_task

from .runtime import runtime_of
from .transport.depth import queue_of

STAGE = "_resilience_stage"  # on a request: how far into __call__ and body it is
CALL, BODY, ENDED = "call", "body", "ended"


def check_room(task: Any, args: Any, kwargs: Any, options: Mapping[str, Any]) -> None:
    """Refuse to send into a queue that is too long: raises QueueFullError."""
    runtime = runtime_of(task.app)
    by_queue = runtime.settings.max_queue_length
    if task.max_queue_length is None and not by_queue:
        return
    if task.app.conf.task_always_eager or _is_sent_on(options.get("task_id")):
        return
    own = task._get_exec_options()  # a queue named on the decorator
    queue = queue_of(task.app, task.name, {**own, **options}, args, kwargs)
    limits = [] if queue is None else [task.max_queue_length, by_queue.get(queue)]
    given = [limit for limit in limits if limit is not None]
    if queue is not None and given:
        runtime.backpressure.check(queue, min(given), runtime.settings.queue_full_wait_seconds)


def _is_sent_on(task_id: str | None) -> bool:
    """Say whether Celery or we send this for the running task: another attempt of it, or what follows its end.

    Of a task that is not ours the body cannot be told from what follows it.
    """
    running: Any = get_current_task()  # may be None, whatever the stubs say
    if running is None:
        return False
    request = running.request
    if request.called_directly:
        return False  # a plain call of a function, whoever made it
    return request.__dict__.get(STAGE) not in (CALL, BODY) or (task_id is not None and task_id == request.id)
