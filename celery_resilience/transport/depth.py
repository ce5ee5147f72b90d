"""How many messages wait in a queue, asked of the broker."""

from __future__ import annotations

from typing import Any

from celery import Celery


def queue_length(app: Celery, queue: str) -> int:
    """Count what waits in a queue; one that does not exist holds nothing. Raises what the broker raises."""
    with app.connection_or_acquire() as connection:
        channel: Any = connection.default_channel
        try:
            declared: Any = app.amqp.queues[queue].bind(channel).queue_declare(passive=True)
            return int(declared.message_count)
        except connection.channel_errors:
            return 0


def queue_of(app: Celery, task: str, options: dict[str, Any], args: Any, kwargs: Any) -> str | None:
    """Name the queue that a call would go to; None where it goes to an exchange."""
    routed = app.amqp.router.route(dict(options), task, args, kwargs)
    queue = routed.get("queue")
    return None if queue is None else str(getattr(queue, "name", queue))
