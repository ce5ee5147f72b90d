"""What the desk manages: collecting, finding, grouping and requeueing 100,000 letters, finding among 1,000,000.

    python benchmarks/redrive.py [--letters 100000] [--million]

Real servers of its own: an embedded Redis, and RabbitMQ and PostgreSQL where they are installed. The databases write to
disk as in production. A figure that misses its promise makes the exit code 1.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import resource
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from kombu import Connection, Queue
from sqlalchemy import text

from celery_resilience.deadletter import DeadLetter, make_letter, to_message
from celery_resilience.deadletter.filters import LetterFilter
from celery_resilience.decision import DeadReason
from celery_resilience.failure import Failure, FailureClass
from celery_resilience.testing import embedded_redis
from celery_resilience.transport.bulk import BulkPublisher
from celery_resilience.transport.envelope import Envelope
from tests.support.letters import Office
from tests.support.postgres import Postgres, find_postgres
from tests.support.proof import Figures
from tests.support.rabbitmq import RabbitMQ, find_rabbitmq

CLASSES = [FailureClass.NETWORK, FailureClass.TRANSIENT, FailureClass.STRUCTURAL, FailureClass.UNKNOWN]
figures = Figures()
missed: list[str] = []


def letters(count: int, start: int = 0) -> Iterator[DeadLetter]:
    """Make letters of 20 tasks, 200 fingerprints, 5 queues and 4 classes, a second apart, collected almost in order."""
    now = time.time() - 2_000_000
    for n in range(start, start + count):
        task_id = str(uuid.uuid4())
        headers = {
            "id": task_id,
            "task": f"shop.task{n % 20}",
            "lang": "py",
            "root_id": task_id,
            "argsrepr": f"({n}, 'customer-{n % 1000}')",
            "kwargsrepr": "{}",
            "retries": 4,
            "origin": "gen1@host",
        }
        body = json.dumps([[n, f"customer-{n % 1000}"], {}, {"callbacks": None, "chain": None, "chord": None}]).encode()
        properties = {"priority": 0, "delivery_mode": 2, "correlation_id": task_id, "reply_to": str(uuid.uuid4())}
        envelope = Envelope(body, "application/json", "utf-8", headers, properties, "", f"queue{n % 5}")
        failure = Failure(
            failure_class=CLASSES[n % 4],
            retry_after=None,
            fingerprint=f"{n % 200:016x}",
            reason="",
            error_type=f"shop.errors.Error{n % 50}",
            message=f"order {n} was refused by the gateway",
        )
        trace = "Traceback (most recent call last):\n" + '  File "/shop/tasks.py", line 12, in charge\n' * 12
        letter = make_letter(envelope, DeadReason.EXHAUSTED, failure=failure, traceback=trace, worker="w1@host")
        yield replace(letter, failed_at=now + n + n * 7919 % 300)


def promise(name: str, wanted: str, measured: float, *, is_kept: bool, unit: str) -> None:
    """Note a figure, and whether it is as promised."""
    figures.add(name, wanted=wanted, measured=f"{measured:,.0f} {unit}")
    print(f"  {name}: {measured:,.0f} {unit} (wanted {wanted})", flush=True)
    if not is_kept:
        missed.append(name)


def fill_dlq(office: Office, count: int) -> None:
    """Put letters into the DLQ as workers would, but in bulk."""
    queue = office.runtime.dead_letters
    name = queue.name_for(None)
    store = office.runtime.broker_store
    if store is None:
        office.declare(name)
    publisher = BulkPublisher(office.app)
    batch: list[DeadLetter] = []
    for n, letter in enumerate(letters(count), start=1):
        batch.append(letter)
        if len(batch) == 500 or n == count:
            if store is not None:
                store.command("LPUSH", name, *(queue._packed(one, name) for one in batch))
            else:
                publisher.publish([(to_message(one), name, "resilience-letter") for one in batch])
            batch.clear()
    publisher.close()


def collecting(office: Office, where: str, count: int) -> None:
    """Measure the collector."""
    fill_dlq(office, count)
    start, cpu = time.monotonic(), time.process_time()
    collected = office.desk.collect()
    rate = collected / (time.monotonic() - start)
    assert collected == count, (collected, count)
    print(f"  {(time.process_time() - cpu) / count * 1e6:.0f} µs of our own CPU for each letter collected")
    promise(f"collecting, {where}", ">= 5,000/s", rate, is_kept=rate >= 5000, unit="letters/s")


def searching(office: Office, where: str, limit_ms: float) -> None:
    """Measure find and groups with each filter, the slowest of three runs each, and see that indexes are used."""
    middle = (office.desk.ledger.oldest() or 0.0) + 40_000
    filters: dict[str, LetterFilter] = {
        "everything": LetterFilter(),
        "task": LetterFilter(task="shop.task7"),
        "queue": LetterFilter(queue="queue3"),
        "class": LetterFilter(failure_class="NETWORK"),
        "error": LetterFilter(error="Error9"),
        "fingerprint": LetterFilter(fingerprint=f"{7:016x}"),
        "a day": LetterFilter(since=middle, until=middle + 86400),
        "task of a day": LetterFilter(task="shop.task7", since=middle, until=middle + 86400),
        "any state": LetterFilter(state="any"),
    }
    slowest: dict[str, float] = {}
    for name, chosen in filters.items():
        slowest[f"find {name}"] = _milliseconds(lambda chosen=chosen: office.desk.find(chosen, 50))
    deep = office.desk.find(LetterFilter(), 2000)[-1].id
    slowest["find a later page"] = _milliseconds(lambda: office.desk.find(LetterFilter(), 50, deep))
    worst = max(slowest, key=lambda name: slowest[name])
    promise(f"find, {where} (worst: {worst})", f"< {limit_ms:.0f} ms", slowest[worst],
            is_kept=slowest[worst] < limit_ms, unit="ms")  # fmt: skip
    grouped = {by: _milliseconds(lambda by=by: office.desk.groups(LetterFilter(), by)) for by in
               ("fingerprint", "error", "task", "class", "queue")}  # fmt: skip
    worst = max(grouped, key=lambda name: grouped[name])
    if limit_ms <= 200:
        promise(f"groups, {where} (worst: by {worst})", f"< {limit_ms:.0f} ms", grouped[worst],
                is_kept=grouped[worst] < limit_ms, unit="ms")  # fmt: skip
    print("  " + ", ".join(f"{name} {ms:.0f}" for name, ms in {**slowest, **grouped}.items()))


def explain(office: Office, where: str) -> None:
    """See that each search goes by an index, and none reads the whole table."""
    from celery_resilience.deadletter.tables import LETTERS

    database = office.runtime.database
    prefix = "EXPLAIN QUERY PLAN" if database.is_sqlite else "EXPLAIN"
    queries = {
        "find by task": "task = 'shop.task7' AND state = 'waiting' ORDER BY failed_at DESC, number DESC LIMIT 50",
        "find all": "state = 'waiting' ORDER BY failed_at DESC, number DESC LIMIT 50",
        "find any state": "failed_at > 0 ORDER BY failed_at DESC, number DESC LIMIT 50",
    }
    with database.write() as connection:
        if not database.is_sqlite:
            connection.execute(text("ANALYZE"))
    for name, query in queries.items():
        with database.read() as connection:
            rows = connection.execute(text(f"{prefix} SELECT id FROM {LETTERS.name} WHERE {query}")).all()
        plan = " | ".join(str(row[-1]).strip() for row in rows)
        print(f"  {where}, {name}: {plan[:160]}")
        if not re.search(r"resilience_(?:waiting|letters)_\w+", plan) or "Seq Scan" in plan:
            missed.append(f"index of {name}, {where}")


def requeueing(office: Office, where: str, wanted: float) -> None:
    """Measure `requeue --all`, and that memory stays flat."""
    count = office.desk.count()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start, cpu = time.monotonic(), time.process_time()
    outcome = office.desk.requeue(LetterFilter())
    rate = outcome.done / (time.monotonic() - start)
    print(f"  {(time.process_time() - cpu) / count * 1e6:.0f} µs of our own CPU for each letter requeued")
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert outcome.done == count, outcome
    promise(f"requeue --all, {where}", f">= {wanted:,.0f}/s", rate, is_kept=rate >= wanted, unit="letters/s")
    promise(f"memory grown by it, {where}", "< 50 MB", grown, is_kept=grown < 50, unit="MB")


def multiply(office: Office) -> None:
    """Fill a ledger with a million rows: 15,625 letters, doubled six times inside the database."""
    from celery_resilience.deadletter.tables import LETTERS

    for start in range(0, 15_625, 625):
        office.desk.ledger.add(list(letters(625, start)))
    names = [column.name for column in LETTERS.columns if column.name != "number"]
    for k in range(6):
        changed = {"id": f"id || '-{k}'", "failed_at": f"failed_at + {15_625 * 2**k}"}
        values = ", ".join(changed.get(name, name) for name in names)
        with office.runtime.database.write() as connection:
            connection.execute(
                text(f"INSERT INTO {LETTERS.name} ({', '.join(names)}) SELECT {values} FROM {LETTERS.name}")
            )
    assert office.desk.count() == 1_000_000


def _milliseconds(work: Any) -> float:
    times = []
    for _ in range(3):
        start = time.monotonic()
        work()
        times.append((time.monotonic() - start) * 1000)
    return max(times)


def measure(count: int, is_million: bool) -> None:
    """Run everything that the installed servers allow."""
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(embedded_redis(url=""))
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="resilience-redrive-"))
        programs, rabbit = find_postgres(), find_rabbitmq()
        databases = {"SQLite": f"sqlite:///{directory}/ledger.db"}
        if programs is not None:
            server = stack.enter_context(contextlib.closing(Postgres(programs, durable=True)))
            databases["PostgreSQL"] = server.new_database()
        for name, url in databases.items():
            redis.flush()
            print(f"{name}, Redis broker, {count:,} letters")
            with contextlib.closing(Office(redis.url, url)) as office:
                collecting(office, f"Redis to {name}", count)
                explain(office, name)
                searching(office, f"{name}, {count:,}", 200)
                requeueing(office, f"{name} to Redis", 10_000 if name == "SQLite" else 3_000)
        if rabbit is not None:
            node = stack.enter_context(contextlib.closing(RabbitMQ(rabbit)))
            redis.flush()
            print(f"SQLite, RabbitMQ, {count:,} letters")
            office = Office(node.url, f"sqlite:///{directory}/rabbit.db", redis=redis.url)
            with contextlib.closing(office), Connection(node.url) as connection:
                for n in range(5):
                    Queue(f"queue{n}", durable=True, channel=connection.channel()).queue_declare()
                collecting(office, "RabbitMQ to SQLite", count)
                requeueing(office, "SQLite to RabbitMQ", 3_000)
        if is_million:
            for name, url in {"SQLite": f"sqlite:///{directory}/million.db", **_second(databases, stack)}.items():
                redis.flush()
                print(f"{name}, 1,000,000 letters")
                with contextlib.closing(Office(redis.url, url)) as office:
                    multiply(office)
                    explain(office, name)
                    searching(office, f"{name}, 1,000,000", 300)


def _second(databases: dict[str, str], stack: contextlib.ExitStack) -> dict[str, str]:
    programs = find_postgres()
    if "PostgreSQL" not in databases or programs is None:
        return {}
    server = stack.enter_context(contextlib.closing(Postgres(programs)))
    return {"PostgreSQL": server.new_database()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--letters", type=int, default=100_000)
    parser.add_argument("--million", action="store_true", help="with 1,000,000 letters too")
    given = parser.parse_args()
    measure(given.letters, given.million)
    print("\n".join(figures.table()))
    if missed:
        print("MISSED: " + "; ".join(missed))
        sys.exit(1)
