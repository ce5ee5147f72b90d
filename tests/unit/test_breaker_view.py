"""What a process believes about a breaker: how long, how near to the threshold, and in which order."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from celery_resilience.breaker.local import LocalMachine
from celery_resilience.breaker.values import Reply, Report
from celery_resilience.breaker.view import STALENESS_SECONDS, Era, View, pressure, view_of
from celery_resilience.breaker_policy import BreakerPolicy
from celery_resilience.testing import FakeClock

MACHINE = LocalMachine("pay", BreakerPolicy(), FakeClock())


def reply(**changes: Any) -> Reply:
    known: dict[str, Any] = {
        "state": "closed", "generation": 7, "now_ms": 1_000_000, "until_ms": 0, "calls": 0, "failures": 0, "slow": 0,
        "consecutive": 0, "mode": "", "mode_until_ms": 0, "ramp_ms": 0,
    }  # fmt: skip
    return Reply(**{**known, **changes})


def view(policy: BreakerPolicy | None = None, **changes: Any) -> View:
    return view_of(reply(**changes), Era(MACHINE, 7), policy or BreakerPolicy(), 100.0)


def test_a_calm_view_serves_for_a_quarter_second() -> None:
    assert view(calls=1000).fast_until == 100 + STALENESS_SECONDS


def test_it_serves_the_shorter_the_nearer_the_threshold() -> None:
    policy = BreakerPolicy(minimum_calls=10, failure_rate=0.5)
    served = [view(policy, failures=n, calls=n).fast_until - 100 for n in range(4)]

    assert served[:3] == pytest.approx([0.25, 0.15, 0.05])
    assert served[3] < 0


@pytest.mark.parametrize(
    ("policy", "counts", "expected"),
    [
        (BreakerPolicy(minimum_calls=10), {"failures": 4, "calls": 8}, 0.8),
        (BreakerPolicy(minimum_calls=10), {"failures": 5, "calls": 100}, 0.1),
        (BreakerPolicy(failure_rate=None, consecutive_failures=4), {"consecutive": 3}, 0.75),
        (BreakerPolicy(slow_call_seconds=1, slow_call_rate=0.5), {"slow": 4, "calls": 20}, 0.4),
    ],
)
def test_pressure_says_how_near_it_is(policy: BreakerPolicy, counts: dict[str, int], expected: float) -> None:
    assert pressure(reply(**counts), policy) == pytest.approx(expected)


def test_an_open_view_ends_with_the_open_time() -> None:
    assert view(state="open", until_ms=1_000_100).fresh_until == pytest.approx(100.1)
    assert view(state="open", until_ms=1_060_000).fresh_until == pytest.approx(100.25)
    assert view(state="open", until_ms=1_060_000).retry_at == pytest.approx(160)


def test_a_denied_probe_is_not_asked_for_again_at_once() -> None:
    assert view(state="half-open", wait_ms=5000).fresh_until == pytest.approx(100.1)
    assert view(state="half-open", wait_ms=0).fresh_until < 0


def test_of_two_replies_that_overtook_each_other_the_older_one_is_no_news() -> None:
    seen = view(now_ms=1_000_000, generation=7)

    assert seen.is_older_than(reply(now_ms=1_000_001))
    assert not seen.is_older_than(reply(now_ms=999_999))
    assert not seen.is_older_than(reply(generation=6))
    assert seen.is_older_than(reply(now_ms=900_000))  # another server, or its clock was set


def test_counts_of_many_threads_are_all_taken_once() -> None:
    era = Era(MACHINE, 7)
    taken: list[Report] = []

    def work() -> None:
        for _ in range(5000):
            era.tick()
        era.tick_slow()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        taken.append(era.take())
    taken.append(era.take())

    assert sum(one.successes for one in taken) == 20_000
    assert sum(one.slow_successes for one in taken) == 4
    assert era.take() == Report(7)
