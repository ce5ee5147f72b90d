"""Waiting for a condition, with a limit: no test sleeps on a guess."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")


def wait_until(condition: Callable[[], Value], seconds: float, what: str | Callable[[], str]) -> Value:
    """Give the first true value of `condition`; raise AssertionError saying `what` was awaited after `seconds`.

    The condition is asked one last time after the limit: a machine that stalled us must not fail the test.
    `what` may be a function, for a description that is expensive or only known at the end.
    """
    over = time.monotonic() + seconds
    pause = 0.002
    while True:
        last_time = time.monotonic() >= over
        if value := condition():
            return value
        if last_time:
            raise AssertionError(f"waited {seconds:g} s in vain for {what if isinstance(what, str) else what()}")
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)
