"""A breaker policy is checked when it is written, and says what is wrong and what would be right."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from celery_resilience import BreakerPolicy, FailureClass, Settings
from celery_resilience.errors import ConfigurationError


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("window_seconds", 0),
        ("window_calls", 1001),
        ("minimum_calls", 0),
        ("minimum_calls", 2.5),
        ("failure_rate", 0),
        ("failure_rate", 50),
        ("consecutive_failures", -1),
        ("slow_call_seconds", 0),
        ("slow_call_rate", 1.1),
        ("open_seconds", 0),
        ("open_seconds", None),
        ("open_cap_seconds", 1e9),
        ("half_open_permits", 0),
        ("successes_to_close", 0),
        ("probe_lease_seconds", 0),
        ("ramp_seconds", -1),
        ("failure_classes", "NETWORK"),
        ("failure_classes", ["NETWROK"]),
        ("failure_classes", []),
        ("failure_classes", ["NOT_A_FAILURE"]),
    ],
)
def test_a_wrong_value_is_told_by_field_value_and_remedy(field: str, value: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        BreakerPolicy(**{field: value})

    assert caught.value.field == field
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"failure_rate": None}, "failure_rate"),
        ({"open_seconds": 60, "open_cap_seconds": 30}, "open_cap_seconds"),
        ({"window_calls": 5, "minimum_calls": 10}, "minimum_calls"),
    ],
)
def test_values_must_fit_together(options: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        BreakerPolicy(**options)

    assert caught.value.field == field


def test_classes_may_be_named() -> None:
    policy = BreakerPolicy(failure_classes=["NETWORK", FailureClass.PERMANENT])  # type: ignore[arg-type]  # any collection

    assert policy.failure_classes == {FailureClass.NETWORK, FailureClass.PERMANENT}


def test_a_policy_is_frozen_and_travels_as_json() -> None:
    policy = BreakerPolicy(consecutive_failures=3)
    with pytest.raises(dataclasses.FrozenInstanceError):
        policy.minimum_calls = 3  # type: ignore[misc]  # the point

    assert json.loads(json.dumps(policy.as_dict()))["consecutive_failures"] == 3
    assert "window_calls" not in policy.as_dict()


@pytest.mark.parametrize(
    ("name", "value"),
    [("breaker_policy", 3), ("breakers", [1]), ("breakers", {"pay": 3}), ("max_breakers", 0)],
)
def test_settings_check_them_too(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError, match=f"resilience_{name}"):
        Settings(**{name: value})
