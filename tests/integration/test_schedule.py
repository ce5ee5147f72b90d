"""What waits, waits in Redis and not in a worker: far ETAs, days ahead, through the death of workers."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis.exceptions import RedisError

from celery_resilience.testing import EmbeddedRedis, embedded_redis
from celery_resilience.transport.envelope import Envelope
from tests.support.stage import Stage, open_stage
from tests.support.waiting import wait_until
from tests.support.workers import WorkerProcess

DAYS = 86400
DOWN, DONE = ["raise", "network"], ["return", "done"]


@pytest.fixture
def stage(tmp_path: Path, redis_server: EmbeddedRedis) -> Iterator[Stage]:
    with open_stage(tmp_path, redis_server) as stage:
        yield stage


def in_memory(stage: Stage, worker: WorkerProcess) -> list[Any]:
    """Give the messages that a worker keeps in its memory until their ETA."""
    answer = stage.app.control.inspect([f"{worker.name}@test"], timeout=3).scheduled()
    return list(answer[f"{worker.name}@test"])


def test_a_task_two_days_ahead_waits_outside_of_worker_memory_and_survives_a_kill(stage: Stage) -> None:
    first = stage.worker()
    far = [stage.send("script", stage.key(), DONE, countdown=2 * DAYS) for _ in range(20)]
    wait_until(lambda: stage.schedule.count() == 20 and not stage.unacked(), 10, "all twenty in the schedule")
    kept = in_memory(stage, first)
    first.kill()
    second = stage.worker()
    rows = stage.schedule.find()

    assert kept == in_memory(stage, second) == []
    assert {row.task_id for row in rows} == {result.id for result in far}
    assert all(abs(row.due_at - time.time() - 2 * DAYS) < 60 for row in rows)
    assert {row.kind for row in rows} == {"eta"}
    assert stage.record.llen("resilient") == 0


def test_an_eta_within_a_minute_is_left_to_celery(stage: Stage) -> None:
    worker = stage.worker()
    near = stage.send("script", stage.key(), DONE, countdown=40)
    wait_until(lambda: in_memory(stage, worker), 10, "the message in the worker's memory")

    assert [entry["request"]["id"] for entry in in_memory(stage, worker)] == [near.id]
    assert stage.schedule.count() == 0


def test_a_far_message_runs_once_at_its_time_with_everything_it_came_with(
    tmp_path: Path, redis_server: EmbeddedRedis
) -> None:
    with open_stage(tmp_path, redis_server, app="tests.apps.impatient") as stage:
        first = stage.worker()
        began = time.time()
        key, result = stage.script(DOWN, DONE, countdown=3, priority=6, headers={"mine": 1}, time_limit=99)
        wait_until(lambda: stage.schedule.count() == 1 and not stage.unacked(), 10, "the message in the schedule")
        first.kill()
        stage.worker()

        assert result.get(timeout=20) == "done"
        one, two = stage.runs(key)
        assert 2.9 <= one["at"] - began < 10
        assert (one["attempt"], two["attempt"]) == (1, 2)
        assert [run["priority"] for run in (one, two)] == [6, 6]
        assert [run["headers"]["mine"] for run in (one, two)] == [1, 1]
        assert two["timelimit"] == [99, None]
        stage.wait_idle()


def test_a_retry_an_hour_ahead_waits_in_redis_and_survives_a_kill(stage: Stage) -> None:
    first = stage.worker()
    key, result = stage.script(["self.retry", {"countdown": 3600}])
    stage.wait_state(result, "RETRY")
    wait_until(lambda: not stage.unacked(), 10, "the ack")
    kept = in_memory(stage, first)
    first.kill()
    row = stage.schedule.find()[0]

    assert kept == []
    assert stage.schedule.count() == 1
    assert (row.task, row.task_id, row.queue, row.kind, row.attempt) == (
        "resilient.script",
        result.id,
        "resilient",
        "retry",
        2,
    )
    assert stage.attempts(key) == [1]


def test_a_hostile_header_does_not_stop_the_schedule_for_others(stage: Stage) -> None:
    stage.worker()
    hostile = {"task_id": "hostile", "queue": "\ud800"}
    keys = [stage.key() for _ in range(2)]
    stage.app.send_task(
        "resilient.script", (keys[0], DOWN, DONE), task_id="hostile", headers={"resilience": json.dumps(hostile)}
    )
    stage.wait_runs(keys[0], 1)
    stage.send("script", keys[1], DOWN, DOWN, DONE)
    stage.wait_runs(keys[1], 3)
    stage.wait_runs(keys[0], 2)

    assert [run["retries"] for run in stage.runs(keys[0])] == [0, 1]
    assert stage.attempts(keys[1]) == [1, 2, 3]
    stage.wait_idle()


def test_an_entry_whose_queue_no_redis_can_name_holds_back_nobody(stage: Stage) -> None:
    letter = Envelope(b"[]", "application/json", "utf-8", {"id": "hostile"}, {}, "", "resilient")
    stage.schedule.add_attempt(letter, "\ud800", "hostile", 2, 0)
    worker = stage.worker()
    key, result = stage.script(DOWN, DOWN, DONE)

    assert result.get(timeout=15) == "done"
    assert stage.attempts(key) == [1, 2, 3]
    assert [row.task_id for row in stage.schedule.find()] == ["hostile"]
    worker.wait_for_log("resilience-message-unroutable")


def test_a_redis_without_its_file_is_refilled_by_nobody_and_the_worker_goes_on(stage: Stage) -> None:
    stage.worker()
    key, result = stage.script(DOWN, DONE)
    assert result.get(timeout=15) == "done"
    with stage.server.client() as client:
        client.script_flush()
    again, second = stage.script(DOWN, DONE)

    assert second.get(timeout=15) == "done"
    assert stage.attempts(key) == stage.attempts(again) == [1, 2]


def test_a_redis_that_restarts_loses_no_retry(tmp_path: Path) -> None:
    with embedded_redis(url="", appendonly=True) as server, open_stage(tmp_path, server) as stage:
        stage.worker()
        key, result = stage.script(DOWN, DOWN, DONE, resilience={"base_seconds": 1.5})
        wait_until(lambda: stage.schedule.count() == 1 and not stage.unacked(), 10, "the retry in the schedule")
        server.kill()
        server.start()

        wait_until(lambda: _is(stage, key, [1, 2, 3]), 40, "three attempts")
        wait_until(lambda: _state(result) == "SUCCESS", 20, "success")


def _is(stage: Stage, key: str, attempts: list[int]) -> bool:
    try:
        return stage.attempts(key) == attempts
    except RedisError:
        return False


def _state(result: Any) -> str:
    try:
        return str(result.state)
    except (RedisError, OSError):
        return "unknown"


@pytest.mark.parametrize("address", ["tcp", "socket"])
def test_prefixes_own_key_names_and_unix_sockets_are_respected(
    tmp_path: Path, redis_server: EmbeddedRedis, address: str
) -> None:
    path = redis_server.socket_url.removeprefix("unix://").partition("?")[0]
    broker = f"redis+socket://{path}?virtual_host=2" if address == "socket" else redis_server.url[:-1] + "2"
    options = {
        "global_keyprefix": "shop:",
        "unacked_key": "held",
        "unacked_index_key": "held_index",
        "unacked_mutex_key": "held_mutex",
        "visibility_timeout": 1,
    }
    with (
        open_stage(tmp_path, redis_server, broker=broker, conf={"broker_transport_options": options}) as stage,
        redis_server.client(decode_responses=True) as client,
    ):
        client.select(2)
        stage.worker(pool="threads")
        stage.worker(pool="threads")
        long, sleeping = stage.script(["sleep", 2.5])
        parked, _ = stage.script(["self.retry", {"countdown": 3600}])
        key, result = stage.script(DOWN, DOWN, DONE, priority=3)

        assert result.get(timeout=15) == "done"
        wait_until(lambda: client.zcard("shop:held_index") == 1, 5, "one held message")
        assert sleeping.get(timeout=15) == "slept"
        assert (stage.attempts(key), stage.attempts(long)) == ([1, 2, 3], [1])
        assert len(stage.wait_runs(parked, 1)) == 1
        assert client.zcard("shop:resilience:{schedule:redis}:due") == 1
        assert [name for name in client.keys("*") if not name.startswith("shop:")] == []
