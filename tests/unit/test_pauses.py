"""What a worker makes of the pauses it knows: which queues it switches, and which messages it parks."""

from __future__ import annotations

import json
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_resilience.attempts import HEADER, Attempts, read_attempts
from celery_resilience.errors import ConfigurationError, StoreUnavailableError, TooManyPausesError
from celery_resilience.pauses import MAX_NAME, Pauses, check
from celery_resilience.settings import Settings
from celery_resilience.testing import FakeClock
from celery_resilience.transport.envelope import hand_over
from celery_resilience.worker.pause import PARK_SECONDS, PauseStep, park_if_paused

NOW = 1_800_000_000.0


class StoreInMemory:
    """Answers the two scripts from a dict."""

    def __init__(self, clock: FakeClock) -> None:
        self.clock = clock
        self.fields: dict[str, str] = {}
        self.is_away = False

    def key(self, *parts: str) -> str:
        return ":".join(parts)

    def run(self, script: str, keys: Any, args: Any = ()) -> Any:
        if self.is_away:
            raise StoreUnavailableError("away")
        assert script == "pause_list"
        pairs = [text for pair in self.fields.items() for text in pair]
        return [int(self.clock.time() * 1000), *(text.encode() for text in pairs)]

    def set(self, field: str, until: float | None = None) -> None:
        self.fields[field] = json.dumps({"who": "ann", "why": "repair", "at": self.clock.time(), "until": until})


class ScheduleInMemory:
    def __init__(self) -> None:
        self.parked: list[Any] = []
        self.woken: list[str] = []
        self.is_away = False

    def add_park(self, *args: Any) -> bool:
        if self.is_away:
            raise StoreUnavailableError("away")
        self.parked.append(args)
        return True

    def wake(self, waits_for: str) -> int:
        self.woken.append(waits_for)
        return 0


class ConsumerInMemory:
    """A consumer of two queues, whose event loop runs when it is told to."""

    def __init__(self) -> None:
        self.consumed = {"mail": 1, "bulk": 1}
        queues = SimpleNamespace(consume_from=self.consumed)
        self.app: Any = SimpleNamespace(amqp=SimpleNamespace(queues=queues))
        self.task_consumer: Any = object()
        self.soon: list[Any] = []

    def call_soon(self, function: Any, *args: Any) -> None:
        self.soon.append(lambda: function(*args))

    def turn(self) -> None:
        while self.soon:
            self.soon.pop(0)()

    def cancel_task_queue(self, queue: str) -> None:
        del self.consumed[queue]

    def add_task_queue(self, queue: str) -> None:
        self.consumed[queue] = 1


