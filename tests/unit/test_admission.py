"""Admission: gates are asked in order, and a refusal gives back whatever was taken before it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from celery_resilience import BreakerPolicy
from celery_resilience.admission import AGAIN_GROWTH_LIMIT, Admission
from celery_resilience.attempts import Attempts, slot
from celery_resilience.breaker import Breakers, CircuitBreaker
from celery_resilience.errors import BreakerOpenError, LimitReachedError
from celery_resilience.failure import Classifier
from celery_resilience.gates import Gates
from celery_resilience.limits import ADMITTED, Answer
from celery_resilience.runtime import Runtime
from celery_resilience.testing import FakeClock

POLICY = BreakerPolicy(consecutive_failures=1, open_seconds=10, successes_to_close=1, half_open_permits=1)


class FakeLimits:
    """Gives the answers it was told to give, and notes what it was asked."""

    def __init__(self) -> None:
        self.rate_answer = self.place_answer = ADMITTED
        self.budget_answers: dict[str, Answer] = {}
        self.asked: list[str] = []

    def rate(self, name: str, rate: Any) -> Answer:
        self.asked.append(f"rate {name}")
        return self.rate_answer

    def enter(self, name: str, places: int, token: str) -> Answer:
        self.asked.append(f"enter {name} {token}")
        return self.place_answer

    def spend(self, name: str, cost: float, successes: int) -> Answer:
        self.asked.append(f"spend {name} {cost:g} {successes}")
        return self.budget_answers.get(name, ADMITTED)

    def leave(self, name: str, token: str) -> None:
        self.asked.append(f"leave {name} {token}")


class House:
    """A runtime with breakers of this process and limits that do as they are told."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.limits = FakeLimits()
        self.successes: list[str] = []
        self.breakers = Breakers(
            None, self.clock, Classifier.default(), default=POLICY, policies={}, max_breakers=10
        )  # fmt: skip
        self.runtime = SimpleNamespace(
            is_eager=False,
            clock=self.clock,
            limits=self.limits,
            breaker=self.breakers.get,
            note_success=self.successes.append,
            take_successes=lambda name: 3,
        )

    def admission(self, attempts: Attempts | None = None, **options: Any) -> Admission:
        gates = Gates(task="pay", **options)
        return Admission(gates, cast(Runtime, self.runtime), attempts or Attempts(), "id-1")

    def opened(self, name: str) -> CircuitBreaker:
        breaker = self.breakers.get(name)
        with pytest.raises(ConnectionError), breaker:
            raise ConnectionError("down")
        return breaker


@pytest.fixture
def house() -> House:
    return House()


def test_gates_are_asked_in_order_and_left_at_the_end(house: House) -> None:
    admission = house.admission(breaker="a", rate="1/s", places=2)
    assert admission.enter((), {}) is None
    admission.succeeded()

    assert house.limits.asked == ["rate pay", "enter pay id-1", "leave pay id-1"]
    assert house.successes == ["a"]


def test_an_open_breaker_refuses_before_a_limit_is_asked(house: House) -> None:
    house.opened("b")
    refused = house.admission(breaker=["a", "b"], rate="1/s", places=2).enter((), {})

    assert refused is not None
    assert refused.by == "b"
    assert 5 < refused.delay <= 11
    assert isinstance(refused.error, BreakerOpenError)
    assert house.limits.asked == []


def test_a_refusal_gives_a_probe_back(house: House) -> None:
    house.opened("a")
    house.clock.move(60)
    house.limits.rate_answer = Answer(True, 5.0)
    assert house.admission(breaker="a", rate="1/s").enter((), {}) is not None
    house.limits.rate_answer = ADMITTED

    assert house.admission(breaker="a", rate="1/s").enter((), {}) is None  # the one probe is free


def test_a_function_that_raises_gives_a_probe_back_too(house: House) -> None:
    house.opened("a")
    house.clock.move(60)
    with pytest.raises(ZeroDivisionError):
        house.admission(breaker="a", rate=lambda: 1 / 0).enter((), {})

    assert house.admission(breaker="a").enter((), {}) is None


def test_a_slot_that_is_near_is_waited_for_in_place(house: House) -> None:
    house.limits.rate_answer = Answer(True, 0.04)

    assert house.admission(rate="1/s").enter((), {}) is None
    assert house.clock.slept == [0.04]


def test_a_slot_further_away_is_reserved(house: House) -> None:
    house.limits.rate_answer = Answer(True, 2.0)
    refused = house.admission(rate="1/s").enter((), {})

    assert refused is not None
    assert (refused.by, refused.delay, refused.reserved) == ("rate pay", 2.0, (slot("pay", house.clock.time() + 2.0),))
    assert isinstance(refused.error, LimitReachedError)


def test_a_reserved_slot_is_not_asked_for_again(house: House) -> None:
    attempts = Attempts().after_park("rate pay", (slot("pay", house.clock.time()),))

    assert house.admission(attempts, rate="1/s").enter((), {}) is None
    assert house.limits.asked == []


def test_a_slot_that_was_missed_is_asked_for_anew(house: House) -> None:
    attempts = Attempts().after_park("rate pay", (slot("pay", house.clock.time() - 5),))

    assert house.admission(attempts, rate="1/s").enter((), {}) is None
    assert house.limits.asked == ["rate pay"]


