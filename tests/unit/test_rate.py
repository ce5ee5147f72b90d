"""Rates as users write them: read exactly, or refused with what to write."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_resilience.errors import ConfigurationError
from celery_resilience.rate import Rate, read_rate


@pytest.mark.parametrize(
    ("text", "interval"),
    [("100/s", 0.01), ("100/m", 0.6), ("5/h", 720.0), ("1/d", 86400.0), ("0.5/s", 2.0), (" 10 / m ", 6.0)],
)
def test_a_rate_says_how_far_calls_are_apart(text: str, interval: float) -> None:
    rate = read_rate("rate", text)

    assert rate.interval_seconds == pytest.approx(interval)
    assert rate.burst == 1


def test_a_rate_that_is_one_already_is_kept_with_its_burst() -> None:
    rate = Rate(calls=10, seconds=60, burst=5)

    assert read_rate("rate", rate) is rate


@pytest.mark.parametrize("text", ["", "100", "100/w", "/s", "0/s", "-1/s", "ten/s", "1/s, 5/m", None, 5, b"1/s"])
def test_what_is_no_rate_is_refused_with_an_example(text: object) -> None:
    with pytest.raises(ConfigurationError, match=r'task pay: rate_limit_shared.*Write for example "100/m"'):
        read_rate("task pay: rate_limit_shared", text)


@pytest.mark.parametrize(("calls", "seconds", "burst"), [(0, 1, 1), (1, 0, 1), (1, 1, 0), (-1, 1, 1)])
def test_a_rate_needs_positive_numbers(calls: float, seconds: float, burst: int) -> None:
    with pytest.raises(ConfigurationError, match="must be positive"):
        Rate(calls=calls, seconds=seconds, burst=burst)


@given(st.integers(1, 1_000_000), st.sampled_from("smhd"))
def test_every_whole_rate_is_read_as_written(calls: int, unit: str) -> None:
    rate = read_rate("rate", f"{calls}/{unit}")

    assert (rate.calls, rate.seconds) == (calls, {"s": 1, "m": 60, "h": 3600, "d": 86400}[unit])
