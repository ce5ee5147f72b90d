"""The record of starts and requeues, on a real Redis."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from celery_resilience.attempts import Attempts
from celery_resilience.clock import SYSTEM_CLOCK
from celery_resilience.deliveries import Deliveries, is_redelivered
from celery_resilience.redis_store import RedisStore
from celery_resilience.schedule import Schedule
from celery_resilience.testing import EmbeddedRedis, embedded_redis

FIRST = Attempts(task_id="t")


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedRedis]:
    with embedded_redis(url="") as server:
        yield server


@pytest.fixture
def schedule(server: EmbeddedRedis) -> Iterator[Schedule]:
    server.flush()
    store = RedisStore(server.url)
    yield Schedule(store, SYSTEM_CLOCK, broker="redis", shared=True)
    store.close()


@pytest.fixture
def deliveries(schedule: Schedule) -> Deliveries:
    return Deliveries(schedule, requeue_seconds=100)


def begin(deliveries: Deliveries, attempts: Attempts = FIRST, **more: object) -> tuple[str, int]:
    options: dict[str, object] = {"is_redelivered": True, "max_crashes": 3, **more}
    begun = deliveries.begin(attempts, "line", **options)  # type: ignore[arg-type]
    return begun.verdict, begun.starts


def test_with_the_unrecorded_first_the_third_start_is_the_last(deliveries: Deliveries) -> None:
    assert [begin(deliveries) for _ in range(4)] == [("run", 2), ("run", 3), ("poison", 3), ("poison", 3)]


def test_nothing_is_poison_because_it_was_redelivered(deliveries: Deliveries) -> None:
    assert begin(deliveries, max_crashes=1) == ("run", 2)
    assert begin(deliveries, max_crashes=1) == ("poison", 2)


def test_an_orderly_end_sets_the_count_back(deliveries: Deliveries) -> None:
    begin(deliveries)
    begin(deliveries)
    deliveries.ended(FIRST, "line")

    assert begin(deliveries) == ("run", 2)


def test_a_crash_that_was_seen_is_counted_exactly(deliveries: Deliveries) -> None:
    assert deliveries.crashed(FIRST, "line", is_redelivered=False) == 1
    assert begin(deliveries) == ("run", 2)
    assert deliveries.crashed(FIRST, "line", is_redelivered=True) == 2
    assert begin(deliveries) == ("run", 3)
    assert deliveries.crashed(FIRST, "line", is_redelivered=True) == 3


def test_the_next_attempt_and_the_next_generation_begin_at_nought(deliveries: Deliveries) -> None:
    for _ in range(3):
        begin(deliveries)

    assert begin(deliveries, Attempts(attempt=2)) == ("run", 2)
    assert begin(deliveries, Attempts(generation=1)) == ("run", 2)


def test_nothing_is_recorded_where_nothing_is_to_be_counted(deliveries: Deliveries, server: EmbeddedRedis) -> None:
    assert begin(deliveries, max_crashes=0) == ("run", 0)
    assert begin(deliveries, is_redelivered=False) == ("run", 0)
    assert server.client().keys("*") == []


def test_a_message_that_was_followed_is_behind_and_no_start_is_recorded(
    deliveries: Deliveries, schedule: Schedule, server: EmbeddedRedis
) -> None:
    schedule.record("line", 2, 0)

    assert begin(deliveries) == ("behind", 0)
    assert not server.client().keys("*starts*")


def test_of_two_nonces_the_first_to_come_runs_and_runs_again(deliveries: Deliveries) -> None:
    first, second = Attempts(requeue="letter:a"), Attempts(requeue="letter:b")
    asked = [begin(deliveries, one, is_redelivered=False)[0] for one in (first, second, first, second)]

    assert asked == ["run", "duplicate", "run", "duplicate"]


def test_every_key_has_an_end(deliveries: Deliveries, server: EmbeddedRedis) -> None:
    begin(deliveries, Attempts(requeue="letter:a"))
    deliveries.crashed(Attempts(generation=7), "line", is_redelivered=False)
    client = server.client()

    assert [client.ttl(key) > 0 for key in client.keys("*")] == [True] * 3


@pytest.mark.parametrize(
    ("delivery_info", "headers", "is_it"),
    [
        ({"redelivered": True}, {}, True),
        ({"redelivered": False}, {}, False),
        (None, {}, False),
        ({}, {"x-delivery-count": 1}, True),
        ({}, {"x-delivery-count": 0}, False),
        ({}, {"x-delivery-count": "many"}, False),
    ],
)
def test_what_counts_as_redelivered(delivery_info: dict[str, object], headers: dict[str, object], is_it: bool) -> None:
    assert is_redelivered(delivery_info, headers) is is_it