def test_a_slot_too_far_to_reserve_is_asked_for_again(house: House) -> None:
    house.limits.rate_answer = Answer(False, 1e6)
    refused = house.admission(rate="1/s").enter((), {})

    assert refused is not None
    assert (refused.delay, refused.reserved) == (1e6, ())


def test_a_full_bulkhead_keeps_the_slot_that_the_rate_gave(house: House) -> None:
    house.limits.place_answer = Answer(False, 30.0)
    refused = house.admission(rate="1/s", places=2).enter((), {})

    assert refused is not None
    assert (refused.by, refused.delay, refused.reserved) == ("bulkhead pay", 1.0, (slot("pay", house.clock.time()),))
    assert house.limits.asked == ["rate pay", "enter pay id-1"]  # what was not given is not given back


def test_a_breaker_that_opened_meanwhile_lets_the_slot_go(house: House) -> None:
    house.opened("a")
    attempts = Attempts().after_park("rate pay", (slot("pay", house.clock.time()),))
    refused = house.admission(attempts, breaker="a", rate="1/s").enter((), {})

    assert refused is not None
    assert refused.reserved == ()


@pytest.mark.parametrize("parks", [0, 3, 100])
def test_a_full_bulkhead_is_asked_less_and_less_often(house: House, parks: int) -> None:
    house.limits.place_answer = Answer(False, 1000.0)
    refused = house.admission(Attempts(parks=parks), places=2).enter((), {})

    assert refused is not None
    assert refused.delay == pytest.approx(min(AGAIN_GROWTH_LIMIT, 1.2**parks))


def test_a_full_bulkhead_is_asked_when_the_first_lease_ends(house: House) -> None:
    house.limits.place_answer = Answer(False, 0.2)
    refused = house.admission(places=2).enter((), {})

    assert refused is not None
    assert refused.delay == 0.2


def test_a_failure_counts_and_frees_the_place(house: House) -> None:
    admission = house.admission(breaker="a", places=2)
    assert admission.enter((), {}) is None
    admission.failed(Classifier.default().classify(ConnectionError("down")))

    assert house.breakers.get("a").snapshot().state == "open"
    assert house.limits.asked[-1] == "leave pay id-1"
    assert house.successes == []


@pytest.mark.parametrize("error", [BreakerOpenError("other", 1.0), LimitReachedError("rate x", 1.0)])
def test_a_refusal_met_in_the_body_is_no_failure_of_the_tasks_own_breaker(house: House, error: Exception) -> None:
    admission = house.admission(breaker="a")
    assert admission.enter((), {}) is None
    admission.failed(error)

    assert house.breakers.get("a").snapshot().state == "closed"


def test_without_a_store_limits_are_not_asked(house: House) -> None:
    house.runtime.limits = None

    assert house.admission(rate="1/s", places=2).enter((), {}) is None


class TestRetryBudget:
    """A retry is paid for when it is scheduled; who finds the line full pays before the next run."""

    def owing(self, house: House, *debts: str) -> Admission:
        return house.admission(Attempts(attempt=2, owed=debts), breaker="a", rate="1/s")

    def test_a_retry_takes_from_the_budget_of_each_breaker(self, house: House) -> None:
        admission = house.admission(breaker=["a", "b"])
        assert admission.enter((), {}) is None
        house.limits.budget_answers["b"] = Answer(True, 4.0)

        assert admission.spend(2.0) == (4.0, ())
        assert house.limits.asked == ["spend a 2 3", "spend b 2 3"]

    def test_what_a_full_line_did_not_take_is_owed(self, house: House) -> None:
        admission = house.admission(breaker=["a", "b"])
        assert admission.enter((), {}) is None
        house.limits.budget_answers["b"] = Answer(False, 0.1)
        wait, owed = admission.spend(2.0)

        assert owed == (slot("b", 2.0),)
        assert 30 <= wait <= 60

    def test_a_debt_is_paid_before_the_run_and_before_the_rate_is_asked(self, house: House) -> None:
        assert self.owing(house, slot("a", 2.0)).enter((), {}) is None
        assert house.limits.asked == ["spend a 2 3", "rate pay"]

    def test_a_turn_to_come_is_waited_for_and_paid(self, house: House) -> None:
        house.limits.budget_answers["a"] = Answer(True, 7.0)
        refused = self.owing(house, slot("a", 1.0)).enter((), {})

        assert refused is not None
        assert (refused.by, refused.delay, refused.owed) == ("retry budget", 7.0, ())

    def test_a_line_that_is_still_full_leaves_the_debt(self, house: House) -> None:
        house.limits.budget_answers["a"] = Answer(False, 7.0)
        refused = self.owing(house, slot("a", 1.0)).enter((), {})

        assert refused is not None
        assert refused.owed == (slot("a", 1.0),)
        assert refused.delay >= 30

    def test_a_breaker_that_refuses_leaves_the_debt_too(self, house: House) -> None:
        house.opened("a")
        refused = self.owing(house, slot("a", 1.0)).enter((), {})

        assert refused is not None
        assert (refused.by, refused.owed) == ("a", (slot("a", 1.0),))

    def test_a_deadline_before_the_turn_has_the_attempt_made_without_it(self, house: House) -> None:
        house.limits.budget_answers["a"] = Answer(False, 7.0)
        attempts = Attempts(attempt=2, owed=(slot("a", 1.0),), deadline_at=house.clock.time() + 20)

        assert house.admission(attempts, breaker="a").enter((), {}) is None
