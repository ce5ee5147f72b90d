"""Where a message came from, and how the broker names that place.

Private kombu API: `Channel._q_for_pri` and `global_keyprefix`, in two functions.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Mapping
from typing import Any

from celery import Celery
from celery.utils.quorum_queues import detect_quorum_queues
from kombu.transport.redis import PRIORITY_STEPS, Channel

DELAYED = "celery_delayed_"
_DELAY = re.compile(r"^(?:[01]\.){28}")


def origin_queue(app: Celery, delivery_info: Mapping[str, Any]) -> str | None:
    """Give the queue that a message came from; None if its exchange leads to none or to several."""
    exchange = delivery_info.get("exchange") or ""
    routing_key = delivery_info.get("routing_key") or ""
    if not exchange:
        return routing_key or None
    is_delayed = DELAYED in exchange  # by RabbitMQ, with the bits of the delay before the routing key
    routing_key = _DELAY.sub("", routing_key) if is_delayed else routing_key
    names = [
        queue.name
        for queue in app.amqp.queues.values()
        if (is_delayed or queue.exchange.name == exchange) and _leads_to(queue, routing_key)
    ]
    return names[0] if len(names) == 1 else None


def delays_natively(app: Celery, family: str, queue: str | None) -> bool:
    """Say whether RabbitMQ itself delays messages for this queue, as Celery arranges it for quorum queues."""
    if family != "amqp" or queue is None or queue not in app.amqp.queues:
        return False
    exchange = app.amqp.queues[queue].exchange
    return bool(detect_quorum_queues(app, "amqp")[0] and exchange.name and exchange.type != "direct")


def redis_list(channel: Any, queue: str, priority: int) -> str:
    """Name the list in which kombu keeps this queue for this priority, with the broker's own prefix."""
    return f"{channel.global_keyprefix}{channel._q_for_pri(queue, max(0, priority))}"


def redis_list_of(app: Celery, queue: str, priority: int = 0) -> str:
    """Name the same list from the app's configuration alone, where no channel is open."""
    options = app.conf.broker_transport_options or {}
    steps = options.get("priority_steps") or PRIORITY_STEPS
    step = steps[bisect(steps, max(0, priority)) - 1]
    suffix = f"{options.get('sep', Channel.sep)}{step}" if step else ""
    return f"{options.get('global_keyprefix', '')}{queue}{suffix}"


def _leads_to(queue: Any, routing_key: str) -> bool:
    if queue.exchange.type == "direct":
        return bool(queue.routing_key == routing_key)
    if queue.exchange.type != "topic":
        return False
    words = re.escape(queue.routing_key or "").replace(r"\*", r"[^.]+").replace(r"\#", r".*").replace("#", ".*")
    return re.fullmatch(words, routing_key) is not None


def native_delay_note(app: Celery, family: str) -> str:
    """Say in words where delayed retries of this app wait."""
    native = sorted(name for name in app.amqp.queues if delays_natively(app, family, name))
    if not native:
        return "the schedule (Redis)"
    others = "" if len(native) == len(app.amqp.queues) else "; those of other queues in the schedule (Redis)"
    return f"RabbitMQ's native delay for {', '.join(native)}{others}"
