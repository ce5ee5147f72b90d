"""Every process of a session, read from /proc: a worker's parent and children, orphans included.

A worker is started as the leader of its own session; its children stay in it even after the leader died.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from tests.support.waiting import wait_until


@dataclass(frozen=True)
class Seen:
    """One process as /proc shows it."""

    pid: int
    parent: int
    session: int
    state: str


def adopt_orphans() -> None:
    """Make this process the new parent of orphaned grandchildren, where init is too busy to bury them (containers)."""
    ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER


def bury(pids: list[int]) -> None:
    """Collect dead processes that fell to us; those that are not our children, or still live, are passed over."""
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def look_at(pid: int) -> Seen | None:
    """Read one process; None if it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    state, parent, _, session = text.rpartition(")")[2].split()[:4]  # the name before it may hold anything
    return Seen(pid, int(parent), int(session), state)


def look_around() -> list[Seen]:
    """Read all processes of the machine."""
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    return [seen for seen in map(look_at, pids) if seen]


def members_of(session: int) -> list[int]:
    """Give the living processes of a session, the leader first; zombies are dead."""
    found = [seen.pid for seen in look_around() if seen.session == session and seen.state not in "ZX"]
    return sorted(found, key=lambda pid: (pid != session, pid))


def children_of(parent: int) -> list[int]:
    """Give the children of a process, zombies included."""
    return [seen.pid for seen in look_around() if seen.parent == parent]


def command_of(pid: int) -> str:
    """Give the command line of a process; empty for zombies and for those that are gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def send(signal_number: signal.Signals, pids: list[int]) -> None:
    """Signal processes by their ids; those that are gone are passed over."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal_number)


def freeze_session(session: int) -> list[int]:
    """Stop every process of a session with SIGSTOP and give their ids; the leader first, so that it cannot fork on."""
    frozen: list[int] = []
    while fresh := [pid for pid in members_of(session) if pid not in frozen]:
        send(signal.SIGSTOP, fresh)
        frozen += fresh
    return frozen


def kill_session(session: int) -> None:
    """Kill every process of a session at one moment (frozen first: none sees another die) and wait for the end."""
    doomed = freeze_session(session)
    send(signal.SIGKILL, doomed)
    wait_until(lambda: not members_of(session), 10, lambda: f"the death of processes {members_of(session)}")
    bury([pid for pid in doomed if pid != session])  # the leader belongs to its Popen
