"""Time and chance: the one module that asks the operating system for either.

Wall time is for what is stored, monotonic time for differences inside a process.
"""

from __future__ import annotations

import random
import time
import uuid
from typing import Protocol


class Clock(Protocol):
    """What the package needs of time and chance."""

    def time(self) -> float:
        """Give wall time in seconds since the epoch."""

    def monotonic(self) -> float:
        """Give seconds that never run backwards, for differences only."""

    def sleep(self, seconds: float) -> None:
        """Wait."""

    def uniform(self, low: float, high: float) -> float:
        """Give a random number between the two."""

    def token(self) -> str:
        """Give a text that no other call gives."""


class SystemClock:
    """The machine's own clock and chance."""

    def time(self) -> float:
        """Give wall time in seconds since the epoch."""
        return time.time()

    def monotonic(self) -> float:
        """Give seconds that never run backwards; they go on while the process is frozen."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Wait; under gevent this yields to other greenlets."""
        time.sleep(seconds)

    def uniform(self, low: float, high: float) -> float:
        """Give a random number between the two."""
        return random.uniform(low, high)

    def token(self) -> str:
        """Give a text that no other call gives."""
        return str(uuid.uuid4())


SYSTEM_CLOCK: Clock = SystemClock()
