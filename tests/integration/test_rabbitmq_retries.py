"""Retries with RabbitMQ as the broker: through the schedule, by native delay, or by ETA where there is no Redis."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kombu
import pytest

from celery_resilience.testing import EmbeddedRedis
from celery_resilience.transport.queues import native_delay_note
from tests.support.rabbitmq import RabbitMQ
from tests.support.stage import Stage, open_stage
from tests.support.waiting import wait_until

DOWN, DONE = ["raise", "network"], ["return", "done"]


def own_queue(**more: Any) -> dict[str, Any]:
    """Describe a queue that no other test uses."""
    name = f"q{uuid.uuid4().hex[:8]}"
    return {"name": name, "exchange": name, "routing_key": name, **more}


def open_on(
    tmp_path: Path, server: EmbeddedRedis, rabbitmq: RabbitMQ, queue: dict[str, Any], conf: Any = None, **options: Any
) -> Any:
    """Open a stage whose broker is RabbitMQ with one queue."""
    settings = {
        "task_default_queue": queue["name"],
        "task_default_exchange": queue["exchange"],
        "task_default_exchange_type": queue.get("type", "direct"),
        "task_default_routing_key": queue["routing_key"],
        **(conf or {}),
    }
    return open_stage(tmp_path, server, broker=rabbitmq.url, conf=settings, QUEUES=json.dumps([queue]), **options)


@pytest.fixture
def stage(tmp_path: Path, redis_server: EmbeddedRedis, rabbitmq: RabbitMQ) -> Iterator[Stage]:
    """RabbitMQ with a classic queue of priorities; the schedule is in the Redis of the results."""
    queue = own_queue(arguments={"x-max-priority": 10})
    with open_on(tmp_path, redis_server, rabbitmq, queue) as stage:
        yield stage


def test_a_delayed_retry_waits_in_the_schedule_with_everything_it_came_with(stage: Stage) -> None:
    stage.worker()
    key, result = stage.script(
        DOWN, DOWN, DONE, priority=6, headers={"mine": [1]}, time_limit=90, resilience={"base_seconds": 0.6}
    )
    wait_until(lambda: stage.schedule.count() == 1, 10, "the retry in the schedule")
    stage.wait_state(result, "RETRY")

    assert result.get(timeout=15) == "done"
    runs = stage.runs(key)
    assert [run["attempt"] for run in runs] == [1, 2, 3]
    assert [(run["priority"], run["headers"]["mine"], run["timelimit"]) for run in runs] == [(6, [1], [90, None])] * 3
    assert [run["redelivered"] for run in runs] == [False] * 3
    assert stage.schedule.count() == 0


def test_a_users_far_eta_and_the_bodys_own_retry_wait_in_the_schedule(stage: Stage) -> None:
    stage.worker()
    stage.script(DONE, countdown=7200, task_id="far")
    key, _ = stage.script(["self.retry", {"countdown": 3600}], task_id="asked")
    wait_until(lambda: stage.schedule.count() == 2, 10, "both in the schedule")

    assert [(row.task_id, row.kind) for row in stage.schedule.find()] == [("asked", "retry"), ("far", "eta")]
    assert stage.attempts(key) == [1]


def test_changed_arguments_travel_through_the_schedule(stage: Stage) -> None:
    stage.worker()
    key = stage.key()
    result = stage.send(
        "script", key, ["self.retry", {"args": [key, DOWN, DOWN, DONE], "kwargs": {"new": 1}, "countdown": 0.1}]
    )

    assert result.get(timeout=15) == "done"
    assert [run["kwargs"] for run in stage.runs(key)] == [{}, {"new": 1}, {"new": 1}]


def test_compressed_and_expiring_messages_are_retried(stage: Stage) -> None:
    stage.worker()
    pad = {"pad": "x" * 5000}
    sent = [stage.script(DOWN, DONE, kwargs=pad, **each) for each in ({"compression": "zlib"}, {"expires": 60})]

    assert [result.get(timeout=15) for _, result in sent] == ["done"] * 2
    for key, _ in sent:
        first, second = stage.runs(key)
        assert (first["attempt"], second["attempt"]) == (1, 2)
        assert first["kwargs"] == second["kwargs"] == pad
        assert first["expires"] == second["expires"]
    assert stage.schedule.count() == 0


def test_messages_that_share_a_task_id_are_all_retried(stage: Stage) -> None:
    stage.worker()
    keys = [stage.script(DOWN, DONE, task_id="order-17")[0] for _ in range(2)]
    for key in keys:
        stage.wait_runs(key, 2)
    keys.append(stage.script(DOWN, DONE, task_id="order-17")[0])  # after the others have ended
    stage.wait_runs(keys[-1], 2)

    assert [stage.attempts(key) for key in keys] == [[1, 2]] * 3
    assert stage.schedule.count() == 0


def test_delays_below_a_second_wait_in_the_schedule_even_for_a_quorum_queue_and_others_round_up(
    tmp_path: Path, redis_server: EmbeddedRedis, rabbitmq: RabbitMQ
) -> None:
    queue = own_queue(type="topic", arguments={"x-queue-type": "quorum"})
    with open_on(tmp_path, redis_server, rabbitmq, queue) as stage:
        stage.worker(concurrency=4)
        long, native = stage.script(DOWN, DONE, resilience={"base_seconds": 2.5})
        stage.wait_state(native, "RETRY")
        waiting = stage.schedule.count()
        short = [stage.script(DOWN, DONE, resilience={"base_seconds": seconds}) for seconds in (0.05, 0.5, 0.95)]
        wait_until(lambda: stage.schedule.count() == 1, 10, "the longest of the short ones in the schedule")

        assert waiting == 0
        assert [result.get(timeout=15) for _, result in short] == ["done"] * 3
        assert native.get(timeout=20) == "done"
        first, second = stage.runs(long)
        assert 2.9 <= second["at"] - first["at"] < 8
        for key, _ in short:
            assert stage.attempts(key) == [1, 2]


def test_a_quorum_queue_of_a_topic_exchange_delays_natively(
    tmp_path: Path, redis_server: EmbeddedRedis, rabbitmq: RabbitMQ
) -> None:
    queue = own_queue(type="topic", arguments={"x-queue-type": "quorum"})
    with open_on(tmp_path, redis_server, rabbitmq, queue) as stage:
        worker = stage.worker()
        key, result = stage.script(DOWN, DOWN, DONE, headers={"mine": 1}, resilience={"base_seconds": 1.0})
        stage.wait_state(result, "RETRY")
        waiting = stage.schedule.count()

        assert result.get(timeout=20) == "done"
        assert waiting == 0
        assert stage.attempts(key) == [1, 2, 3]
        assert [run["headers"]["mine"] for run in stage.runs(key)] == [1, 1, 1]
        first, second, _ = stage.runs(key)
        assert 0.9 <= second["at"] - first["at"] < 6
        assert f"RabbitMQ's native delay for {queue['name']}" in native_delay_note(stage.app, "amqp")
        assert "CRITICAL" not in worker.log()


def test_a_quorum_queue_of_a_direct_exchange_goes_through_the_schedule(
    tmp_path: Path, redis_server: EmbeddedRedis, rabbitmq: RabbitMQ
) -> None:
    queue = own_queue(arguments={"x-queue-type": "quorum"})
    with open_on(tmp_path, redis_server, rabbitmq, queue) as stage:
        stage.worker()
        key, result = stage.script(DOWN, DONE, resilience={"base_seconds": 1.0})
        wait_until(lambda: stage.schedule.count() == 1, 10, "the retry in the schedule")

        assert result.get(timeout=20) == "done"
        assert stage.attempts(key) == [1, 2]


def test_without_any_redis_retries_go_by_eta(tmp_path: Path, redis_server: EmbeddedRedis, rabbitmq: RabbitMQ) -> None:
    with open_on(tmp_path, redis_server, rabbitmq, own_queue(), results="rpc://") as stage:
        stage.worker()
        began = time.time()
        key, result = stage.script(DOWN, DOWN, ["self.retry", {"countdown": 0.3}], DONE, headers={"mine": 1})

        assert result.get(timeout=20) == "done"
        runs = stage.runs(key)
        assert [run["attempt"] for run in runs] == [1, 2, 3, 4]
        assert [run["headers"]["mine"] for run in runs] == [1] * 4
        assert runs[-1]["at"] - began >= 0.5
        assert redis_server.client().keys("*schedule*") == []


def test_without_any_redis_the_options_of_a_call_hold_through_all_attempts(
    tmp_path: Path, redis_server: EmbeddedRedis, rabbitmq: RabbitMQ
) -> None:
    with open_on(tmp_path, redis_server, rabbitmq, own_queue(), results="rpc://") as stage:
        stage.worker()
        key, result = stage.script(DOWN, resilience={"max_attempts": 3})

        with pytest.raises(ConnectionError):
            result.get(timeout=20)
        assert stage.attempts(key) == [1, 2, 3]


def test_a_message_whose_queue_is_gone_stays_in_the_schedule(
    tmp_path: Path, redis_server: EmbeddedRedis, rabbitmq: RabbitMQ
) -> None:
    queue, other = own_queue(), f"other{uuid.uuid4().hex[:8]}"
    with open_on(tmp_path, redis_server, rabbitmq, queue) as stage:
        first = stage.worker()
        key, _ = stage.script(["self.retry", {"countdown": 3600}], DONE)
        wait_until(lambda: stage.schedule.count() == 1, 10, "the retry in the schedule")
        first.terminate()
        with kombu.Connection(rabbitmq.url) as connection:
            kombu.Queue(queue["name"], channel=connection.channel()).delete()
        lonely = {"task_default_queue": other, "task_default_exchange": other, "task_default_routing_key": other}
        second = stage.worker(queues=[other], env={"CONF": json.dumps(lonely), "QUEUES": "[]"})
        due, _ = stage.schedule._keys
        stage.record.zadd(due, {member: 0 for member in stage.record.zrange(due, 0, -1)})  # its time has come
        second.wait_for_log("resilience-message-unroutable")

        assert stage.schedule.count() == 1
        assert stage.attempts(key) == [1]


def test_an_exchange_that_leads_to_several_queues_is_published_to_again(
    tmp_path: Path, redis_server: EmbeddedRedis, rabbitmq: RabbitMQ
) -> None:
    queue = own_queue(type="fanout")
    with open_on(tmp_path, redis_server, rabbitmq, queue) as stage:
        stage.worker()
        key, result = stage.script(DOWN, DONE)

        assert result.get(timeout=20) == "done"
        assert stage.attempts(key) == [1, 2]
