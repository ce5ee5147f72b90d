"""Policies are laid over each other, and wrong ones are refused in words that help."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_resilience import NO_RETRY, FailureClass, RetryPolicy
from celery_resilience.errors import ConfigurationError
from celery_resilience.policy import CLASS_DEFAULTS, GROUND, MAX_SECONDS, RETRYABLE, policies_from

NEVER_RETRIED = (
    FailureClass.PERMANENT,
    FailureClass.VALIDATION,
    FailureClass.AUTHENTICATION,
    FailureClass.STRUCTURAL,
    FailureClass.POISON,
)

seconds = st.none() | st.floats(0, MAX_SECONDS, allow_nan=False)


@st.composite
def policies(draw: st.DrawFn) -> RetryPolicy:
    """Draw any policy that its own checks let pass."""
    base, floor, cap = draw(seconds), draw(seconds), draw(seconds)
    if cap is not None:
        cap = max(cap, base or 0.0, floor or 0.0)
    return RetryPolicy(
        max_attempts=draw(st.none() | st.integers(1, 50)),
        strategy=draw(st.sampled_from([None, "exponential", "linear", "fixed", "immediate"])),
        base_seconds=base,
        factor=draw(st.none() | st.floats(1, 1000)),
        cap_seconds=cap,
        floor_seconds=floor,
        jitter=draw(st.sampled_from([None, "full", "equal", "decorrelated", "none"])),
    )


FIELDS = ("max_attempts", "strategy", "base_seconds", "factor", "cap_seconds", "floor_seconds", "jitter")


@pytest.mark.parametrize(
    ("kind", "attempts", "strategy", "base", "cap"),
    [
        (FailureClass.NETWORK, 5, "exponential", 1, 300),
        (FailureClass.TRANSIENT, 5, "exponential", 1, 300),
        (FailureClass.RATE_LIMITED, 5, "exponential", 30, 3600),
        (FailureClass.SYSTEM, 5, "linear", 5, 300),
        (FailureClass.UNKNOWN, 3, "exponential", 1, 300),
    ],
)
def test_each_retried_class_has_its_own_default(
    kind: FailureClass, attempts: int, strategy: str, base: float, cap: float
) -> None:
    policy = CLASS_DEFAULTS[kind]

    assert (policy.max_attempts, policy.strategy, policy.base_seconds, policy.cap_seconds) == (
        attempts,
        strategy,
        base,
        cap,
    )
    assert (policy.factor, policy.floor_seconds, policy.jitter) == (2, 0.1, "full")


@pytest.mark.parametrize("kind", NEVER_RETRIED)
def test_what_does_not_heal_is_not_retried(kind: FailureClass) -> None:
    assert CLASS_DEFAULTS[kind].max_attempts == 1
    assert kind not in RETRYABLE


def test_every_class_of_a_failure_has_a_whole_policy() -> None:
    assert set(CLASS_DEFAULTS) == set(FailureClass) - {FailureClass.NOT_A_FAILURE}
    assert all(getattr(policy, name) is not None for policy in CLASS_DEFAULTS.values() for name in FIELDS)


def test_one_policy_speaks_for_the_retried_classes_only() -> None:
    laid = policies_from("retry_policy", RetryPolicy(max_attempts=9))

    assert {laid[kind].max_attempts for kind in RETRYABLE} == {9}
    assert {laid[kind].max_attempts for kind in NEVER_RETRIED} == {1}


def test_a_mapping_speaks_for_the_classes_it_names_even_those_never_retried() -> None:
    laid = policies_from("retry_policy", {FailureClass.PERMANENT: RetryPolicy(max_attempts=2), "NETWORK": NO_RETRY})

    assert laid[FailureClass.PERMANENT].max_attempts == 2
    assert laid[FailureClass.NETWORK].max_attempts == 1
    assert laid[FailureClass.TRANSIENT] == CLASS_DEFAULTS[FailureClass.TRANSIENT]


def test_no_policy_leaves_the_layer_below() -> None:
    assert policies_from("retry_policy", None) is CLASS_DEFAULTS


@given(policies(), policies())
def test_what_a_policy_states_wins_and_the_rest_shines_through(upper: RetryPolicy, lower: RetryPolicy) -> None:
    below = lower.over(GROUND)
    laid = upper.over(below)

    for name in FIELDS:
        stated = getattr(upper, name)
        if stated is not None:
            assert getattr(laid, name) == stated
        elif name not in ("base_seconds", "floor_seconds", "cap_seconds"):
            assert getattr(laid, name) == getattr(below, name)


@given(policies(), policies(), policies())
def test_layers_never_add_up_to_a_cap_below_base_or_floor(
    call: RetryPolicy, task: RetryPolicy, app: RetryPolicy
) -> None:
    laid = call.over(task.over(app.over(GROUND)))

    assert all(getattr(laid, name) is not None for name in FIELDS)
    assert laid.cap_seconds >= max(laid.base_seconds, laid.floor_seconds)


def test_an_empty_policy_changes_nothing() -> None:
    assert RetryPolicy().over(GROUND) is GROUND


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"max_attempts": 0}, ["max_attempts=0", "from 1 to"]),
        ({"max_attempts": 2.5}, ["max_attempts=2.5", "whole number"]),
        ({"max_attempts": True}, ["max_attempts=True", "number"]),
        ({"base_seconds": -1}, ["base_seconds=-1", "from 0 to"]),
        ({"base_seconds": float("nan")}, ["base_seconds=nan", "not a number"]),
        ({"base_seconds": "1"}, ["base_seconds='1'", "not a number"]),
        ({"factor": 0.5}, ["factor=0.5", "from 1 to 1000"]),
        ({"cap_seconds": float("inf")}, ["cap_seconds=inf", "not a number"]),
        ({"floor_seconds": -0.1}, ["floor_seconds=-0.1", "from 0 to"]),
        ({"jitter": "fulll"}, ["jitter='fulll'", "'full'", "'decorrelated'"]),
        ({"strategy": "fibonacci"}, ["strategy='fibonacci'", "'exponential'", "callable"]),
        ({"base_seconds": 10, "cap_seconds": 5}, ["cap_seconds=5", "base_seconds=10", "Raise cap_seconds to 10"]),
        ({"floor_seconds": 10, "cap_seconds": 5}, ["cap_seconds=5", "floor_seconds=10", "lower floor_seconds"]),
    ],
)
def test_a_wrong_policy_names_field_value_bound_and_remedy(wrong: dict[str, object], words: list[str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        RetryPolicy(**wrong)  # type: ignore[arg-type]

    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert caught.value.field in wrong
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (5, ["retry_policy=5", "RetryPolicy(max_attempts=…)"]),
        ({"NETWROK": NO_RETRY}, ["NETWROK", "NETWORK"]),
        ({"NETWORK": 3}, ["retry_policy[NETWORK]=3", "RetryPolicy"]),
        ({FailureClass.NOT_A_FAILURE: NO_RETRY}, ["is not a failure class"]),
    ],
)
def test_what_is_no_policy_is_refused_with_what_to_write(option: object, words: list[str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        policies_from("retry_policy", option)  # type: ignore[arg-type]

    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_policy_cannot_change() -> None:
    with pytest.raises(AttributeError):
        NO_RETRY.max_attempts = 2  # type: ignore[misc]
