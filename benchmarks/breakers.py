"""Circuit breakers side by side: ours, pybreaker, interlock-cb, circuitbreaker and purgatory in one run, one table.

    pip install 'celery-resilience[bench]' && python -m benchmarks.breakers     # or:
    PEERS_PYTHON=/path/to/venv/bin/python python -m benchmarks.breakers         # peers in an environment of their own

Every cell is a fresh process on a fresh Redis. Commands are counted by MONITOR, without what a script does inside.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import redis

from celery_resilience.testing import EmbeddedRedis, embedded_redis

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = ("ours", "pybreaker", "interlock", "circuitbreaker", "purgatory")
PYTHON = os.environ.get("PEERS_PYTHON", sys.executable)
LIMIT_SECONDS = 60.0
NO_REDIS = "in one process only"


def start(library: str, scenario: str, url: str) -> subprocess.Popen[str]:
    """Start a scenario."""
    command = [PYTHON, str(ROOT / "benchmarks" / "_breakers_peer.py"), library, scenario, url]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        command, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def result(process: subprocess.Popen[str], limit: float = LIMIT_SECONDS) -> Any:
    """Wait for what a scenario found; a text says why there is nothing."""
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"> {limit:.0f} s"
    lines = [line for line in out.splitlines() if line.startswith("{")]
    if not lines:
        return f"failed: {err.strip().splitlines()[-1][:60] if err.strip() else process.returncode}"
    answer = json.loads(lines[-1])
    return "not installed" if "missing" in answer else answer["found"]


def plain(scenario: str) -> Callable[[str, EmbeddedRedis], Any]:
    """Give a measurement that needs nothing but the scenario."""
    return lambda library, server: result(start(library, scenario, server.url))


def commands(library: str, server: EmbeddedRedis) -> Any:
    """Count commands that clients send while a scenario makes 400 calls in 2 s."""
    with server.client() as client:
        sent: list[int] = []
        stop = threading.Event()
        ready = threading.Event()
        watcher = threading.Thread(target=_watch, args=(client, sent, ready, stop), daemon=True)
        watcher.start()
        ready.wait(5)
        calls = result(start(library, "at_200_per_second", server.url))
        stop.set()
        with server.client() as other:
            other.ping()  # lets the watcher see that it is over
        watcher.join(2)
    return calls if isinstance(calls, str) else len(sent) / calls


def _watch(client: redis.Redis, sent: list[int], ready: threading.Event, stop: threading.Event) -> None:
    with client.monitor() as monitor:
        ready.set()
        for command in monitor.listen():
            if stop.is_set():
                return
            name = command["command"].split(" ")[0].upper()
            if command["client_type"] != "lua" and name not in ("HELLO", "CLIENT", "PING", "MONITOR"):
                sent.append(1)


def lost(harm: Callable[[EmbeddedRedis], None]) -> Callable[[str, EmbeddedRedis], Any]:
    """Give a measurement in which Redis goes away in the middle."""

    def measure(library: str, server: EmbeddedRedis) -> Any:
        process = start(library, "lost_redis", server.url)
        assert process.stdout is not None
        assert process.stdin is not None
        if process.stdout.readline().strip() != "now":
            return result(process)
        harm(server)
        time.sleep(0.3)
        process.stdin.write("go\n")
        process.stdin.flush()
        return result(process, 30)

    return measure


def rates(found: dict[str, float]) -> str:
    """Write calls per second."""
    return f"{found['1'] / 1000:,.0f}k ({found['4'] / 1000:,.0f}k)"


def outages(found: list[int]) -> str:
    """Write how soon an outage trips."""
    return f"{statistics.median(found):.0f}; {sum(n <= 25 for n in found)} of 100"


def waits(found: dict[str, float]) -> str:
    """Write what a lost Redis costs."""
    errors = f", {found['errors']:.0f} errors" if found["errors"] else ""
    return f"{found['worst'] * 1000:,.0f} ms, {found['slow']:.0f} slow{errors}"


def recovery(found: float) -> str:
    """Write how long a killed prober blocks the others."""
    return f"{found:.2f} s" if found < 8 else "not within 8 s"


def forks(found: list[int]) -> str:
    """Write whether a forked child is protected, and its parent told."""
    return f"{found[0]}, {'told' if found[1] else 'not told'}"


Row = tuple[str, str, Callable[[str, EmbeddedRedis], Any], Callable[[Any], str], bool]
ROWS: list[Row] = [
    ("closed calls/s, 1 thread (4)", ">= 300k", plain("calls_per_second"), rates, False),
    ("commands per success at 200 calls/s", "<= 0.025", commands, lambda x: f"{x:.3f}", True),
    ("overshoot over 10, 4 processes, worst of 5", "<= 3", plain("overshoot"), lambda x: str(max(x)), True),
    ("sparse fleet 16 x 5: calls made of 80", "<= 16", plain("sparse"), str, True),
    ("60 % outage: median calls; trips within 25", ">= 90 of 100", plain("outage"), outages, False),
    ("probes, 8 processes, 1 permit, 2 runs", "1", plain("probes"), lambda x: ", ".join(map(str, x)), True),
    ("killed prober (lease 3 s): next call after", "<= 3.5 s", plain("killed_prober"), recovery, True),
    ("fork after use: calls of 60 in child, parent", "<= 10, told", plain("forked"), forks, False),
    ("Redis killed: worst call in 3 s", "<= 250 ms, 1 slow", lost(lambda server: server.kill()), waits, True),
    ("Redis hung: worst call in 3 s", "<= 250 ms, 1 slow", lost(lambda server: server.pause()), waits, True),
]  # fmt: skip


def measure(row: Row, library: str) -> str:
    """Fill one cell."""
    _, _, find, write, needs_redis = row
    if library == "circuitbreaker" and needs_redis:
        return NO_REDIS
    with embedded_redis(url="") as server:
        found = find(library, server)
    return found if isinstance(found, str) else write(found)


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--libraries", default=",".join(LIBRARIES))
    parser.add_argument("--rows", default="", help="only rows that contain this text")
    options = parser.parse_args()
    libraries = options.libraries.split(",")
    table = [("", "wanted of ours", *libraries)]
    for row in ROWS:
        if options.rows in row[0]:
            table.append((row[0], row[1], *(measure(row, library) for library in libraries)))
            print(f"  {row[0]}: {table[-1][2:]}", file=sys.stderr, flush=True)
    widths = [max(len(line[i]) for line in table) for i in range(len(table[0]))]
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


if __name__ == "__main__":
    main()
