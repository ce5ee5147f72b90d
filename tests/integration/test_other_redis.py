"""A Redis broker whose schedule is in another Redis: what is due is published, each message by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from celery_resilience.schedule import Place
from celery_resilience.testing import EmbeddedRedis, embedded_redis
from celery_resilience.transport.envelope import Envelope
from tests.support.stage import Stage, open_stage
from tests.support.waiting import wait_until

DOWN, DONE = ["raise", "network"], ["return", "done"]
# Its properties say a second time what every publish says once, so that none can succeed.
UNPUBLISHABLE = Envelope(
    b"[]", "application/json", "utf-8", {"id": "broken"}, {"routing_key": "twice"}, "", "resilient"
)


@pytest.fixture(scope="module")
def store() -> Iterator[EmbeddedRedis]:
    """The Redis of the schedule alone."""
    with embedded_redis(url="") as server:
        yield server


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, store: EmbeddedRedis) -> Iterator[Stage]:
    conf = {"resilience_redis_url": store.url}
    with (
        embedded_redis(url="") as server,
        open_stage(tmp_path_factory.mktemp("logs"), server, conf=conf) as stage,
    ):
        stage.worker(concurrency=2)
        yield stage


def test_a_retry_comes_back_from_another_server(stage: Stage, store: EmbeddedRedis) -> None:
    key, result = stage.script(DOWN, DOWN, DONE, priority=6, headers={"mine": 1})

    assert result.get(timeout=15) == "done"
    runs = stage.runs(key)
    assert [(run["attempt"], run["priority"], run["headers"]) for run in runs] == [
        (n, 6, {"mine": 1}) for n in (1, 2, 3)
    ]
    assert store.client().keys("*schedule*")
    assert stage.record.keys("*schedule*") == []
    stage.wait_idle()


def test_a_retry_comes_back_from_another_database(tmp_path: Path, redis_server: EmbeddedRedis) -> None:
    conf = {"resilience_redis_url": redis_server.url[:-1] + "1"}
    with open_stage(tmp_path, redis_server, conf=conf) as stage:
        stage.worker(pool="threads")
        key, result = stage.script(DOWN, DONE)

        assert result.get(timeout=15) == "done"
        assert stage.attempts(key) == [1, 2]


def test_a_retry_that_expires_later_comes_back_and_holds_back_nobody(stage: Stage) -> None:
    sent = [stage.script(DOWN, DONE, **options) for options in ({"expires": 600}, {}, {})]

    assert [result.get(timeout=15) for _, result in sent] == ["done"] * 3
    first, second = stage.runs(sent[0][0])
    assert first["expires"] == second["expires"] is not None


def test_an_entry_that_cannot_be_published_stays_and_holds_back_nobody(stage: Stage, store: EmbeddedRedis) -> None:
    sent = [stage.script(DOWN, DONE, resilience={"base_seconds": 3600}) for _ in range(4)]
    broken = [Place("resilient", 0, "retry", f"broken{n}:2") for n in range(3)]
    wait_until(lambda: stage.schedule.count() == 4, 10, "four retries in the schedule")
    for n in range(3):
        stage.schedule.add_attempt(UNPUBLISHABLE, "resilient", f"broken{n}", 2, 3600)
    all_due_at_once(stage, store, first=broken)

    assert [result.get(timeout=15) for _, result in sent] == ["done"] * 4
    assert [row.task_id for row in stage.schedule.find()] == ["broken"] * 3
    assert stage.schedule.remove(broken) == 3


def all_due_at_once(stage: Stage, store: EmbeddedRedis, first: Sequence[Place]) -> None:
    """Make everything in the schedule due in one moment, some of it before the rest."""
    due, _ = stage.schedule._keys
    with store.client(decode_responses=True) as client:
        names = [place.member() for place in first]
        client.zadd(due, {member: 0 if member in names else 1 for member in client.zrange(due, 0, -1)})


def test_two_apps_with_brokers_of_their_own_share_a_redis_and_get_their_own_back(
    tmp_path: Path, redis_server: EmbeddedRedis
) -> None:
    conf = {"resilience_redis_url": redis_server.url}
    with (
        embedded_redis(url="") as one,
        embedded_redis(url="") as two,
        open_stage(tmp_path, redis_server, broker=one.url, conf=conf) as first,
        open_stage(tmp_path, redis_server, broker=two.url, conf=conf) as second,
    ):
        workers = [stage.worker(pool="threads", wait=False) for stage in (first, second)]
        for worker in workers:
            worker.wait_ready()
        sent = [(stage, *stage.script(DOWN, DOWN, DONE)) for _ in range(6) for stage in (first, second)]

        assert [result.get(timeout=15) for _, _, result in sent] == ["done"] * 12
        for stage, worker in zip((first, second), workers, strict=True):
            keys = [key for owner, key, _ in sent if owner is stage]
            assert {run["worker"] for key in keys for run in stage.runs(key)} == {f"{worker.name}@test"}
            assert [stage.attempts(key) for key in keys] == [[1, 2, 3]] * 6
