"""Where a message came from, and what kombu calls that place."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from celery import Celery
from kombu import Connection, Exchange, Queue
from kombu.transport.redis import Channel

from celery_resilience.transport.queues import (
    delays_natively,
    native_delay_note,
    origin_queue,
    redis_list,
    redis_list_of,
)

TOPIC = Exchange("events", type="topic")


def app_with(*queues: Queue, broker: str = "amqp://") -> Celery:
    app = Celery("shop", broker=broker)
    app.conf.task_queues = queues
    return app


@pytest.mark.parametrize(
    ("exchange", "routing_key", "expected"),
    [
        ("", "anything", "anything"),
        ("", "", None),
        (None, None, None),
        ("direct", "mail.high", "mail"),
        ("direct", "unbound", None),
        ("events", "order.paid", "orders"),
        ("events", "order.paid.twice", None),
        ("events", "log.a.b.c", "logs"),
        ("events", "both", None),
        ("news", "any", None),
        ("nowhere", "mail.high", None),
        ("celery_delayed_0", "0." * 27 + "1.order.paid", "orders"),
        ("eu_celery_delayed_delivery", "0." * 28 + "both", None),
    ],
)
def test_the_origin_is_found_where_it_is_the_only_one(
    exchange: str | None, routing_key: str | None, expected: str | None
) -> None:
    app = app_with(
        Queue("mail", Exchange("direct", type="direct"), routing_key="mail.high"),
        Queue("orders", TOPIC, routing_key="order.*"),
        Queue("logs", TOPIC, routing_key="log.#"),
        Queue("both1", TOPIC, routing_key="both"),
        Queue("both2", TOPIC, routing_key="both"),
        Queue("news", Exchange("news", type="fanout")),
    )

    assert origin_queue(app, {"exchange": exchange, "routing_key": routing_key}) == expected


def quorum(name: str, exchange: Exchange) -> Queue:
    return Queue(name, exchange, routing_key=name, queue_arguments={"x-queue-type": "quorum"})


def test_native_delay_needs_amqp_a_quorum_queue_and_no_direct_exchange() -> None:
    app = app_with(quorum("fast", TOPIC), quorum("plain", Exchange("plain", type="direct")))

    assert delays_natively(app, "amqp", "fast")
    assert not delays_natively(app, "amqp", "plain")
    assert not delays_natively(app, "amqp", "unknown")
    assert not delays_natively(app, "amqp", None)
    assert not delays_natively(app, "redis", "fast")
    assert not delays_natively(app_with(Queue("classic", TOPIC, routing_key="classic")), "amqp", "classic")


def test_the_note_says_where_retries_wait() -> None:
    mixed = app_with(quorum("fast", TOPIC), quorum("plain", Exchange("plain", type="direct")))

    assert native_delay_note(app_with(Queue("q")), "redis") == "the schedule (Redis)"
    assert native_delay_note(app_with(quorum("fast", TOPIC)), "amqp") == "RabbitMQ's native delay for fast"
    assert "those of other queues in the schedule (Redis)" in native_delay_note(mixed, "amqp")


@pytest.fixture
def channel() -> Any:
    """A channel of kombu's Redis transport that never connected."""
    channel = Channel.__new__(Channel)
    channel.global_keyprefix = "shop:"
    channel.sep, channel.priority_steps = "\x06\x16", [0, 3, 6, 9]
    return channel


@pytest.mark.parametrize(
    ("priority", "name"),
    [
        (0, "shop:q"),
        (2, "shop:q"),
        (3, "shop:q\x06\x163"),
        (6, "shop:q\x06\x166"),
        (9, "shop:q\x06\x169"),
        (255, "shop:q\x06\x169"),
    ],
)
def test_each_priority_has_its_list_under_the_brokers_prefix(channel: Any, priority: int, name: str) -> None:
    assert redis_list(channel, "q", priority) == name


def test_a_negative_priority_is_the_one_that_kombu_makes_of_it(channel: Any) -> None:
    kombus = channel._get_message_priority({"properties": {"priority": -1}}, reverse=False)

    assert redis_list(channel, "q", -1) == f"shop:{channel._q_for_pri('q', kombus)}"


@pytest.mark.parametrize("priority", [-1, 0, 2, 3, 6, 9, 255])
def test_the_configuration_alone_gives_the_same_name(channel: Any, priority: int) -> None:
    app = Celery("shop", broker="redis://")
    app.conf.broker_transport_options = {"global_keyprefix": "shop:"}

    assert redis_list_of(app, "q", priority) == redis_list(channel, "q", priority)


def test_other_steps_and_another_sign_between_are_respected() -> None:
    app = Celery("shop", broker="redis://")
    app.conf.broker_transport_options = {"priority_steps": [0, 5], "sep": ":"}

    assert [redis_list_of(app, "q", priority) for priority in (0, 4, 5, 9)] == ["q", "q", "q:5", "q:5"]


def test_kombu_still_names_lists_by_queue_and_priority() -> None:
    assert list(inspect.signature(Channel._q_for_pri).parameters) == ["self", "queue", "pri"]
    assert hasattr(Channel, "global_keyprefix")
    assert Channel.priority_steps == [0, 3, 6, 9]
    assert "_q_for_pri" in inspect.getsource(Channel._put)
    with Connection("redis://").channel.__self__ as connection:  # not connected
        assert connection.transport_cls == "redis"
