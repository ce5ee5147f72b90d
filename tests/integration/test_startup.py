"""A worker that cannot work does not start, and says which field, value and bound, and what to write instead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from celery_resilience.testing import EmbeddedRedis, embedded_redis
from tests.support.rabbitmq import RabbitMQ
from tests.support.stage import open_stage
from tests.support.waiting import wait_until
from tests.support.workers import WorkerFactory


def refused_start(worker: WorkerFactory, server: EmbeddedRedis, app: str, **env: str) -> str:
    """Start a worker that must not come up; gives what it said."""
    process = worker(app, env={"BROKER_URL": server.url, **env}, wait=False)
    wait_until(lambda: not process.is_alive, 20, lambda: f"the worker to give up:\n{process.log()[-2000:]}")
    assert process._process.returncode != 0
    assert " ready." not in process.log()
    return process.log()


@pytest.mark.parametrize(
    ("conf", "words"),
    [
        ({"resilience_retry_polcy": 1}, ["resilience_retry_polcy=1", "Did you mean 'resilience_retry_policy'?"]),
        ({"resilience_deadline_seconds": -5}, ["resilience_deadline_seconds=-5", "from 0.001 to", "Give a number"]),
        (
            {"resilience_redis_url": "http://x"},
            ["resilience_redis_url", "http://x", "is not a Redis URL", "Use one of"],
        ),
    ],
)
def test_a_wrong_setting_stops_the_worker(
    worker: WorkerFactory, redis_server: EmbeddedRedis, conf: dict[str, Any], words: list[str]
) -> None:
    said = refused_start(worker, redis_server, "tests.apps.resilient", CONF=json.dumps(conf))

    assert all(word in said for word in words), said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"deadline": 5}, ["wrong.work", "deadline=5", "Did you mean 'deadline_seconds'?"]),
        ({"deadline_seconds": -5}, ["wrong.work", "deadline_seconds=-5", "from 0.001 to", "Give a number"]),
        ({"policy": {"base_seconds": -1}}, ["base_seconds=-1", "from 0 to"]),
        ({"policy": {"base_seconds": 9, "cap_seconds": 3}}, ["cap_seconds=3", "base_seconds=9", "Raise cap_seconds"]),
        ({"autoretry_for": 1}, ["wrong.work", "autoretry_for", "ConnectionError", "retry_policy=RetryPolicy("]),
    ],
)
def test_a_wrong_option_stops_the_worker(
    worker: WorkerFactory, redis_server: EmbeddedRedis, options: dict[str, Any], words: list[str]
) -> None:
    said = refused_start(worker, redis_server, "tests.apps.wrong", OPTIONS=json.dumps(options))

    assert all(word in said for word in words), said


@pytest.mark.parametrize(
    ("appendonly", "policy", "warnings"),
    [
        (True, "noeviction", []),
        (False, "noeviction", ["appendonly yes"]),
        (True, "allkeys-lru", ["maxmemory-policy allkeys-lru", "maxmemory-policy noeviction"]),
    ],
)
def test_a_redis_that_may_forget_is_warned_of(
    tmp_path: Path, appendonly: bool, policy: str, warnings: list[str]
) -> None:
    with (
        embedded_redis(url="", appendonly=appendonly, maxmemory_policy=policy) as server,
        open_stage(tmp_path, server) as stage,
    ):
        log = stage.worker(concurrency=1).log()

    assert log.count("resilience-schedule-endangered") == min(1, len(warnings))
    assert all(warning in log for warning in warnings)


def test_one_setting_applies_the_brokers_options(tmp_path: Path, redis_server: EmbeddedRedis) -> None:
    conf = {"resilience_visibility_timeout_seconds": 45, "broker_transport_options": {"max_connections": 30}}
    with open_stage(tmp_path, redis_server, conf=conf) as stage:
        name = f"{stage.worker(concurrency=1).name}@test"
        stats = stage.app.control.inspect([name], timeout=5).stats()[name]

    assert stats["broker"]["transport_options"] == {"max_connections": 30, "visibility_timeout": 45}


def test_a_redis_that_is_away_at_the_start_does_not_stop_the_worker(
    tmp_path: Path, redis_server: EmbeddedRedis
) -> None:
    conf = {"resilience_redis_url": "redis://127.0.0.1:1/0"}
    with open_stage(tmp_path, redis_server, conf=conf) as stage:
        worker = stage.worker(concurrency=1)
        key, result = stage.script(["return", "done"])

        assert result.get(timeout=15) == "done"
        assert "resilience-store-lost" in worker.log()
        assert stage.attempts(key) == [1]


def test_without_any_redis_the_worker_says_what_that_means(worker: WorkerFactory, rabbitmq: RabbitMQ) -> None:
    process = worker("tests.apps.resilient", env={"BROKER_URL": rabbitmq.url}, queues=["startup"], concurrency=1)

    assert "resilience-redis-missed" in process.log()
    assert "resilience_redis_url" in process.log()
