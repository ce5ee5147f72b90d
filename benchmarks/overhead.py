"""What resilience costs: CPU and round trips to Redis per task, against plain Celery in one interleaved run.

    make bench                                   # all benchmarks
    .venv/bin/python -m benchmarks.overhead      # this one; --tasks and --pairs set the size, --instructions the method

Two workers live side by side, one with plain tasks (acks_late, autoretry_for), one with ResilientTask. Each
pair of rounds gives the same number of messages to plain, ours, plain; CPU is that of the worker's process tree plus
Redis. A/A is plain against plain: a difference smaller than its spread means nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import redis

from celery_resilience.testing import embedded_redis

ROOT = Path(__file__).resolve().parents[1]
KINDS = ("plain", "ours")
DUE = "resilience:{schedule:redis}:due"


@dataclass
class Bench:
    """A running worker of one kind."""

    kind: str
    process: subprocess.Popen[bytes]
    broker: redis.Redis
    redis_pid: int

    def cpu(self) -> float:
        """Give the seconds of CPU that the worker's tree and Redis have used so far."""
        tree = [psutil.Process(self.process.pid), *psutil.Process(self.process.pid).children(recursive=True)]
        times = [one.cpu_times() for one in [*tree, psutil.Process(self.redis_pid)]]
        return sum(one.user + one.system for one in times)

    def round(self, task: str, count: int) -> tuple[float, float]:
        """Run `count` tasks; gives microseconds of CPU and round trips to Redis, per task."""
        pattern = self.message(f"{self.kind}.{task}")
        before, trips = self.cpu(), self.trips()
        for start in range(0, count, 500):
            size = min(500, count - start)
            self.broker.lpush(self.kind, *(self.fresh(pattern) for _ in range(size)))
        looks = self.wait_empty(count)
        used, sent = self.cpu() - before, self.trips() - trips - looks - count / 500 - 1
        return used / count * 1e6, sent / count

    def message(self, task: str) -> str:
        """Give a message as Celery publishes it."""
        from benchmarks._overhead_plain import celery_app

        scratch = f"scratch-{self.kind}"
        celery_app("sender").send_task(task, queue=scratch)
        return self.broker.rpop(scratch).decode()  # type: ignore[union-attr]  # one message

    def fresh(self, pattern: str) -> str:
        """Give a copy with ids of its own."""
        known = json.loads(pattern)
        task_id = str(uuid.uuid4())
        known["headers"].update(id=task_id, root_id=task_id)
        known["properties"].update(correlation_id=task_id, delivery_tag=str(uuid.uuid4()))
        known["properties"]["delivery_info"].update(exchange="", routing_key=self.kind)
        return json.dumps(known)

    def wait_empty(self, count: int) -> int:
        """Wait until every task has ended; gives the commands that this itself sent."""
        looks, empty = 0, 0
        limit = time.monotonic() + 120
        while time.monotonic() < limit:
            # A message is always in one of the three, but for the instant between its pop and its entry in unacked.
            left = self.broker.llen(self.kind) + self.broker.hlen("unacked") + self.broker.zcard(DUE)  # type: ignore[operator]
            looks += 3
            empty = 0 if left else empty + 1
            if empty == 3:
                return looks
            time.sleep(0.05)
        left = [self.broker.llen(self.kind), self.broker.hgetall("unacked"), self.broker.zcard(DUE)]
        raise TimeoutError(f"{self.kind}: not empty after {count} tasks: {left}")

    def trips(self) -> int:
        """Count the times that the server has read from clients: round trips, a pipeline counting as one."""
        return int(self.broker.info("stats")["total_reads_processed"])  # type: ignore[index]  # not a pipeline


def start(kind: str, server: Any) -> Bench:
    """Start one worker and wait until it consumes."""
    log = Path(f"/tmp/overhead-{os.getpid()}-{kind}.log")
    command = [sys.executable, "-m", "celery", "-A", f"benchmarks._overhead_{kind}", "worker", "-P", "prefork"]
    command += ["-c", "1"]
    command += ["-Q", kind, "-n", f"{kind}@bench", "-l", "WARNING", "--without-gossip", "--without-mingle"]
    process = subprocess.Popen(command, cwd=ROOT, stdout=log.open("wb"), stderr=subprocess.STDOUT)
    bench = Bench(kind, process, redis.Redis.from_url(server.url), server.pid)
    for task in ("succeed", "fail_once"):  # warm: the first thousands of tasks cost more, whoever runs them
        bench.round(task, 2000)
    return bench


def measure(benches: dict[str, Bench], task: str, count: int, pairs: int) -> dict[str, Any]:
    """Run the pairs of one task; gives medians, the ratio and the A/A spread."""
    plain, ours, ratios, spread = [], [], [], []
    for _ in range(pairs):
        first = benches["plain"].round(task, count)
        mine = benches["ours"].round(task, count)
        second = benches["plain"].round(task, count)
        plain += [first, second]
        ours.append(mine)
        ratios.append(mine[0] / statistics.mean((first[0], second[0])))
        spread.append(abs(first[0] / second[0] - 1))
    return {
        "plain": statistics.median(one[0] for one in plain),
        "ours": statistics.median(one[0] for one in ours),
        "ratio": statistics.median(ratios),
        "spread": statistics.median(spread),
        "trips plain": statistics.median(one[1] for one in plain),
        "trips ours": statistics.median(one[1] for one in ours),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=3000)
    parser.add_argument("--pairs", type=int, default=9)
    options = parser.parse_args()
    with embedded_redis() as server:
        os.environ["BENCH_BROKER_URL"] = server.url
        benches = {kind: start(kind, server) for kind in KINDS}
        try:
            rows = {task: measure(benches, task, options.tasks, options.pairs) for task in ("succeed", "fail_once")}
        finally:
            for bench in benches.values():
                bench.process.terminate()
                bench.process.wait(20)
    show(rows, options)


def show(rows: dict[str, dict[str, Any]], options: argparse.Namespace) -> None:
    """Print the figures as a table."""
    print(f"{options.tasks} tasks a round, {options.pairs} interleaved pairs (plain, ours, plain); prefork, one child")
    head = ("task", "plain µs", "ours µs", "ours/plain", "A/A spread", "trips plain", "trips ours")
    print("".join(f"{name:>16}" for name in head))
    for task, row in rows.items():
        cells = (f"{row['plain']:.0f}", f"{row['ours']:.0f}", f"{row['ratio']:.3f}", f"{row['spread']:.1%}")
        trips = (f"{row['trips plain']:.2f}", f"{row['trips ours']:.2f}")
        print("".join(f"{cell:>16}" for cell in (task, *cells, *trips)))
    success, failing = rows["succeed"], rows["fail_once"]
    attempt = (failing["ours"] - success["ours"]) / (failing["plain"] - success["plain"])
    print(f"one failing attempt: {attempt:.2f} × Celery's own retry")


if __name__ == "__main__":
    main()
