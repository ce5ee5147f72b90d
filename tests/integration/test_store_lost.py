"""The schedule's Redis is away while the broker is not: bodies go on undisturbed, messages go back, all heals."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from celery_resilience.testing import EmbeddedRedis, embedded_redis
from tests.support.rabbitmq import RabbitMQ
from tests.support.stage import Stage, open_stage
from tests.support.waiting import wait_until

DOWN, DONE = ["raise", "network"], ["return", "done"]
COOLDOWN = 2.0


@pytest.fixture
def store() -> Iterator[EmbeddedRedis]:
    """The Redis of the schedule alone."""
    with embedded_redis(url="") as server:
        yield server


def open_apart(tmp_path: Path, server: EmbeddedRedis, store: EmbeddedRedis, rabbitmq: RabbitMQ, **conf: Any) -> Any:
    """Open a stage of three servers: RabbitMQ, a Redis for results and record, a Redis for the schedule."""
    app = conf.pop("app", "tests.apps.resilient")
    settings = {
        "task_default_queue": f"lost{uuid.uuid4().hex[:8]}",
        "resilience_redis_url": store.url,
        "resilience_store_cooldown_seconds": COOLDOWN,
        "resilience_requeue_pause_seconds": 0.2,
        **conf,
    }
    return open_stage(tmp_path, server, broker=rabbitmq.url, conf=settings, app=app)


@pytest.fixture
def stage(tmp_path: Path, redis_server: EmbeddedRedis, store: EmbeddedRedis, rabbitmq: RabbitMQ) -> Iterator[Stage]:
    with open_apart(tmp_path, redis_server, store, rabbitmq) as stage:
        yield stage


def test_a_store_that_hangs_disturbs_no_body_and_heals(stage: Stage, store: EmbeddedRedis) -> None:
    worker = stage.worker(concurrency=2)
    warm, ok = stage.script(DOWN, DONE)
    assert ok.get(timeout=15) == "done"
    store.pause()
    try:
        key, result = stage.script(DOWN, DONE)
        runs = stage.wait_runs(key, 3)
        undisturbed = [stage.script(DONE)[1].get(timeout=5) for _ in range(3)]
        worker.wait_for_log("resilience-attempt-not-stored")
    finally:
        store.resume()

    assert undisturbed == ["done"] * 3
    assert {run["attempt"] for run in runs} == {1}
    assert [run["redelivered"] for run in runs[:3]] == [False, True, True]
    assert result.get(timeout=20) == "done"
    assert stage.attempts(key)[-1] == 2
    assert stage.attempts(key).count(2) == 1
    assert stage.attempts(warm) == [1, 2]


def test_a_store_that_hangs_costs_a_quarter_second_once_per_cool_down(
    tmp_path: Path, redis_server: EmbeddedRedis, store: EmbeddedRedis, rabbitmq: RabbitMQ
) -> None:
    conf = {"resilience_requeue_pause_seconds": 0, "resilience_store_cooldown_seconds": 30}
    with open_apart(tmp_path, redis_server, store, rabbitmq, **conf) as stage:
        stage.worker(concurrency=1)
        store.pause()
        try:
            key, result = stage.script(DOWN, DONE)
            runs = stage.wait_runs(key, 30)
        finally:
            store.resume()
        stage.app.control.revoke(result.id)
        stage.wait_state(result, "REVOKED")

    gaps = [later["at"] - earlier["at"] for earlier, later in pairwise(runs)]
    assert gaps[0] < 0.25 + 0.1  # the tenth of a second is for the way through the broker
    assert sum(gap > 0.1 for gap in gaps) <= 2
    assert sorted(gaps)[len(gaps) // 2] < 0.05


def test_a_message_that_goes_back_does_so_with_a_pause(
    tmp_path: Path, redis_server: EmbeddedRedis, store: EmbeddedRedis, rabbitmq: RabbitMQ
) -> None:
    with open_apart(tmp_path, redis_server, store, rabbitmq, resilience_requeue_pause_seconds=1) as stage:
        stage.worker(concurrency=1)
        store.kill()
        key, result = stage.script(DOWN, DONE)
        runs = stage.wait_runs(key, 3)
        store.start()

        assert result.get(timeout=20) == "done"
        assert all(later["at"] - earlier["at"] >= 0.5 for earlier, later in pairwise(runs))
        assert stage.attempts(key)[-1] == 2


def test_the_bodys_own_retry_goes_back_too_and_is_not_lost(stage: Stage, store: EmbeddedRedis) -> None:
    stage.worker(concurrency=1)
    store.kill()
    key, result = stage.script(["self.retry", {"countdown": 0.1}], DONE)
    stage.wait_runs(key, 2)
    store.start()

    assert result.get(timeout=20) == "done"
    assert stage.attempts(key)[-1] == 2
    assert stage.attempts(key).count(2) == 1


def test_a_message_acked_early_cannot_go_back_and_ends_in_its_own_error(stage: Stage, store: EmbeddedRedis) -> None:
    stage.worker(concurrency=1)
    store.kill()
    key, result = stage.script(DOWN, DONE, task="early")

    with pytest.raises(ConnectionError, match="down"):
        result.get(timeout=20)
    assert stage.attempts(key) == [1]
    store.start()


def test_a_full_store_loses_nothing(stage: Stage, store: EmbeddedRedis) -> None:
    stage.worker(concurrency=1)
    with store.client() as client:
        client.config_set("maxmemory", "1mb")
        key, result = stage.script(DOWN, DONE)
        stage.wait_runs(key, 2)
        client.config_set("maxmemory", "0")

    assert result.get(timeout=20) == "done"
    assert set(stage.attempts(key)[:-1]) == {1}
    assert stage.attempts(key)[-1] == 2


def test_a_far_eta_stays_with_celery_while_the_store_is_away(
    tmp_path: Path, redis_server: EmbeddedRedis, store: EmbeddedRedis, rabbitmq: RabbitMQ
) -> None:
    with open_apart(tmp_path, redis_server, store, rabbitmq, app="tests.apps.impatient") as stage:
        worker = stage.worker(concurrency=1)
        store.kill()
        key, result = stage.script(DONE, countdown=2)
        worker.wait_for_log("resilience-eta-kept")

        assert result.get(timeout=20) == "done"
        assert stage.attempts(key) == [1]
        store.start()


def test_what_waits_comes_out_once_the_store_is_back(stage: Stage) -> None:
    """Redis away between storing and the due time: the scheduler goes on by itself."""
    with embedded_redis(url="", appendonly=True) as durable, open_durable(stage, durable) as apart:
        apart.worker(concurrency=1)
        key, result = apart.script(DOWN, DONE, resilience={"base_seconds": 1.0})
        wait_until(lambda: apart.schedule.count() == 1, 10, "the retry in the schedule")
        durable.kill()
        durable.start()

        assert result.get(timeout=20) == "done"
        assert apart.attempts(key) == [1, 2]


def open_durable(stage: Stage, durable: EmbeddedRedis) -> Any:
    conf = {
        "task_default_queue": f"lost{uuid.uuid4().hex[:8]}",
        "resilience_redis_url": durable.url,
        "resilience_store_cooldown_seconds": 0.3,
    }
    directory = stage._factory._log_dir
    return open_stage(directory, stage.server, broker=stage.env["BROKER_URL"], conf=conf)


def test_a_full_broker_that_is_also_the_schedule_loses_nothing(tmp_path: Path, redis_server: EmbeddedRedis) -> None:
    """Everything in one Redis that is full: neither the retry nor the way back fits."""
    with (
        embedded_redis(url="") as broker,
        open_stage(tmp_path, redis_server, broker=broker.url, VISIBILITY_TIMEOUT="2") as stage,
        broker.client() as client,
    ):
        worker = stage.worker(concurrency=3)
        failing = [stage.script(["sleep, raise", [1.0, "network"]], DONE) for _ in range(3)]
        for key, _ in failing:
            stage.wait_runs(key, 1)
        client.config_set("maxmemory", "1mb")
        worker.wait_for_log("resilience-attempt-not-stored")
        wait_until(lambda: worker.log().count("resilience-attempt-not-stored") == 3, 10, "three refusals")
        client.config_set("maxmemory", "0")
        stage.worker(concurrency=3)

        for key, result in failing:
            assert result.get(timeout=40) == "done"
            assert stage.attempts(key)[-1] == 2
