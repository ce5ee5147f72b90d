"""Backpressure: the length of a queue is sampled, and a full one takes no more."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from celery import Celery

from celery_resilience import ResilientTask
from celery_resilience.backpressure import Backpressure
from celery_resilience.errors import QueueFullError
from celery_resilience.runtime import Runtime, use_runtime
from celery_resilience.testing import FakeClock
from celery_resilience.transport.depth import queue_length, queue_of


def body(*args: Any) -> None: ...


class Broker:
    """Answers with the next length, the last one for ever; notes when it was asked."""

    def __init__(self, clock: FakeClock, *lengths: int) -> None:
        self.clock = clock
        self.lengths = list(lengths)
        self.asked: list[tuple[str, float]] = []

    def __call__(self, queue: str) -> int:
        self.asked.append((queue, self.clock.monotonic()))
        return self.lengths.pop(0) if len(self.lengths) > 1 else self.lengths[0]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_a_queue_with_room_lets_pass(clock: FakeClock) -> None:
    Backpressure(Broker(clock, 4), clock).check("q", 5)


def test_a_full_queue_says_how_full_it_is(clock: FakeClock) -> None:
    with pytest.raises(QueueFullError, match="'q' holds 5 messages, at most 5") as caught:
        Backpressure(Broker(clock, 5), clock).check("q", 5)

    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.queue, error.length, error.limit) == ("q", 5, 5)


def test_the_broker_is_asked_once_a_second_for_each_queue(clock: FakeClock) -> None:
    broker = Broker(clock, 0)
    pressure = Backpressure(broker, clock)
    for _ in range(250):
        pressure.check("q", 5)
        pressure.check("r", 5)
        clock.move(0.01)

    assert [at for queue, at in broker.asked if queue == "q"] == pytest.approx([0, 1, 2], abs=0.02)
    assert len(broker.asked) == 6


def test_it_waits_for_room_as_long_as_it_may(clock: FakeClock) -> None:
    broker = Broker(clock, 9, 9, 4)
    Backpressure(broker, clock).check("q", 5, wait_seconds=10)

    assert [at for _, at in broker.asked] == pytest.approx([0, 1, 2])


def test_it_gives_up_when_its_time_is_over(clock: FakeClock) -> None:
    broker = Broker(clock, 9)
    with pytest.raises(QueueFullError):
        Backpressure(broker, clock).check("q", 5, wait_seconds=2.5)

    assert clock.monotonic() == pytest.approx(2.5, abs=0.05)
    assert len(broker.asked) == 3


def test_a_broker_that_cannot_be_asked_lets_pass(clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    def ask(queue: str) -> int:
        raise OSError("gone")

    Backpressure(ask, clock).check("q", 1)

    assert "resilience-limit-unasked limit=length of q error=gone" in caplog.text


class TestInAnApp:
    @pytest.fixture
    def app(self, clock: FakeClock) -> Celery:
        app = Celery("shop", broker="memory://", task_cls=ResilientTask, set_as_current=False)
        app.conf.task_routes = {"shop.routed": {"queue": "routes"}}
        use_runtime(app, Runtime(app, clock))
        return app

    def define(self, app: Any, name: str = "shop.pay", **options: Any) -> Any:
        app.task(body, name=name, shared=False, **options)
        return app.tasks[name]

    def asked(self, app: Celery, clock: FakeClock, length: int = 0) -> Broker:
        broker = Broker(clock, length)
        runtime = Runtime(app, clock)
        runtime.__dict__["backpressure"] = Backpressure(broker, clock)
        use_runtime(app, runtime)
        return broker

    @pytest.mark.parametrize(
        ("name", "options", "call", "queue"),
        [
            ("shop.pay", {}, {}, "celery"),
            ("shop.routed", {}, {}, "routes"),
            ("shop.pay", {"queue": "mail"}, {}, "mail"),
            ("shop.pay", {"queue": "mail"}, {"queue": "fast"}, "fast"),
        ],
    )
    @pytest.mark.filterwarnings("ignore:\\s*The .queue. task attribute")
    def test_the_queue_that_counts_is_the_one_it_goes_to(
        self, app: Celery, clock: FakeClock, name: str, options: Any, call: Any, queue: str
    ) -> None:
        broker = self.asked(app, clock)
        self.define(app, name, max_queue_length=5, **options).apply_async((1,), **call)

        assert [asked for asked, _ in broker.asked] == [queue]

    def test_nothing_is_sent_into_a_full_queue(self, app: Celery, clock: FakeClock) -> None:
        task = self.define(app, max_queue_length=5)
        self.asked(app, clock, 5)
        with pytest.raises(QueueFullError):
            task.apply_async((1,), queue="full")

        assert queue_length(app, "full") == 0

    def test_without_the_option_nobody_is_asked(self, app: Celery, clock: FakeClock) -> None:
        broker = self.asked(app, clock, 1_000_000)
        self.define(app).delay(1)

        assert broker.asked == []

    def test_a_queue_that_does_not_exist_holds_nothing(self, app: Celery) -> None:
        assert queue_length(app, queue_of(app, "shop.pay", {"queue": "unheard"}, (), {}) or "") == 0

    def test_what_waits_is_counted(self, app: Celery) -> None:
        task = self.define(app)
        for n in range(3):
            task.apply_async((n,), queue="counted")

        assert queue_length(app, "counted") == 3
