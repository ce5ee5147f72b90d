"""Named points between two writes where a test may end the process.

A point costs one look at an empty dictionary. Set `CELERY_RESILIENCE_CRASH_AT=name` (or `name:3` for the third time)
to have the process kill itself there, as a power cut would.
"""

from __future__ import annotations

import os
import signal

VARIABLE = "CELERY_RESILIENCE_CRASH_AT"
_left: dict[str, int] = {}


def crash_at(name: str, times: int = 1) -> None:
    """Arm a point: the process is killed when it passes `name` for the `times`-th time."""
    _left[name] = times


def crashpoint(name: str) -> None:
    """Pass a named point; does nothing unless a test armed it."""
    if not _left or name not in _left:
        return
    _left[name] -= 1
    if _left[name] <= 0:
        os.kill(os.getpid(), signal.SIGKILL)


def _arm_from_environment() -> None:
    name, _, times = os.environ.get(VARIABLE, "").partition(":")
    if name:
        crash_at(name, int(times or 1))


_arm_from_environment()
