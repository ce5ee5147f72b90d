"""`make demo`: an embedded Redis, a flaky service, a real worker, a few dozen orders, and a transcript of it all.

Exit code 0 only if every order ended in one known place and the books of shop and service agree.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis

from celery_resilience.testing import embedded_redis
from celery_resilience.testing.processes import end, spawn
from example_project.app import app
from example_project.flaky_service import FlakyService
from example_project.journal import KEY
from example_project.tasks import charge, invoice, ship
from example_project.transcript import Transcript

ORDERS = 24
LIMIT_SECONDS = 25.0
START_SECONDS = 15.0


def main() -> int:
    """Run the demo; give the exit code."""
    began = time.monotonic()
    with embedded_redis() as server, contextlib.closing(FlakyService()) as service:
        os.environ.update(SHOP_REDIS_URL=server.url, SHOP_PAYMENTS_URL=service.url)  # for the worker
        app.conf.update(broker_url=server.url, result_backend=server.url)
        with running_worker() as log, server.client() as client:
            transcript = Transcript(colour=sys.stdout.isatty())
            transcript.say(f"Redis at {server.url}, payments at {service.url}, worker log at {log}")
            if not follow(client, transcript, lambda: transcript.is_ready, START_SECONDS):
                print(log.read_text(errors="replace")[-3000:])
                return 1
            sent = send_orders()
            transcript.say(f"{sent.total()} tasks sent for {ORDERS} orders\n")
            left = LIMIT_SECONDS - (time.monotonic() - began)
            follow(client, transcript, lambda: transcript.ended.total() >= sent.total(), left)
        adds_up = tell_counts(transcript, sent, service)
    print(f"\n{'Everything adds up' if adds_up else 'IT DOES NOT ADD UP'}, {time.monotonic() - began:.0f} s.")
    return 0 if adds_up else 1


@contextlib.contextmanager
def running_worker() -> Iterator[Path]:
    """Run the shop's worker in a process of its own; gives the path of its log."""
    with tempfile.TemporaryDirectory(prefix="shop-") as directory:
        log = Path(directory) / "worker.log"
        options = ["--concurrency", "4", "--loglevel", "INFO", "--without-mingle", "--without-gossip"]
        worker = spawn([sys.executable, "-m", "celery", "-A", "example_project", "worker", *options], log=log)
        try:
            yield log
        finally:
            end(worker, limit_seconds=10)


def send_orders() -> Counter[str]:
    """Send a charge and a shipment for every order, and one long invoice; gives the number of each."""
    invoice.delay(1)
    for order in range(1, ORDERS + 1):
        charge.delay(order)
        if order % 3 == 0:
            ship.delay(order)
    return Counter({"charge": ORDERS, "ship": ORDERS // 3, "invoice": 1})


def follow(client: redis.Redis, transcript: Transcript, is_over: Any, seconds: float) -> bool:
    """Print the journal as it grows, until a condition holds or the time is over; says whether it held."""
    until = time.monotonic() + seconds
    while not is_over() and time.monotonic() < until:
        if line := client.blpop([KEY], timeout=0.2):
            transcript.add(json.loads(line[1]))
    return bool(is_over())


def tell_counts(transcript: Transcript, sent: Counter[str], service: FlakyService) -> bool:
    """Print the counts of both sides and say whether they agree."""
    done, gave_up = transcript.ended["done"], transcript.ended["gave up"]
    attempts, calls = transcript.attempts, service.calls()
    granted = service.granted()
    twice = [path for path, times in granted.items() if times > 1]
    print(f"\n{sent.total():4} tasks sent")
    print(f"{done:4} done + {gave_up} failed for good = {done + gave_up}")
    for failure_class, count in sorted(transcript.final_classes.items()):
        print(f"{count:8} of them {failure_class}")
    print(f"{attempts:4} attempts by the worker, {calls} calls at the service")
    print(f"{granted.total():4} calls granted by the service, {len(twice)} of them twice")
    return done + gave_up == sent.total() and attempts == calls and granted.total() == done and not twice


if __name__ == "__main__":
    sys.exit(main())
