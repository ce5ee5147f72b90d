"""A clock that a test moves: no waiting, and no chance but the one that was asked for."""

from __future__ import annotations

import threading

_START = 1_800_000_000.0


class FakeClock:
    """Time stands still until it is moved; sleeping moves it. Safe to use from several threads.

    `chance` from 0 to 1 says where between its bounds every random number lies.
    """

    def __init__(self, now: float = _START, *, chance: float = 0.5) -> None:
        self.chance = chance
        self.slept: list[float] = []
        self._now = now
        self._started = now
        self._tokens = 0
        self._lock = threading.Lock()

    def time(self) -> float:
        """Give wall time in seconds since the epoch."""
        return self._now

    def monotonic(self) -> float:
        """Give the seconds that this clock was moved in all."""
        return self._now - self._started

    def sleep(self, seconds: float) -> None:
        """Move the time instead of waiting, and note it in `slept`."""
        self.slept.append(seconds)
        self.move(seconds)

    def uniform(self, low: float, high: float) -> float:
        """Give the number that lies at `chance` between the two."""
        return low + (high - low) * self.chance

    def token(self) -> str:
        """Give a text that no other call gives: token-1, token-2, …"""
        with self._lock:
            self._tokens += 1
            return f"token-{self._tokens}"

    def move(self, seconds: float) -> None:
        """Let time pass."""
        with self._lock:
            self._now += seconds
