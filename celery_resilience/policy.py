"""Retry policies: what the user set, layer over layer.

A policy states only what it changes; whatever it leaves out comes from the layer below it:
call > task > app > the defaults of the failure class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args

from .checks import number, one_of, whole_number
from .errors import ConfigurationError
from .failure import Failure, FailureClass

StrategyName = Literal["exponential", "linear", "fixed", "immediate"]
JitterName = Literal["full", "equal", "decorrelated", "none"]
CustomStrategy = Callable[[int, Failure], float]

MAX_SECONDS = 366 * 86400.0
MAX_ATTEMPTS = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and after which delays a failed task is tried again.

    `max_attempts` counts runs of the body, the first included. `strategy` is a growth law by name, or a callable
    `(attempt, failure) -> seconds`. A field that is None is taken from the layer below.
    """

    max_attempts: int | None = None
    strategy: StrategyName | CustomStrategy | None = None
    base_seconds: float | None = None
    factor: float | None = None
    cap_seconds: float | None = None
    floor_seconds: float | None = None
    jitter: JitterName | None = None

    def __post_init__(self) -> None:
        whole_number("max_attempts", self.max_attempts, low=1, high=MAX_ATTEMPTS)
        if not callable(self.strategy):
            one_of("strategy", self.strategy, get_args(StrategyName), "or a callable (attempt, failure) -> seconds")
        number("base_seconds", self.base_seconds, low=0, high=MAX_SECONDS)
        number("factor", self.factor, low=1, high=1000)
        number("cap_seconds", self.cap_seconds, low=0, high=MAX_SECONDS)
        number("floor_seconds", self.floor_seconds, low=0, high=MAX_SECONDS)
        one_of("jitter", self.jitter, get_args(JitterName))
        for lower in ("base_seconds", "floor_seconds"):
            value = getattr(self, lower)
            if value is not None and self.cap_seconds is not None and value > self.cap_seconds:
                raise ConfigurationError(
                    "cap_seconds", self.cap_seconds, f"must not be below {lower}={value:g}",
                    f"Raise cap_seconds to {value:g} or more, or lower {lower}.",
                )  # fmt: skip

    def over(self, below: RetryPolicy) -> RetryPolicy:
        """Lay this policy over another: what this one states wins, and pulls along the bound it would cross."""
        stated = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}
        if self.cap_seconds is not None:
            for lower in ("base_seconds", "floor_seconds"):
                inherited = getattr(below, lower)
                if lower not in stated and inherited is not None and inherited > self.cap_seconds:
                    stated[lower] = self.cap_seconds
        elif below.cap_seconds is not None:
            highest = max(self.base_seconds or 0, self.floor_seconds or 0)
            if highest > below.cap_seconds:
                stated["cap_seconds"] = highest
        return replace(below, **stated) if stated else below


NO_RETRY = RetryPolicy(max_attempts=1)

GROUND = RetryPolicy(
    max_attempts=5,
    strategy="exponential",
    base_seconds=1.0,
    factor=2.0,
    cap_seconds=300.0,
    floor_seconds=0.1,
    jitter="full",
)
CLASS_DEFAULTS: Mapping[FailureClass, RetryPolicy] = {
    FailureClass.TRANSIENT: GROUND,
    FailureClass.NETWORK: GROUND,
    FailureClass.RATE_LIMITED: RetryPolicy(base_seconds=30.0, cap_seconds=3600.0).over(GROUND),
    FailureClass.SYSTEM: RetryPolicy(strategy="linear", base_seconds=5.0).over(GROUND),
    FailureClass.UNKNOWN: RetryPolicy(max_attempts=3).over(GROUND),
    FailureClass.PERMANENT: NO_RETRY.over(GROUND),
    FailureClass.VALIDATION: NO_RETRY.over(GROUND),
    FailureClass.AUTHENTICATION: NO_RETRY.over(GROUND),
    FailureClass.STRUCTURAL: NO_RETRY.over(GROUND),
    FailureClass.POISON: NO_RETRY.over(GROUND),
}
RETRYABLE = frozenset(
    {
        FailureClass.TRANSIENT,
        FailureClass.NETWORK,
        FailureClass.RATE_LIMITED,
        FailureClass.SYSTEM,
        FailureClass.UNKNOWN,
    }
)

RetryPolicies = Mapping[FailureClass, RetryPolicy]
PolicyOption = RetryPolicy | Mapping[Any, Any] | None


def policies_from(field: str, option: PolicyOption, below: RetryPolicies = CLASS_DEFAULTS) -> RetryPolicies:
    """Lay what a user wrote over the policies below.

    One policy speaks for the classes that are retried at all; a mapping speaks for the classes it names and may so
    make a class retry that by default is not.
    """
    if option is None:
        return below
    if isinstance(option, RetryPolicy):
        return {kind: option.over(policy) if kind in RETRYABLE else policy for kind, policy in below.items()}
    if isinstance(option, Mapping):
        merged = dict(below)
        for key, policy in option.items():
            kind = _failure_class(field, key)
            merged[kind] = _policy(f"{field}[{kind}]", policy).over(below[kind])
        return merged
    raise ConfigurationError(
        field, option, "is not a retry policy",
        "Write RetryPolicy(max_attempts=…) or a mapping {FailureClass.NETWORK: RetryPolicy(…)}.",
    )  # fmt: skip


def _failure_class(field: str, key: Any) -> FailureClass:
    for kind in CLASS_DEFAULTS:
        if key == kind:
            return kind
    known = ", ".join(str(kind) for kind in CLASS_DEFAULTS)
    raise ConfigurationError(field, key, "is not a failure class", f"Use one of {known}.")


def _policy(field: str, value: Any) -> RetryPolicy:
    if isinstance(value, RetryPolicy):
        return value
    raise ConfigurationError(field, value, "is not a RetryPolicy", "Write RetryPolicy(…) or NO_RETRY.")
