"""`make demo`: an embedded Redis, a flaky service, a real worker, a few dozen orders, and a transcript of it all.

What dies becomes a letter; when the service is back, the operator's command sends those letters to work again.

Exit code 0 only if every order ended in one known place and the books of shop and service agree.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import redis

from celery_resilience import runtime_of
from celery_resilience.deadletter.filters import LetterFilter
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
LETTERS_SECONDS = 10.0
CELERY = [sys.executable, "-m", "celery", "-A", "example_project"]


def main() -> int:
    """Run the demo; give the exit code."""
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="shop-") as directory,
        embedded_redis() as server,
        contextlib.closing(FlakyService()) as service,
    ):
        configure(server.url, service.url, f"sqlite:///{directory}/shop.sqlite3")
        with running_worker(Path(directory) / "worker.log") as log, server.client() as client:
            transcript = Transcript(colour=sys.stdout.isatty())
            transcript.say(f"Redis at {server.url}, payments at {service.url}, worker log at {log}")
            if not follow(client, transcript, lambda: transcript.is_ready, START_SECONDS):
                print(log.read_text(errors="replace")[-3000:])
                return 1
            sent = send_orders()
            transcript.say(f"{sent.total()} tasks sent for {ORDERS} orders\n")
            left = LIMIT_SECONDS - (time.monotonic() - began)
            follow(client, transcript, lambda: transcript.ended.total() >= sent.total(), left)
            sent_back = send_back(client, transcript, service)
        adds_up = tell_counts(transcript, sent, sent_back, service)
    print(f"\n{'Everything adds up' if adds_up else 'IT DOES NOT ADD UP'}, {time.monotonic() - began:.0f} s.")
    return 0 if adds_up else 1


def configure(redis_url: str, payments_url: str, database_url: str) -> None:
    """Have this process and the worker use the servers of the demo."""
    os.environ.update(SHOP_REDIS_URL=redis_url, SHOP_PAYMENTS_URL=payments_url, SHOP_DATABASE_URL=database_url)
    app.conf.update(broker_url=redis_url, result_backend=redis_url, resilience_database_url=database_url)


@contextlib.contextmanager
def running_worker(log: Path) -> Iterator[Path]:
    """Run the shop's worker in a process of its own; gives the path of its log."""
    worker = spawn([*CELERY, "worker", "--concurrency", "4", "--loglevel", "INFO"], log=log)
    try:
        yield log
    finally:
        end(worker, limit_seconds=10)


def send_back(client: redis.Redis, transcript: Transcript, service: FlakyService) -> int:
    """Show the letters, mend the service, and requeue what it killed; gives how many tasks came back and ended well."""
    dead, done = transcript.ended["gave up"], transcript.ended["done"]
    desk = runtime_of(app).desk
    until = time.monotonic() + LETTERS_SECONDS
    while desk.count() + desk.collect() < dead and time.monotonic() < until:
        time.sleep(0.1)
    service.recover()
    transcript.say("\nThe payment service is up again. What it killed is sent back by the operator:")
    for command in (["groups", "--by", "class"], ["requeue", "--class", "TRANSIENT", "--yes"]):
        transcript.say(f"\n$ celery -A example_project dlq {' '.join(command)}")
        transcript.say(subprocess.run([*CELERY, "dlq", *command], capture_output=True, text=True).stdout.rstrip())
    sent_back = desk.count(LetterFilter(state="requeued"))
    transcript.say("")
    follow(client, transcript, lambda: transcript.ended["done"] >= done + sent_back, LETTERS_SECONDS)
    return sent_back


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


def tell_counts(transcript: Transcript, sent: Counter[str], sent_back: int, service: FlakyService) -> bool:
    """Print the counts of both sides and say whether they agree."""
    done, gave_up = transcript.ended["done"], transcript.ended["gave up"] - sent_back
    attempts, calls = transcript.attempts, service.calls()
    granted = service.granted()
    twice = [path for path, times in granted.items() if times > 1]
    print(f"\n{sent.total():4} tasks sent")
    print(f"{done:4} done ({sent_back} of them after a requeue) + {gave_up} dead letters = {done + gave_up}")
    print(f"{attempts:4} attempts by the worker, {calls} calls at the service")
    print(f"{granted.total():4} calls granted by the service, {len(twice)} of them twice")
    return done + gave_up == sent.total() and attempts == calls and granted.total() == done and not twice


if __name__ == "__main__":
    sys.exit(main())
