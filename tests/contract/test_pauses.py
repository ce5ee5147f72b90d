"""Pauses on a real Redis: kept until resumed or over, bounded, and through a restart."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import redis

from celery_resilience.clock import SYSTEM_CLOCK
from celery_resilience.errors import StoreUnavailableError, TooManyPausesError
from celery_resilience.pauses import MAX_PAUSES, Pauses, waits_for
from celery_resilience.redis_store import RedisStore
from celery_resilience.schedule import Schedule
from celery_resilience.testing import EmbeddedRedis, embedded_redis
from celery_resilience.transport.envelope import Envelope
from tests.support.waiting import wait_until

KEY = "resilience:{pauses}:all"


@pytest.fixture
def store(resilience_redis: EmbeddedRedis) -> Iterator[RedisStore]:
    store = RedisStore(resilience_redis.url, timeout_seconds=2)
    yield store
    store.close()


@pytest.fixture
def schedule(store: RedisStore) -> Schedule:
    return Schedule(store, SYSTEM_CLOCK, broker="test", shared=True)


@pytest.fixture
def pauses(store: RedisStore, schedule: Schedule) -> Pauses:
    return Pauses(store, schedule)


@pytest.fixture
def client(resilience_redis: EmbeddedRedis) -> Iterator[redis.Redis]:
    with resilience_redis.client() as client:
        yield client


def names(pauses: Pauses) -> list[tuple[str, str]]:
    return [(one.kind, one.name) for one in pauses.active()]


def test_a_pause_is_kept_with_who_why_and_when(pauses: Pauses, client: redis.Redis) -> None:
    done = pauses.pause("queue", "mail:slow", who="ann@host", why='it is "Ünder" repair')
    seconds, _ = client.time()  # type: ignore[misc]

    assert [done] == pauses.active()
    assert (done.kind, done.name, done.who, done.why) == ("queue", "mail:slow", "ann@host", 'it is "Ünder" repair')
    assert abs(done.at - seconds) < 10
    assert done.until is None
    assert done.left_seconds is None
    assert client.ttl(KEY) == -1


def test_a_queue_and_a_task_of_one_name_are_two(pauses: Pauses) -> None:
    pauses.pause("queue", "mail", who="a", why="b")
    pauses.pause("task", "mail", who="a", why="b")
    resumed = pauses.resume("queue", "mail")

    assert resumed
    assert names(pauses) == [("task", "mail")]


def test_resuming_what_is_not_paused_says_so(pauses: Pauses) -> None:
    assert not pauses.resume("queue", "mail")


def test_pausing_again_changes_reason_and_end(pauses: Pauses) -> None:
    pauses.pause("queue", "mail", who="a", why="first", for_seconds=60)
    pauses.pause("queue", "mail", who="b", why="second")
    (one,) = pauses.active()

    assert (one.who, one.why, one.until) == ("b", "second", None)


def test_a_pause_whose_time_is_over_is_dropped_by_the_clock_of_redis(pauses: Pauses, client: redis.Redis) -> None:
    short = pauses.pause("queue", "mail", who="a", why="b", for_seconds=0.2)
    long = pauses.pause("queue", "bulk", who="a", why="b", for_seconds=600)
    wait_until(lambda: names(pauses) == [("queue", "bulk")], 5, "the end of the short one")
    (left,) = pauses.active()

    assert short.until == pytest.approx(short.at + 0.2, abs=0.002)
    assert long.left_seconds == pytest.approx(600, abs=0.01)
    assert left.left_seconds is not None
    assert 590 < left.left_seconds < 600
    assert client.hlen(KEY) == 1


def test_there_is_a_bound_and_what_is_over_makes_room(pauses: Pauses, client: redis.Redis) -> None:
    entry = '{"who": "a", "why": "b", "at": 1, "until": null}'
    client.hset(KEY, mapping={f"queue:{number}": entry for number in range(MAX_PAUSES)})
    with pytest.raises(TooManyPausesError, match="1000 queues and tasks are paused"):
        pauses.pause("queue", "one-more", who="a", why="b")
    pauses.pause("queue", "7", who="a", why="known already")
    client.hset(KEY, "queue:8", '{"who": "a", "why": "b", "at": 1, "until": 2}')
    pauses.pause("queue", "one-more", who="a", why="b")

    assert len(pauses.active()) == MAX_PAUSES
    assert ("queue", "one-more") in names(pauses)


def test_what_is_not_ours_is_passed_over(pauses: Pauses, client: redis.Redis) -> None:
    strange = {
        "queue:a": "no json",
        "queue:b": "[]",
        "queue:c": '"x"',
        "planet:d": '{"who":"","why":"","at":1,"until":null}',
    }
    client.hset(KEY, mapping={**strange, b"\xff": b"\xff"})
    pauses.pause("queue", "mail", who="a", why="b")

    assert names(pauses) == [("queue", "mail")]


def test_resuming_a_task_wakes_what_was_parked_for_it_alone(pauses: Pauses, schedule: Schedule) -> None:
    letter = Envelope(b"x", "application/json", "utf-8", {"id": "1"}, {}, "", "q")
    pauses.pause("task", "shop.charge", who="a", why="b")
    schedule.add_park(letter, "q", "one", 2, 3600, waits_for("shop.charge"))
    schedule.add_park(letter, "q", "other", 2, 3600, waits_for("shop.refund"))
    pauses.resume("task", "shop.charge")
    wait_until(lambda: schedule.due(10).places, 5, "the woken message")

    assert [place.name for place in schedule.due(10).places] == ["one:2"]


def test_what_was_known_stays_while_redis_is_away(redis_server: EmbeddedRedis) -> None:
    store = RedisStore(redis_server.url, timeout_seconds=1, cooldown_seconds=0.1)
    pauses = Pauses(store)
    pauses.pause("task", "shop.charge", who="a", why="b")
    pauses.refresh()
    redis_server.kill()
    with pytest.raises(StoreUnavailableError):
        pauses.refresh()

    assert pauses.known("task", "shop.charge") is not None
    assert pauses.known("queue", "shop.charge") is None
    store.close()


def test_a_pause_outlives_the_death_of_redis_with_its_append_only_file() -> None:
    with embedded_redis(url="", appendonly=True) as server:
        store = RedisStore(server.url, timeout_seconds=1, cooldown_seconds=0.1)
        pauses = Pauses(store)
        pauses.pause("queue", "mail", who="a", why="b")
        server.kill()
        server.start()

        assert wait_until(lambda: _active_or_none(pauses), 10, "Redis") == [("queue", "mail")]
        store.close()


def _active_or_none(pauses: Pauses) -> list[tuple[str, str]] | None:
    try:
        return names(pauses)
    except StoreUnavailableError:
        return None
