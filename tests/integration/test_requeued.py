"""Requeued messages: of two copies one runs, a redelivered one runs again, and none runs unasked."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_resilience import runtime_of
from celery_resilience.attempts import HEADER, Attempts
from celery_resilience.deadletter.filters import LetterFilter
from celery_resilience.testing import EmbeddedRedis, embedded_redis
from tests.support.letterbox import options
from tests.support.rabbitmq import RabbitMQ
from tests.support.stage import Stage, open_stage
from tests.support.waiting import wait_until

DOWN, DONE = ["raise", "network"], ["return", "done"]


@pytest.fixture
def store() -> Iterator[EmbeddedRedis]:
    with embedded_redis(url="") as server:
        yield server


@pytest.fixture
def stage(tmp_path: Path, redis_server: EmbeddedRedis, store: EmbeddedRedis, rabbitmq: RabbitMQ) -> Iterator[Stage]:
    """RabbitMQ as the broker, and a Redis for the shared state that can be stopped by itself."""
    name = f"q{uuid.uuid4().hex[:8]}"
    conf = {
        "task_default_queue": name,
        "resilience_dlq_queue": f"{name}.dlq",
        "resilience_redis_url": store.url,
        "resilience_store_cooldown_seconds": 0.3,
        "resilience_requeue_pause_seconds": 0.2,
        "resilience_database_url": f"sqlite:///{tmp_path}/letters.db",
        "resilience_dlq_collect": True,
    }
    queues = json.dumps([{"name": name}])
    with open_stage(tmp_path, redis_server, broker=rabbitmq.url, conf=conf, QUEUES=queues, **options()) as stage:
        yield stage


def send(stage: Stage, key: str, nonce: str, *steps: list[object], task: str = "script") -> str:
    """Send a message as a requeue does, and give its task id."""
    task_id = f"task-{key}"
    attempts = Attempts(task_id=task_id, attempt=2, generation=1, requeue=f"letter-{key}:{nonce}", lineage=f"l-{key}")
    stage.send(task, key, *steps, task_id=task_id, headers={HEADER: attempts.to_header()})
    return task_id


def test_a_first_delivery_that_succeeds_asks_nobody(stage: Stage, store: EmbeddedRedis) -> None:
    worker = stage.worker()
    store.pause()

    assert [stage.send("echo", n).get(timeout=10) for n in range(20)] == [[[n], {}] for n in range(20)]
    assert not [line for line in worker.log().splitlines() if "ForkPoolWorker" in line and "resilience-" in line]


def test_of_two_copies_one_runs(stage: Stage) -> None:
    worker, key = stage.worker(), stage.key()
    for nonce in ("a", "b", "c"):
        send(stage, key, nonce, DONE)
    wait_until(lambda: worker.log().count("resilience-delivery-duplicated") == 2, 10, "two copies acked unrun")

    assert len(stage.runs(key)) == 1


def test_retries_keep_the_nonce_and_run(stage: Stage) -> None:
    stage.worker()
    key = stage.key()
    task_id = send(stage, key, "a", DOWN, DOWN, DONE)

    assert stage.app.AsyncResult(task_id).get(timeout=10) == "done"
    assert stage.attempts(key) == [2, 3, 4]


def test_a_redelivered_one_runs_again(stage: Stage) -> None:
    doomed, key = stage.worker(), stage.key()
    send(stage, key, "a", task="linger")
    stage.wait_runs(key, 1)
    doomed.kill()
    stage.worker()

    stage.wait_runs(key, 2)


def test_unasked_it_goes_back_with_a_pause(stage: Stage, store: EmbeddedRedis) -> None:
    worker, key = stage.worker(), stage.key()
    store.pause()
    task_id = send(stage, key, "a", DONE)
    worker.wait_for_log(f"resilience-redelivery-unchecked task_id={task_id}")
    assert not stage.runs(key)
    store.resume()

    assert stage.app.AsyncResult(task_id).get(timeout=20) == "done"
    assert len(stage.runs(key)) == 1


def test_the_desk_sends_a_letter_back_through_rabbitmq(stage: Stage) -> None:
    stage.worker()
    desk, key = runtime_of(stage.app).desk, stage.key()
    result = stage.send("member", key, 10)
    (letter,) = wait_until(lambda: desk.find(LetterFilter(text=result.id)), 20, "the letter")
    stage.record.set(f"allowed:{key}", 1)
    assert desk.requeue(letter.id).done == 1

    wait_until(lambda: len(stage.runs(key)) == 2, 10, "the second run")
    stage.wait_state(result, "SUCCESS")
