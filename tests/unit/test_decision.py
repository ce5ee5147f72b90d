"""Decisions and delays are pure: failure, history, policy and a clock in, one value out."""

from __future__ import annotations

import logging
import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_resilience import FailureClass, RetryPolicy
from celery_resilience.decision import DeadLetter, DeadReason, History, Retry, backoff, decide, delay_for
from celery_resilience.policy import CLASS_DEFAULTS, GROUND
from celery_resilience.testing import FakeClock
from tests.support.failures import failure_of
from tests.unit.test_policy import policies

histories = st.builds(
    History,
    failed_attempts=st.integers(1, 1_000_000),
    previous_delay=st.none() | st.floats(0, 1e6),
    deadline_at=st.none(),
)
chances = st.floats(0, 1)
hints = st.floats(0, 1e9)


def delays(policy: RetryPolicy, chance: float = 1.0, attempts: int = 5) -> list[float]:
    """Give the delays after the first failures."""
    laid, clock = policy.over(GROUND), FakeClock(chance=chance)
    return [delay_for(failure_of(), History(failed_attempts=n), laid, clock) for n in range(1, attempts + 1)]


def test_exponential_growth_doubles_until_the_cap() -> None:
    assert delays(RetryPolicy(base_seconds=1, factor=2, cap_seconds=6, jitter="none")) == [1, 2, 4, 6, 6]


def test_linear_growth_adds_the_base() -> None:
    assert delays(RetryPolicy(strategy="linear", base_seconds=5, cap_seconds=18, jitter="none")) == [5, 10, 15, 18, 18]


def test_fixed_delays_stay() -> None:
    assert delays(RetryPolicy(strategy="fixed", base_seconds=7, jitter="none")) == [7] * 5


@pytest.mark.parametrize("jitter", ["full", "equal", "none"])
def test_immediate_means_the_floor(jitter: str) -> None:
    assert delays(RetryPolicy(strategy="immediate", jitter=jitter)) == [0.1] * 5


def test_a_custom_strategy_gets_attempt_and_failure() -> None:
    seen = []

    def mine(attempt: int, failure: object) -> float:
        seen.append((attempt, failure.failure_class))  # type: ignore[attr-defined]
        return 3.0 * attempt

    assert delays(RetryPolicy(strategy=mine, jitter="none"), attempts=2) == [3, 6]
    assert seen == [(1, FailureClass.NETWORK), (2, FailureClass.NETWORK)]