class House:
    """A step with everything around it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = FakeClock(NOW)
        self.store = StoreInMemory(self.clock)
        self.schedule = ScheduleInMemory()
        self.pauses = Pauses(self.store, self.schedule)  # type: ignore[arg-type]
        self.runtime: Any = SimpleNamespace(
            pauses=self.pauses,
            schedule=self.schedule,
            clock=self.clock,
            app=Celery("shop", broker="memory://"),
            settings=Settings(),
        )
        self.consumer = ConsumerInMemory()
        self.step = PauseStep(self.consumer)
        monkeypatch.setattr("celery_resilience.worker.pause.runtime_of", lambda app: self.runtime)
        monkeypatch.setattr("celery_resilience.worker.duty.Duty.start", lambda duty: None)

    def start(self) -> None:
        self.step.start(self.consumer)

    def look(self) -> float:
        pause = self.step._look(self.consumer, self.pauses, self.runtime)
        self.consumer.turn()
        return pause

    def park(self, **headers: Any) -> bool:
        headers = {"id": "1", "task": "shop.charge", "retries": 0, **headers}
        message: Any = SimpleNamespace(
            body=b"[]",
            content_type="application/json",
            content_encoding="utf-8",
            headers=headers,
            properties={"delivery_tag": "tag-1"},
            delivery_info={"exchange": "", "routing_key": "mail"},
        )
        hand_over(message)
        self.pauses.refresh()
        return park_if_paused(message, "shop.charge", self.runtime)


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> House:
    return House(monkeypatch)


class TestQueues:
    def test_a_worker_does_not_begin_with_a_paused_queue(self, house: House) -> None:
        house.store.set("queue:mail")
        house.start()

        assert set(house.consumer.consumed) == {"bulk"}

    def test_a_pause_and_a_resume_are_applied_by_the_event_loop(self, house: House) -> None:
        house.start()
        house.store.set("queue:mail")
        house.step._look(house.consumer, house.pauses, house.runtime)
        before = set(house.consumer.consumed)
        house.consumer.turn()
        paused = set(house.consumer.consumed)
        house.store.fields.clear()
        house.look()

        assert before == {"mail", "bulk"}
        assert paused == {"bulk"}
        assert set(house.consumer.consumed) == {"mail", "bulk"}

    def test_a_queue_that_this_worker_does_not_consume_is_ignored(self, house: House) -> None:
        house.start()
        house.store.set("queue:elsewhere")
        house.look()
        house.store.fields.clear()
        house.look()

        assert set(house.consumer.consumed) == {"mail", "bulk"}

    def test_a_queue_that_somebody_adds_while_it_is_paused_is_stopped_again(self, house: House) -> None:
        house.store.set("queue:mail")
        house.start()
        house.consumer.add_task_queue("mail")
        house.look()

        assert set(house.consumer.consumed) == {"bulk"}

    def test_while_redis_is_away_nothing_changes_but_the_end_of_a_pause(self, house: House) -> None:
        house.store.set("queue:mail")
        house.store.set("queue:bulk", until=NOW + 60)
        house.start()
        house.store.is_away = True
        with pytest.raises(StoreUnavailableError):
            house.look()
        during = set(house.consumer.consumed)
        house.clock.move(61)
        with pytest.raises(StoreUnavailableError):
            house.look()
        house.consumer.turn()

        assert during == set()
        assert set(house.consumer.consumed) == {"bulk"}

    def test_what_was_asked_for_before_the_worker_stopped_is_not_done_after(self, house: House) -> None:
        house.start()
        house.store.set("queue:mail")
        house.step._look(house.consumer, house.pauses, house.runtime)
        house.step.stop(house.consumer)
        house.consumer.turn()

        assert set(house.consumer.consumed) == {"mail", "bulk"}

    def test_after_a_reconnect_it_is_applied_again(self, house: House) -> None:
        house.store.set("queue:mail")
        house.start()
        house.step.stop(house.consumer)
        house.consumer.consumed["mail"] = 1
        house.store.is_away = True
        house.start()

        assert set(house.consumer.consumed) == {"bulk"}

    def test_without_redis_there_is_nothing_to_do(self, house: House) -> None:
        house.runtime.pauses = None
        house.start()
        house.step.stop(house.consumer)

        assert set(house.consumer.consumed) == {"mail", "bulk"}

    def test_it_looks_about_every_two_seconds(self, house: House) -> None:
        house.start()

        assert 1.5 < house.look() <= 2


class TestTasks:
    def test_a_message_of_a_paused_task_is_parked_with_the_same_attempt(self, house: House) -> None:
        house.store.set("task:shop.charge")
        before = Attempts(task_id="1", attempt=3, parks=1, lineage="line", queue="origin", reserved=("a",))
        parked = house.park(resilience=before.to_header(), eta="2027-01-15T08:00:30+00:00")
        envelope, queue, lineage, number, delay, waits_for = house.schedule.parked[0]
        after = read_attempts(envelope.headers[HEADER])

        assert parked
        assert (after.attempt, after.parks, after.reserved, after.waits_for) == (3, 2, (), ("pause:task:shop.charge",))
        assert (queue, lineage, number, waits_for) == ("origin", "line", before.step + 2, "pause:task:shop.charge")
        assert PARK_SECONDS < delay <= PARK_SECONDS + 1
        assert (envelope.body, envelope.headers["retries"]) == (b"[]", 0)
        assert envelope.headers["eta"] == "2027-01-15T08:00:30+00:00"

    def test_the_first_message_of_a_line_gives_it_its_name_and_queue(self, house: House) -> None:
        house.store.set("task:shop.charge")
        house.park()
        envelope, queue, lineage, number, *_ = house.schedule.parked[0]
        after = read_attempts(envelope.headers[HEADER])

        assert (queue, lineage, number) == (after.queue, after.lineage, 2) == ("mail", "tag-1", 2)

    def test_other_tasks_and_queues_of_that_name_are_let_pass(self, house: House) -> None:
        house.store.set("task:shop.refund")
        house.store.set("queue:shop.charge")

        assert not house.park()

    def test_it_waits_no_longer_than_the_pause_or_the_deadline(self, house: House) -> None:
        house.store.set("task:shop.charge", until=NOW + 90)
        house.park()
        house.park(resilience=Attempts(task_id="1", deadline_at=NOW + 30).to_header())
        delays = [parked[4] for parked in house.schedule.parked]

        assert 90 < delays[0] <= 91
        assert 30 < delays[1] <= 31

    def test_what_is_past_its_deadline_is_let_pass_to_its_end(self, house: House) -> None:
        house.store.set("task:shop.charge")

        assert not house.park(resilience=Attempts(task_id="1", deadline_at=NOW - 1).to_header())

    def test_what_cannot_be_stored_is_run(self, house: House, caplog: pytest.LogCaptureFixture) -> None:
        house.store.set("task:shop.charge")
        house.schedule.is_away = True

        assert not house.park()
        assert "resilience-pause-passed task_id=1 task=shop.charge" in caplog.text

    def test_a_pause_with_an_end_ends_without_redis(self, house: House) -> None:
        house.store.set("task:shop.charge", until=NOW + 5)
        house.pauses.refresh()
        during = house.pauses.known("task", "shop.charge")
        house.clock.move(5)

        assert during is not None
        assert house.pauses.known("task", "shop.charge") is None

    def test_what_was_parked_on_old_knowledge_is_woken_at_two_looks_after_the_resume(self, house: House) -> None:
        house.start()
        house.store.set("task:shop.charge")
        house.look()
        house.store.fields.clear()
        for _ in range(4):
            house.look()

        assert house.schedule.woken == ["pause:task:shop.charge"] * 2

    def test_one_that_is_paused_again_is_not_woken(self, house: House) -> None:
        house.start()
        house.store.set("task:shop.charge")
        house.look()
        house.store.fields.clear()
        house.look()
        house.store.set("task:shop.charge")
        house.look()

        assert house.schedule.woken == ["pause:task:shop.charge"]


@pytest.mark.parametrize(
    ("kind", "name", "seconds"),
    [("planet", "mail", None), ("queue", " ", None), ("task", "x" * (MAX_NAME + 1), None), ("queue", "mail", 0)],
)
def test_what_cannot_be_paused_is_refused(kind: str, name: str, seconds: float | None) -> None:
    with pytest.raises(ConfigurationError):
        check(kind, name, seconds)


def test_the_error_of_too_many_travels_between_processes() -> None:
    assert str(pickle.loads(pickle.dumps(TooManyPausesError(7)))) == str(TooManyPausesError(7))
