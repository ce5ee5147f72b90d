"""Rates as users write them: "100/m", at most so many calls in so much time."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .errors import ConfigurationError

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_WRITTEN = re.compile(r"\s*(\d+(?:\.\d+)?)\s*/\s*(s|m|h|d)\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """At most `calls` in `seconds`, evenly spread; `burst` may come at once."""

    calls: float
    seconds: float
    burst: int = 1

    def __post_init__(self) -> None:
        if self.calls <= 0 or self.seconds <= 0 or self.burst < 1:
            raise ConfigurationError("rate", self, "must be positive", 'Write for example "100/m".')

    @property
    def interval_seconds(self) -> float:
        """Give the seconds between two calls."""
        return self.seconds / self.calls


def read_rate(field: str, text: object) -> Rate:
    """Read "100/s", "10/m", "5/h" or "1/d"."""
    if isinstance(text, Rate):
        return text
    match = _WRITTEN.fullmatch(text) if isinstance(text, str) else None
    if match is None or float(match[1]) <= 0:
        raise ConfigurationError(field, text, "is not a rate", 'Write for example "100/m": calls per s, m, h or d.')
    return Rate(calls=float(match[1]), seconds=_UNITS[match[2]])
