"""The worker's first look at a message of a resilient task, before it is queued for a pool process.

It hands the original message on to whoever runs it, moves far ETAs out of the worker's memory into the
schedule, and parks what is paused.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from celery import Celery
from celery.worker.strategy import default
from kombu.message import Message

from ..errors import StoreUnavailableError
from ..events import Event, tell
from ..runtime import Runtime, runtime_of
from ..transport.envelope import hand_over, original
from ..transport.queues import origin_queue
from .pause import park_if_paused
from .shape import timestamp

logger = logging.getLogger(__name__)

FAR_SECONDS = 60.0


def resilient(task: Any, app: Celery, consumer: Any) -> Callable[..., Any]:
    """Build the handler for the messages of one task, around Celery's own."""
    handle = default(task, app, consumer)
    runtime = runtime_of(app)
    connection_errors = consumer.connection_errors

    def on_message(message: Message, body: Any, ack: Any, reject: Any, callbacks: Any, **kwargs: Any) -> Any:
        if body is None:  # message protocol 2; an older one has no headers to keep
            hand_over(message)
            eta = message.headers.get("eta")
            if eta is not None and runtime.schedule is not None and move_if_far(message, eta, runtime):
                ack(logger, connection_errors)
                return None
            if park_if_paused(message, task.name, runtime):
                ack(logger, connection_errors)
                return None
        return handle(message, body, ack, reject, callbacks, **kwargs)

    return on_message


def move_if_far(message: Message, eta: Any, runtime: Runtime) -> bool:
    """Store a message whose ETA is far; False if it is near, or could not be stored and must stay in memory."""
    due_at, schedule = timestamp(eta, runtime.app), runtime.schedule
    envelope = original(message.properties, message.delivery_info)
    if schedule is None or envelope is None or due_at is None:
        return False
    # A message on Redis has a tag that outlives a redelivery; elsewhere its task's id must do, and the copy that is
    # stored goes without its ETA, so that a redelivery of the copy is not taken for one of the original.
    tag = message.properties.get("delivery_tag")
    name = f"eta:{tag}" if tag else f"eta:{envelope.headers.get('id')}:{envelope.headers.get('retries')}"
    try:
        if message.delivery_info.get("redelivered") and schedule.was_moved(name):
            return True  # a crash came between storing and the ack
        if due_at <= runtime.clock.time() + FAR_SECONDS:
            return False
        if not tag:
            envelope = replace(envelope, headers={**envelope.headers, "eta": None})
        schedule.add_eta(envelope, origin_queue(runtime.app, message.delivery_info), name, due_at, is_unique=bool(tag))
    except StoreUnavailableError as error:
        tell(logger, logging.WARNING, Event.ETA_KEPT, task_id=message.headers.get("id"), error=error)
        return False
    return True
