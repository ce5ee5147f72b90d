"""How many messages wait in queues, asked of the broker.

Private API, in one function each: kombu's `Channel._q_for_pri` (Redis), py-amqp's `send_method` and `wait`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from amqp import spec
from celery import Celery


def queue_lengths(app: Celery, queues: Sequence[str]) -> dict[str, int]:
    """Count what waits in queues, in one round trip on Redis and RabbitMQ; one that does not exist holds nothing.

    RabbitMQ stops answering at a queue that does not exist: those after it are left out. Raises what the broker raises.
    """
    with app.connection_or_acquire() as connection:
        transport: Any = connection.transport
        if transport.driver_type == "redis":
            return _in_redis(connection.default_channel, queues)
        if transport.driver_name == "py-amqp":
            return _in_rabbitmq(connection, queues)
        return {queue: _declared(connection, queue) for queue in queues}


def queue_of(app: Celery, task: str, options: dict[str, Any], args: Any, kwargs: Any) -> str | None:
    """Name the queue that a call would go to; None where it goes to an exchange."""
    routed = app.amqp.router.route(dict(options), task, args, kwargs)
    queue = routed.get("queue")
    return None if queue is None else str(getattr(queue, "name", queue))


def _in_redis(channel: Any, queues: Sequence[str]) -> dict[str, int]:
    """Add up the lists that kombu keeps for the priorities of each queue."""
    steps = channel.priority_steps
    with channel.conn_or_acquire() as client, client.pipeline(transaction=False) as pipe:
        for queue in queues:
            for priority in steps:
                pipe.llen(channel._q_for_pri(queue, priority))
        lengths = pipe.execute()
    return {queue: sum(lengths[i * len(steps) : (i + 1) * len(steps)]) for i, queue in enumerate(queues)}


def _in_rabbitmq(connection: Any, queues: Sequence[str]) -> dict[str, int]:
    """Send all questions, then read the answers; on a channel of its own, which a missing queue closes."""
    lengths: dict[str, int] = {}
    with connection.channel() as channel:
        for queue in queues:
            passive: tuple[Any, ...] = (0, queue, True, False, False, False, False, {})
            channel.send_method(spec.Queue.Declare, "BsbbbbbF", passive)
        for queue in queues:
            try:
                _, lengths[queue], _ = channel.wait(spec.Queue.DeclareOk, returns_tuple=True)
            except connection.channel_errors:
                lengths[queue] = 0
                break
    return lengths


def _declared(connection: Any, queue: str) -> int:
    try:
        return int(connection.default_channel.queue_declare(queue, passive=True).message_count)
    except connection.channel_errors:
        return 0
