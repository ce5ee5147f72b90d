"""Child processes of a test: they end with it, and are ended only by their own id.

A server left behind by yesterday's crashed test run is the classic cause of today's failure.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from celery_resilience.clock import SYSTEM_CLOCK

_PR_SET_PDEATHSIG = 1
_POLL_SECONDS = 0.005


def spawn(
    command: Sequence[str], *, log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.Popen[bytes]:
    """Start a child in its own session, its output appended to `log`; on Linux the kernel kills it with its parent."""
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C in the terminal is for the tests, which then stop their servers
            preexec_fn=_die_with_parent(),
        )


def _die_with_parent() -> Callable[[], None] | None:
    # The kernel takes the *thread* that forked for the parent: a short-lived thread would take the child with it.
    if not sys.platform.startswith("linux") or threading.current_thread() is not threading.main_thread():
        return None
    libc = ctypes.CDLL(None)  # before the fork: the child of a threaded process must not load anything
    parent = os.getpid()

    def in_child() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died between the fork and the line above
            os._exit(1)

    return in_child


def end(process: subprocess.Popen[bytes], *, limit_seconds: float) -> None:
    """End a child: SIGTERM, and SIGKILL once the limit has passed. Does nothing to one that has ended."""
    if process.poll() is not None:
        return
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGCONT)  # a frozen process would never see the next one
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(limit_seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def attempts_for(seconds: float) -> Iterator[None]:
    """Yield at once and then every few milliseconds until the time is over, for loops that wait for a condition."""
    over = SYSTEM_CLOCK.monotonic() + seconds
    yield
    while SYSTEM_CLOCK.monotonic() < over:
        SYSTEM_CLOCK.sleep(_POLL_SECONDS)
        yield
