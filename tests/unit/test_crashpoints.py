"""A crash point does nothing until armed, and then ends the process as a power cut would."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from celery_resilience import crashpoints

PASSES = (
    "from celery_resilience.crashpoints import crashpoint as c; c('a'); print(1); c('a'); print(2); c('b'); print(3)"
)


def passing(armed: str | None) -> tuple[int, str]:
    environment = {k: v for k, v in os.environ.items() if k != crashpoints.VARIABLE}
    environment |= {} if armed is None else {crashpoints.VARIABLE: armed}
    done = subprocess.run([sys.executable, "-uc", PASSES], env=environment, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.replace("\n", "")


@pytest.mark.parametrize(
    ("armed", "code", "printed"),
    [
        (None, 0, "123"),
        ("", 0, "123"),
        ("elsewhere", 0, "123"),
        ("a", -signal.SIGKILL, ""),
        ("a:2", -signal.SIGKILL, "1"),
        ("b", -signal.SIGKILL, "12"),
    ],
)
def test_the_process_dies_where_it_was_told_to_and_nowhere_else(armed: str | None, code: int, printed: str) -> None:
    assert passing(armed) == (code, printed)
