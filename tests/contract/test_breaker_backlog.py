"""What a process counts while Redis is away arrives as it happened: in its order, at its time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_resilience import BreakerPolicy
from celery_resilience.breaker import CircuitBreaker
from celery_resilience.breaker.backlog import MAX_RUNS, Backlog
from celery_resilience.breaker.values import Report, Run
from celery_resilience.errors import RetryableError
from celery_resilience.testing import EmbeddedRedis, FakeClock
from tests.support.breakers import UnreliableStore, fail, move_with, succeed

COOLDOWN = 5.0
Make = Callable[..., CircuitBreaker]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(resilience_redis: EmbeddedRedis, clock: FakeClock) -> Iterator[UnreliableStore]:
    store = UnreliableStore(resilience_redis.url, timeout_seconds=2, clock=clock)
    yield store
    store.close()


@pytest.fixture
def make(store: UnreliableStore, clock: FakeClock) -> Make:
    def build(**policy: Any) -> CircuitBreaker:
        return move_with(CircuitBreaker("pay", BreakerPolicy(**policy), store=store, clock=clock))

    return build


def back(breaker: CircuitBreaker, store: UnreliableStore, clock: FakeClock) -> None:
    """Let Redis answer again, and the process notice."""
    store.lost = ""
    clock.move(COOLDOWN + 0.1)
    succeed(breaker)
    breaker.flush()


def test_single_failures_among_successes_are_no_row(make: Make, store: UnreliableStore, clock: FakeClock) -> None:
    breaker = make(failure_rate=None, consecutive_failures=5)
    succeed(breaker)
    store.lost = "before"
    for _ in range(6):
        fail(breaker)
        succeed(breaker, 20)
    fail(breaker, 2)
    store.lost = ""
    clock.move(COOLDOWN + 0.1)
    fail(breaker, 2)

    assert (breaker.snapshot().state, breaker.snapshot().consecutive_failures) == ("closed", 4)
    assert fail(breaker, 3) == 1  # the fifth in a row


def test_a_window_of_calls_holds_the_last_ones(make: Make, store: UnreliableStore, clock: FakeClock) -> None:
    breaker = make(window_calls=10, minimum_calls=10, failure_rate=0.5)
    succeed(breaker)
    store.lost = "before"
    for _ in range(5):
        fail(breaker)
        succeed(breaker, 40)
    back(breaker, store, clock)

    assert (breaker.snapshot().state, breaker.snapshot().calls, breaker.snapshot().failures) == ("closed", 10, 0)


def test_calls_count_at_their_own_time(make: Make, store: UnreliableStore, clock: FakeClock) -> None:
    breaker = make(window_seconds=30, minimum_calls=100)
    succeed(breaker)
    breaker.flush()
    store.lost = "before"
    fail(breaker, 7)
    clock.move(20)
    fail(breaker, 3)
    clock.move(10)
    back(breaker, store, clock)
    assert (breaker.snapshot().calls, breaker.snapshot().failures) == (4, 3)  # seven are too old

    clock.move(14)
    assert breaker.snapshot().failures == 0  # 29 s after they happened, not after they arrived


def test_a_row_broken_during_the_outage_stays_broken_however_long_ago(
    make: Make, store: UnreliableStore, clock: FakeClock
) -> None:
    breaker = make(window_seconds=10, failure_rate=None, consecutive_failures=3)
    fail(breaker, 2)
    store.lost = "before"
    succeed(breaker, 5)
    breaker.flush()
    clock.move(60)
    store.lost = ""
    fail(breaker)

    assert (breaker.snapshot().state, breaker.snapshot().consecutive_failures) == ("closed", 1)


def test_a_real_row_of_failures_trips_when_it_arrives(make: Make, store: UnreliableStore, clock: FakeClock) -> None:
    breaker = make(failure_rate=None, consecutive_failures=5)
    succeed(breaker)
    store.lost = "before"
    fail(breaker, 4)
    store.lost = ""
    clock.move(COOLDOWN + 0.1)
    fail(breaker)

    assert (breaker.snapshot().state, breaker.snapshot().reason) == ("open", "5 failures in a row")


def test_a_wait_that_was_asked_for_grows_shorter(make: Make, store: UnreliableStore, clock: FakeClock) -> None:
    breaker = make(failure_rate=None, consecutive_failures=2, open_seconds=1)
    succeed(breaker)
    store.lost = "before"
    fail(breaker, 2, RetryableError("wait", retry_after=60))
    store.lost = ""
    clock.move(20)
    succeed(breaker)

    assert breaker.snapshot().refuses_for_seconds == pytest.approx(40, abs=0.1)


class TestRuns:
    def test_successes_and_the_failures_after_them_are_one_run(self) -> None:
        backlog = Backlog(7)
        for report in (Report(0, 3), Report(0, 2, 1), Report(0, failures=1), Report(0, slow_failures=1)):
            backlog.add(report, 1.0, 30.0)
        backlog.add(Report(0, successes=1), 1.0, 30.0)
        backlog.add(Report(), 1.0, 30.0)

        assert backlog.runs(1.5) == (Run(500, 5, 1, 1, 1), Run(500, 1, 0, 0, 0))

    def test_calls_of_another_time_are_a_run_of_their_own(self) -> None:
        backlog = Backlog()
        backlog.add(Report(0, 1), 1.0, 30.0)
        backlog.add(Report(0, 1), 2.0, 30.0)

        assert [run.age_ms for run in backlog.runs(3.0)] == [2000, 1000]

    def test_of_too_many_the_oldest_are_forgotten(self) -> None:
        backlog = Backlog()
        for n in range(MAX_RUNS + 5):
            backlog.add(Report(0, 1, failures=1), float(n), 30.0)

        assert len(backlog.runs(2000.0)) == MAX_RUNS
        assert backlog.runs(2000.0)[0].age_ms == 1_995_000
