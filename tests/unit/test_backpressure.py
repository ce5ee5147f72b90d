"""Backpressure: the length of a queue is sampled, and a full one takes no more."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from celery import Celery
from celery._state import _task_stack

from celery_resilience import ResilientTask
from celery_resilience.backpressure import Backpressure
from celery_resilience.errors import ConfigurationError, QueueFullError
from celery_resilience.runtime import Runtime, use_runtime
from celery_resilience.sending import BODY, ENDED, STAGE
from celery_resilience.testing import FakeClock
from celery_resilience.transport.depth import queue_lengths, queue_of


def body(*args: Any) -> None: ...


class Broker:
    """Answers with the next length for every queue, the last one for ever; notes what it was asked, and when."""

    def __init__(self, clock: FakeClock, *lengths: int) -> None:
        self.clock = clock
        self.lengths = list(lengths)
        self.asked: list[tuple[set[str], float]] = []

    def __call__(self, queues: Sequence[str]) -> Mapping[str, int]:
        self.asked.append((set(queues), self.clock.monotonic()))
        length = self.lengths.pop(0) if len(self.lengths) > 1 else self.lengths[0]
        return dict.fromkeys(queues, length)


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


def test_the_broker_is_asked_once_a_second_for_all_queues_together(clock: FakeClock) -> None:
    broker = Broker(clock, 0)
    pressure = Backpressure(broker, clock)
    for _ in range(250):
        pressure.check("q", 5)
        pressure.check("r", 5)
        clock.move(0.01)

    assert [at for _, at in broker.asked] == pytest.approx([0, 1, 2], abs=0.02)
    assert [queues for queues, _ in broker.asked] == [{"q"}, {"q", "r"}, {"q", "r"}]


def test_a_queue_that_comes_up_within_the_second_passes_until_it_is_over(clock: FakeClock) -> None:
    pressure = Backpressure(Broker(clock, 9), clock)
    with pytest.raises(QueueFullError):
        pressure.check("q", 5)
    pressure.check("r", 5)
    clock.move(1)

    with pytest.raises(QueueFullError):
        pressure.check("r", 5)


def test_queues_that_are_known_from_the_start_are_asked_for_with_the_first(clock: FakeClock) -> None:
    broker = Broker(clock, 9)
    pressure = Backpressure(broker, clock, ["mail"])
    with pytest.raises(QueueFullError):
        pressure.check("q", 5)

    with pytest.raises(QueueFullError):
        pressure.check("mail", 5)
    assert [queues for queues, _ in broker.asked] == [{"q", "mail"}]


def test_a_queue_that_nobody_sends_to_any_more_is_forgotten(clock: FakeClock) -> None:
    broker = Broker(clock, 0)
    pressure = Backpressure(broker, clock, ["mail"])
    pressure.check("once", 5)
    clock.move(61)
    pressure.check("q", 5)

    assert broker.asked[-1][0] == {"q", "mail"}


def test_of_very_many_queues_those_not_asked_for_the_longest_come_first(clock: FakeClock) -> None:
    broker = Broker(clock, 0)
    pressure = Backpressure(broker, clock)
    for second in range(4):
        for number in range(250):
            pressure.check(f"q{number}", 5)
        clock.move(1 if second else 1.5)

    assert [len(queues) for queues, _ in broker.asked] == [1, 100, 100, 100]
    assert len(set().union(*(queues for queues, _ in broker.asked))) == 250


def test_what_the_broker_left_out_keeps_its_length_and_is_asked_for_first(clock: FakeClock) -> None:
    asked: list[list[str]] = []

    def ask(queues: Sequence[str]) -> Mapping[str, int]:
        asked.append(list(queues))
        return {queues[0]: 7}

    pressure = Backpressure(ask, clock, ["a", "b"])
    with pytest.raises(QueueFullError):
        pressure.check("a", 5)
    pressure.check("b", 5)
    clock.move(1)
    with pytest.raises(QueueFullError):
        pressure.check("b", 5)

    assert asked == [["a", "b"], ["b", "a"]]
    with pytest.raises(QueueFullError):
        pressure.check("a", 5)


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
    def ask(queues: Sequence[str]) -> Mapping[str, int]:
        raise OSError("gone")

    Backpressure(ask, clock).check("q", 1)

    assert "resilience-limit-unasked limit=length of queues error=gone" in caplog.text


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

    def with_settings(self, app: Celery, lengths: dict[str, int]) -> None:
        app.conf.resilience_max_queue_length = lengths

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

        assert [asked for asked, _ in broker.asked] == [{queue}]

    def test_nothing_is_sent_into_a_full_queue(self, app: Celery, clock: FakeClock) -> None:
        task = self.define(app, max_queue_length=5)
        self.asked(app, clock, 5)
        with pytest.raises(QueueFullError):
            task.apply_async((1,), queue="full")

        assert queue_lengths(app, ["full"]) == {"full": 0}

    def test_a_queue_may_have_a_length_for_all_its_tasks(self, app: Celery, clock: FakeClock) -> None:
        self.with_settings(app, {"mail": 5})
        broker = self.asked(app, clock, 5)
        task = self.define(app)
        with pytest.raises(QueueFullError, match="at most 5"):
            task.apply_async((1,), queue="mail")
        task.apply_async((1,), queue="other")

        assert len(broker.asked) == 1

    @pytest.mark.parametrize(("of_task", "of_queue", "limit"), [(3, 7, 3), (7, 3, 3)])
    def test_of_both_the_shorter_counts(
        self, app: Celery, clock: FakeClock, of_task: int, of_queue: int, limit: int
    ) -> None:
        self.with_settings(app, {"mail": of_queue})
        self.asked(app, clock, 5)
        with pytest.raises(QueueFullError, match=f"at most {limit}"):
            self.define(app, max_queue_length=of_task).apply_async((1,), queue="mail")

    def test_another_attempt_of_the_running_task_always_passes(self, app: Celery, clock: FakeClock) -> None:
        task = self.define(app, max_queue_length=5)
        self.asked(app, clock, 5)
        _task_stack.push(task)
        task.push_request(id="t1", called_directly=False, **{STAGE: BODY})
        try:
            task.apply_async((1,), task_id="t1")
            with pytest.raises(QueueFullError):
                task.apply_async((1,), task_id="t2")
            task.request.__dict__[STAGE] = ENDED
            task.apply_async((1,), task_id="t2")
        finally:
            task.pop_request()
            _task_stack.pop()

    def test_a_plain_call_of_a_task_is_no_exemption(self, app: Celery, clock: FakeClock) -> None:
        few = self.define(app, max_queue_length=5)
        self.asked(app, clock, 5)

        def fan() -> None:
            few.delay(1)

        app.task(fan, name="shop.fan", shared=False)

        with pytest.raises(QueueFullError):
            app.tasks["shop.fan"]()

    def test_celerys_own_tasks_always_pass(self, app: Celery, clock: FakeClock) -> None:
        self.with_settings(app, {"celery": 1})
        broker = self.asked(app, clock, 5)
        app.tasks["celery.backend_cleanup"].delay()

        assert broker.asked == []

    @pytest.mark.parametrize("lengths", [5, ["mail"], {"mail": 0}, {"mail": "5"}, {"mail": None}, {"": 5}, {3: 5}])
    def test_wrong_lengths_are_refused(self, app: Celery, lengths: Any) -> None:
        app.conf.resilience_max_queue_length = lengths
        with pytest.raises(ConfigurationError, match="resilience_max_queue_length"):
            Runtime(app)

    @pytest.mark.parametrize("breakers", ["smtp", {"mail": None}, {"mail": 3}, {"": "smtp"}, {"mail": ""}])
    def test_wrong_breakers_of_queues_are_refused(self, app: Celery, breakers: Any) -> None:
        app.conf.resilience_queue_breakers = breakers
        with pytest.raises(ConfigurationError, match="resilience_queue_breakers"):
            Runtime(app)

    def test_without_the_option_nobody_is_asked(self, app: Celery, clock: FakeClock) -> None:
        broker = self.asked(app, clock, 1_000_000)
        self.define(app).delay(1)

        assert broker.asked == []

    def test_a_queue_that_does_not_exist_holds_nothing(self, app: Celery) -> None:
        queue = queue_of(app, "shop.pay", {"queue": "unheard"}, (), {})

        assert queue == "unheard"
        assert queue_lengths(app, [queue]) == {"unheard": 0}

    def test_what_waits_is_counted(self, app: Celery) -> None:
        task = self.define(app)
        for n in range(3):
            task.apply_async((n,), queue="counted")

        assert queue_lengths(app, ["unheard", "counted"]) == {"unheard": 0, "counted": 3}
