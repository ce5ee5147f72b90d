"""Rates as users write them: read exactly, or refused with what to write."""

from __future__ import annotations

from typing import Any

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


@pytest.mark.parametrize(
    "text",
    [
        "",
        "100",
        "100/w",
        "/s",
        "0/s",
        "-1/s",
        "ten/s",
        "1/s, 5/m",
        None,
        5,
        b"1/s",
        f"{'9' * 400}/s",
        "0.00000000000001/d",
        "9999999/s",
    ],
)
def test_what_is_no_rate_is_refused_with_an_example(text: object) -> None:
    with pytest.raises(ConfigurationError, match=r'task pay: rate_limit_shared.*Write for example "100/m"'):
        read_rate("task pay: rate_limit_shared", text)


@pytest.mark.parametrize(("calls", "seconds", "burst"), [(0, 1, 1), (1, 0, 1), (1, 1, 0), (-1, 1, 1)])
def test_a_rate_needs_positive_numbers(calls: float, seconds: float, burst: int) -> None:
    with pytest.raises(ConfigurationError, match="must be positive"):
        Rate(calls=calls, seconds=seconds, burst=burst)


@pytest.mark.parametrize(
    "wrong",
    [
        {"calls": float("nan")},
        {"calls": float("inf")},
        {"calls": "5"},
        {"calls": True},
        {"calls": None},
        {"calls": 1e-30},
        {"calls": 1e7},
        {"seconds": float("inf")},
        {"seconds": "1"},
        {"burst": 1.5},
        {"burst": True},
        {"burst": 10_000_000},
        {"seconds": 86400, "burst": 1_000_000},
    ],
)
def test_a_rate_needs_numbers_that_can_be_counted(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Rate(**{"calls": 1, "seconds": 1, **wrong})


@given(st.integers(1, 1_000_000), st.sampled_from("smhd"))
def test_every_whole_rate_is_read_as_written(calls: int, unit: str) -> None:
    rate = read_rate("rate", f"{calls}/{unit}")

    assert (rate.calls, rate.seconds) == (calls, {"s": 1, "m": 60, "h": 3600, "d": 86400}[unit])