@pytest.mark.parametrize("answer", [float("nan"), -1, "x", None])
def test_a_custom_strategy_that_answers_nonsense_gives_way_to_exponential_growth(
    answer: object, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        given_delays = delays(RetryPolicy(strategy=lambda attempt, failure: answer, jitter="none"), attempts=3)  # type: ignore[arg-type,return-value]

    assert given_delays == [1, 2, 4]
    assert "resilience-strategy-failed" in caplog.text


def test_a_custom_strategy_that_raises_gives_way_too() -> None:
    def broken(attempt: int, failure: object) -> float:
        raise KeyError("oops")

    assert delays(RetryPolicy(strategy=broken, jitter="none"), attempts=3) == [1, 2, 4]


def test_a_custom_strategy_that_answers_for_ever_is_capped() -> None:
    assert delays(RetryPolicy(strategy=lambda *_: float("inf")), attempts=1) == [300]


@pytest.mark.parametrize(
    ("jitter", "chance", "expected"),
    [
        ("none", 0.0, 8),
        ("full", 0.0, 0.1),
        ("full", 0.5, 4),
        ("full", 1.0, 8),
        ("equal", 0.0, 4),
        ("equal", 1.0, 8),
    ],
)
def test_jitter_spreads_between_its_bounds(jitter: str, chance: float, expected: float) -> None:
    policy = RetryPolicy(strategy="fixed", base_seconds=8, jitter=jitter)  # type: ignore[arg-type]

    assert delays(policy, chance, attempts=1) == [expected]


def test_decorrelated_jitter_grows_from_the_previous_delay() -> None:
    policy = RetryPolicy(base_seconds=2, jitter="decorrelated").over(GROUND)

    def after(previous: float | None, chance: float) -> float:
        return delay_for(
            failure_of(), History(failed_attempts=2, previous_delay=previous), policy, FakeClock(chance=chance)
        )

    assert after(None, 1.0) == 6
    assert after(10, 1.0) == 30
    assert after(10, 0.0) == 2
    assert after(1000, 1.0) == 300
    assert after(0.0, 1.0) == 2


@given(policies(), histories, chances, st.none() | hints)
def test_a_delay_lies_between_floor_and_cap_whatever_happens(
    policy: RetryPolicy, history: History, chance: float, hint: float | None
) -> None:
    laid = policy.over(GROUND)
    delay = delay_for(failure_of(retry_after=hint), history, laid, FakeClock(chance=chance))

    assert not math.isnan(delay)
    assert laid.floor_seconds <= delay <= laid.cap_seconds


@given(hints, chances)
def test_a_hint_is_never_undercut_except_by_the_cap(hint: float, chance: float) -> None:
    policy = CLASS_DEFAULTS[FailureClass.RATE_LIMITED]
    delay = delay_for(failure_of(retry_after=hint), History(failed_attempts=1), policy, FakeClock(chance=chance))

    assert delay >= min(hint, policy.cap_seconds)
    assert delay <= max(policy.floor_seconds, 1.1 * hint)


def test_a_hint_of_a_year_is_capped_and_one_of_nothing_floored() -> None:
    policy = RetryPolicy(jitter="none").over(GROUND)
    clock = FakeClock()

    assert delay_for(failure_of(retry_after=366 * 86400), History(failed_attempts=1), policy, clock) == 300
    assert delay_for(failure_of(retry_after=0), History(failed_attempts=1), policy, clock) == 0.1


def test_siblings_with_one_hint_do_not_come_back_in_one_instant() -> None:
    given_delays = {
        delay_for(failure_of(retry_after=10), History(failed_attempts=1), GROUND, FakeClock(chance=n / 10))
        for n in range(11)
    }

    assert len(given_delays) == 11


@given(policies(), st.integers(1, 10_000))
def test_without_jitter_delays_never_shrink(policy: RetryPolicy, attempt: int) -> None:
    laid = RetryPolicy(jitter="none").over(policy.over(GROUND))
    now = delay_for(failure_of(), History(failed_attempts=attempt), laid, FakeClock())
    then = delay_for(failure_of(), History(failed_attempts=attempt + 1), laid, FakeClock())

    assert now <= then


def test_a_base_of_zero_never_grows() -> None:
    policy = RetryPolicy(base_seconds=0, factor=1000, jitter="none").over(GROUND)

    assert delay_for(failure_of(), History(failed_attempts=5000), policy, FakeClock()) == 0.1


def test_the_millionth_attempt_is_decided_at_once() -> None:
    policy = RetryPolicy(max_attempts=1_000_000, factor=1000).over(GROUND)
    began = time.perf_counter()
    backoff(failure_of(), 999_999, policy)

    assert time.perf_counter() - began < 0.05


@pytest.mark.parametrize(
    ("failed", "limit", "expected"),
    [
        (1, 5, Retry),
        (4, 5, Retry),
        (5, 5, DeadReason.EXHAUSTED),
        (6, 5, DeadReason.EXHAUSTED),
        (1, 1, DeadReason.PERMANENT),
    ],
)
def test_attempts_end_at_the_limit(failed: int, limit: int, expected: object) -> None:
    policy = RetryPolicy(max_attempts=limit).over(GROUND)
    decision = decide(failure_of(), History(failed_attempts=failed), policy, FakeClock())

    assert isinstance(decision, Retry) if expected is Retry else decision == DeadLetter(expected)  # type: ignore[arg-type]


def test_no_attempt_is_planned_past_the_deadline() -> None:
    clock = FakeClock()
    policy = RetryPolicy(strategy="fixed", base_seconds=10, jitter="none").over(GROUND)

    def decide_with(deadline_in: float) -> object:
        return decide(failure_of(), History(failed_attempts=1, deadline_at=clock.time() + deadline_in), policy, clock)

    assert decide_with(10) == Retry(10)
    assert decide_with(9.9) == DeadLetter(DeadReason.DEADLINE)


def test_a_hint_beyond_the_deadline_ends_the_task() -> None:
    clock = FakeClock()
    history = History(failed_attempts=1, deadline_at=clock.time() + 60)

    assert decide(failure_of(retry_after=61), history, GROUND, clock) == DeadLetter(DeadReason.DEADLINE)


@given(st.sampled_from(sorted(CLASS_DEFAULTS)), st.integers(1, 10))
def test_deciding_twice_gives_the_same_answer(kind: FailureClass, failed: int) -> None:
    history = History(failed_attempts=failed)
    first, second = (decide(failure_of(kind), history, CLASS_DEFAULTS[kind], FakeClock()) for _ in range(2))

    assert first == second
