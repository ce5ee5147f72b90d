"""Rates as users write them: "100/m", at most so many calls in so much time."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .checks import number, required, whole_number
from .errors import ConfigurationError

MAX_NUMBER = 1e12
MAX_BURST = 1_000_000
LEAST_INTERVAL_SECONDS = 1e-6  # Redis counts in microseconds
LONGEST_SECONDS = 10 * 366 * 86400.0
_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_WRITTEN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*/\s*(s|m|h|d)\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """At most `calls` in `seconds`, evenly spread; `burst` may come at once."""

    calls: float
    seconds: float
    burst: int = 1

    def __post_init__(self) -> None:
        for field in ("calls", "seconds"):
            required(field, getattr(self, field))
            number(field, getattr(self, field), low=-MAX_NUMBER, high=MAX_NUMBER)
        required("burst", self.burst)
        whole_number("burst", self.burst, low=-MAX_BURST, high=MAX_BURST)
        if self.calls <= 0 or self.seconds <= 0 or self.burst < 1:
            raise ConfigurationError("rate", self, "must be positive", 'Write for example "100/m".')
        if not LEAST_INTERVAL_SECONDS <= self.interval_seconds <= self.interval_seconds * self.burst <= LONGEST_SECONDS:
            problem = "must have its calls from a microsecond to ten years apart, a whole burst too"
            raise ConfigurationError("rate", self, problem, 'Write for example "100/m".')

    @property
    def interval_seconds(self) -> float:
        """Give the seconds between two calls."""
        return self.seconds / self.calls


def read_rate(field: str, text: object) -> Rate:
    """Read "100/s", "10/m", "5/h" or "1/d"."""
    if isinstance(text, Rate):
        return text
    match = _WRITTEN.fullmatch(text) if isinstance(text, str) else None
    try:
        if match is not None:
            return Rate(calls=float(match[1]), seconds=_UNITS[match[2]])
    except ConfigurationError:
        pass  # none, or more or fewer than can be counted
    raise ConfigurationError(field, text, "is not a rate", 'Write for example "100/m": calls per s, m, h or d.')
