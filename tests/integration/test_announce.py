"""Transitions of breakers reach Celery's event stream, and a broker that is away never holds a caller up."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

from celery_resilience import ResilientTask, runtime_of
from celery_resilience.clock import SYSTEM_CLOCK
from celery_resilience.testing import EmbeddedRedis, embedded_redis
from tests.support.rabbitmq import RabbitMQ
from tests.support.waiting import wait_until


@pytest.fixture
def broker() -> Iterator[EmbeddedRedis]:
    """A broker apart from the store."""
    with embedded_redis(url="") as server:
        yield server


def new_app(broker_url: str, store: EmbeddedRedis) -> Any:
    app = Celery("told", broker=broker_url, task_cls=ResilientTask, set_as_current=False)
    app.conf.resilience_redis_url = store.url
    return app


def seen_events(app: Any) -> list[Any]:
    """Force a breaker open and closed until somebody who listens has heard of it."""
    heard: list[Any] = []

    def listen() -> None:
        with app.connection_for_read() as connection:
            receiver = app.events.Receiver(connection)

            def hear(event: Any) -> None:
                heard.append(event)
                receiver.should_stop = True

            receiver.handlers["resilience-breaker-forced"] = hear
            with contextlib.suppress(TimeoutError):
                receiver.capture(limit=None, timeout=10, wakeup=False)

    listener = threading.Thread(target=listen)
    listener.start()
    breaker = runtime_of(app).breaker("payments")

    def is_heard() -> bool:
        breaker.force_open(who="ann", why="a drill")
        return bool(heard)

    wait_until(is_heard, 10, "an event")
    listener.join()
    return heard


def test_a_transition_is_an_event_of_celery(broker: EmbeddedRedis, redis_server: EmbeddedRedis) -> None:
    event = seen_events(new_app(broker.url, redis_server))[0]

    assert (event["type"], event["breaker"], event["who"]) == ("resilience-breaker-forced", "payments", "ann")
    assert event["to_state"] == "forced open"


def test_it_is_one_on_rabbitmq_too(rabbitmq: RabbitMQ, redis_server: EmbeddedRedis) -> None:
    assert seen_events(new_app(rabbitmq.url, redis_server))[0]["breaker"] == "payments"


def took(app: Any) -> float:
    breaker = runtime_of(app).breaker("payments")
    breaker.snapshot()  # connects to the store
    began = SYSTEM_CLOCK.monotonic()
    breaker.force_open(who="ann", why="a drill")
    return SYSTEM_CLOCK.monotonic() - began


def test_a_broker_that_is_down_costs_a_moment(redis_server: EmbeddedRedis) -> None:
    assert took(new_app("redis://127.0.0.1:1/0", redis_server)) < 0.25


def test_a_broker_that_hangs_costs_a_moment(broker: EmbeddedRedis, redis_server: EmbeddedRedis) -> None:
    broker.pause()
    try:
        assert took(new_app(broker.url, redis_server)) < 0.25
    finally:
        broker.resume()
