"""Breaker policies: when a breaker trips, how long it stays open, and what proves that the dependency is back."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from .checks import number, required, whole_number
from .errors import ConfigurationError
from .failure import FailureClass

MAX_SECONDS = 7 * 86400.0
MAX_WINDOW_CALLS = 1000
COUNTED_CLASSES = frozenset(
    {
        FailureClass.TRANSIENT,
        FailureClass.NETWORK,
        FailureClass.RATE_LIMITED,
        FailureClass.SYSTEM,
        FailureClass.UNKNOWN,
    }
)
_OPTIONAL = ("window_calls", "failure_rate", "consecutive_failures", "slow_call_seconds")


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerPolicy:
    """When to stop calling a dependency and when to try again.

    The window is the last `window_seconds`, or the last `window_calls` calls if that is given; all processes report to
    one window. The breaker trips once the window holds `minimum_calls` and the share of failures reaches
    `failure_rate`, or the share of calls longer than `slow_call_seconds` reaches `slow_call_rate`; or after
    `consecutive_failures` in a row. None switches a rule off; one of them must be on.
    """

    window_seconds: float = 30.0
    window_calls: int | None = None
    minimum_calls: int = 10
    failure_rate: float | None = 0.5
    consecutive_failures: int | None = None
    slow_call_seconds: float | None = None
    slow_call_rate: float = 0.8
    open_seconds: float = 10.0
    open_cap_seconds: float = 300.0
    half_open_permits: int = 1
    successes_to_close: int = 2
    probe_lease_seconds: float = 30.0
    ramp_seconds: float = 10.0
    failure_classes: frozenset[FailureClass] = COUNTED_CLASSES

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name not in _OPTIONAL:
                required(field.name, getattr(self, field.name))
        number("window_seconds", self.window_seconds, low=0.1, high=86400)
        whole_number("window_calls", self.window_calls, low=1, high=MAX_WINDOW_CALLS)
        whole_number("minimum_calls", self.minimum_calls, low=1, high=1_000_000)
        number("failure_rate", self.failure_rate, low=0.001, high=1)
        whole_number("consecutive_failures", self.consecutive_failures, low=1, high=1_000_000)
        number("slow_call_seconds", self.slow_call_seconds, low=0.001, high=86400)
        number("slow_call_rate", self.slow_call_rate, low=0.001, high=1)
        number("open_seconds", self.open_seconds, low=0.05, high=MAX_SECONDS)
        number("open_cap_seconds", self.open_cap_seconds, low=0.05, high=MAX_SECONDS)
        whole_number("half_open_permits", self.half_open_permits, low=1, high=1000)
        whole_number("successes_to_close", self.successes_to_close, low=1, high=1000)
        number("probe_lease_seconds", self.probe_lease_seconds, low=0.05, high=86400)
        number("ramp_seconds", self.ramp_seconds, low=0, high=86400)
        object.__setattr__(self, "failure_classes", _classes(self.failure_classes))
        self._check_together()

    def as_dict(self) -> dict[str, Any]:
        """Give plain values for JSON; what is off is left out."""
        shown = {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}
        return {**shown, "failure_classes": sorted(str(kind) for kind in self.failure_classes)}

    def _check_together(self) -> None:
        if self.failure_rate is None and self.consecutive_failures is None and self.slow_call_seconds is None:
            raise ConfigurationError(
                "failure_rate", None, "leaves the breaker without any rule to trip by",
                "Set failure_rate, consecutive_failures or slow_call_seconds.",
            )  # fmt: skip
        if self.open_cap_seconds < self.open_seconds:
            raise ConfigurationError(
                "open_cap_seconds", self.open_cap_seconds, f"must not be below open_seconds={self.open_seconds:g}",
                f"Raise open_cap_seconds to {self.open_seconds:g} or more, or lower open_seconds.",
            )  # fmt: skip
        if self.window_calls is not None and self.minimum_calls > self.window_calls:
            raise ConfigurationError(
                "minimum_calls", self.minimum_calls, f"must not be above window_calls={self.window_calls}",
                "The window would never hold enough calls: lower minimum_calls or raise window_calls.",
            )  # fmt: skip


def _classes(given: Any) -> frozenset[FailureClass]:
    """Read failure classes from members or names."""
    names = [kind.value for kind in FailureClass if kind is not FailureClass.NOT_A_FAILURE]
    remedy = f"Give some of {', '.join(names)}."
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigurationError("failure_classes", given, "is not a collection of failure classes", remedy)
    chosen = list(given)
    for kind in chosen:
        if kind not in names:
            raise ConfigurationError("failure_classes", kind, "is not a failure class", remedy)
    if not chosen:
        raise ConfigurationError("failure_classes", given, "is empty, so that nothing would ever count", remedy)
    return frozenset(FailureClass(kind) for kind in chosen)
