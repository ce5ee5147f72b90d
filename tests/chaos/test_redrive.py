"""Operators that die: whatever moment it was, every letter is in one place, and goes back once."""

from __future__ import annotations

import contextlib
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from kombu import Connection
from sqlalchemy import update

from celery_resilience.attempts import HEADER, read_attempts
from celery_resilience.crashpoints import VARIABLE
from celery_resilience.deadletter.filters import LetterFilter
from celery_resilience.deadletter.tables import CLAIMS
from celery_resilience.testing import EmbeddedRedis
from celery_resilience.transport.envelope import Envelope
from tests.support.letters import Office, a_letter
from tests.support.operator import Operator
from tests.support.proof import Figures, size
from tests.support.waiting import wait_until

KILLED = -9


@pytest.fixture(params=["redis", "rabbitmq"])
def office(request: pytest.FixtureRequest, tmp_path: Path, resilience_redis: EmbeddedRedis) -> Iterator[Office]:
    redis = resilience_redis.url
    broker = redis if request.param == "redis" else request.getfixturevalue("rabbitmq").url
    with contextlib.closing(Office(broker, f"sqlite:///{tmp_path / 'ledger.db'}", redis=redis)) as office:
        office.declare("shop")
        yield office
        if request.param == "rabbitmq":
            with Connection(broker) as connection:
                connection.channel().queue_delete("shop")
                connection.channel().queue_delete(office.conf["resilience_dlq_queue"])


def end_claims(office: Office) -> None:
    """Let the claims of the dead run out."""
    with office.runtime.database.write() as connection:
        connection.execute(update(CLAIMS).values(until=1.0))


def end_leases(office: Office) -> None:
    """Let the leases of dead collectors run out; RabbitMQ sees for itself that their connection is gone."""
    store = office.runtime.broker_store
    if store is not None:
        leases = store.key("dlq", "leases", office.conf["resilience_dlq_queue"])
        for name in store.command("ZRANGE", leases, 0, -1):
            store.command("ZADD", leases, "XX", 0, name)


def runs(messages: list[Envelope]) -> Counter[str]:
    """Count the runs of each task: a worker runs the first copy of a requeue, and acks the others unrun."""
    first: dict[str, str] = {}
    ran: Counter[str] = Counter()
    for message in messages:
        requeue, _, nonce = str(read_attempts(message.headers[HEADER]).requeue or "").partition(":")
        if requeue and first.setdefault(requeue, nonce) != nonce:
            continue
        ran[message.headers["id"]] += 1
    return ran


@pytest.mark.parametrize("point", ["desk.claimed", "desk.published", "desk.marked"])
@pytest.mark.parametrize("batch", [1, 2])
def test_a_requeue_that_dies_between_two_writes_is_finished_by_the_next(office: Office, point: str, batch: int) -> None:
    letters = office.fill(*(a_letter() for _ in range(50)))
    doomed = Operator(office, "requeue", env={VARIABLE: f"{point}:{batch}"})
    doomed.go()
    assert doomed.wait() == KILLED
    end_claims(office)
    office.desk.requeue(LetterFilter())
    sent = office.drain(expect=50)

    assert runs(sent) == Counter(str(letter.task_id) for letter in letters)
    assert office.desk.count(LetterFilter(state="requeued")) == 50
    assert sum(one.count for one in office.desk.actions()) == 50
    if office.runtime.broker_store is not None:
        assert len(sent) == 50


@pytest.mark.parametrize("point", ["desk.claimed", "desk.published", "desk.marked"])
def test_a_discard_that_dies_is_finished_by_the_next_run_of_anything(office: Office, point: str) -> None:
    office.fill(*(a_letter(parked=n % 2 == 0) for n in range(10)))
    doomed = Operator(office, "discard", env={VARIABLE: point})
    doomed.go()
    assert doomed.wait() == KILLED
    end_claims(office)
    office.desk.settle()

    assert office.desk.count(LetterFilter(state="discarded")) == 10
    assert office.drain() == []


def test_a_collector_that_dies_before_its_ack_leaves_one_row_for_each_letter(office: Office) -> None:
    letters = [a_letter() for _ in range(30)]
    for letter in letters:
        office.runtime.dead_letters.publish(letter)
    doomed = Operator(office, "collect", env={VARIABLE: "desk.collected"})
    doomed.go()
    assert doomed.wait() == KILLED
    end_leases(office)

    def is_empty() -> bool:
        office.desk.collect()
        return office.desk.depth() == 0

    wait_until(is_empty, 10, "an empty DLQ")
    assert {one.id for one in office.desk.find(limit=100)} == {one.id for one in letters}


@pytest.mark.timeout(size(120, 1200))
def test_operators_killed_at_random_lose_nothing_and_send_nothing_twice(office: Office, figures: Figures) -> None:
    chance, kills = random.Random(4), size(10, 200)
    wanted: Counter[str] = Counter()
    hits = 0
    for _ in range((kills + 1) // 2):
        letters = office.fill(*(a_letter() for _ in range(200)))
        wanted.update(str(letter.task_id) for letter in letters)
        pair = [Operator(office, "requeue", batch=10) for _ in range(2)]
        for operator in pair:
            operator.go()
        for operator in pair:
            time.sleep(chance.uniform(0.0, 0.15))
            operator.kill()
        hits += office.desk.count(LetterFilter(state="claimed")) > 0
        end_claims(office)
    office.desk.requeue(LetterFilter())
    sent = office.drain(expect=sum(wanted.values()))
    ran = runs(sent)

    figures.add(f"letters lost in {kills} kills of requeue", wanted="0", measured=len(wanted - ran))
    figures.add(f"letters run twice in {kills} kills of requeue", wanted="0", measured=len(ran - wanted))
    figures.add("kills that left letters claimed", wanted="> 0", measured=hits)
    assert ran == wanted
    assert office.desk.count(LetterFilter(state="any")) == sum(wanted.values())
    assert office.desk.count(LetterFilter(state="requeued")) == sum(wanted.values())
    if office.runtime.broker_store is not None:
        assert len(sent) == sum(wanted.values())


@pytest.mark.timeout(size(120, 600))
def test_collectors_killed_at_random_lose_nothing(office: Office, figures: Figures) -> None:
    chance, kills = random.Random(5), size(4, 40)
    wanted = set()
    for _ in range(kills):
        letters = [a_letter() for _ in range(100)]
        for letter in letters:
            office.runtime.dead_letters.publish(letter)
        wanted |= {letter.id for letter in letters}
        doomed = Operator(office, "collect", batch=7)
        doomed.go()
        time.sleep(chance.uniform(0.0, 0.15))
        doomed.kill()
        end_leases(office)

    def is_empty() -> bool:
        office.desk.collect()
        return office.desk.depth() == 0

    wait_until(is_empty, 30, "an empty DLQ")
    found = [one.id for one in office.desk.find(limit=100_000)]

    figures.add(f"letters lost in {kills} kills of the collector", wanted="0", measured=len(wanted.difference(found)))
    assert len(found) == len(set(found))
    assert set(found) == wanted
