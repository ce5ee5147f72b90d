"""A broker behind Sentinel: tasks are retried, and go on when another server becomes the master."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from celery_resilience.testing import EmbeddedRedis, embedded_redis
from celery_resilience.testing.processes import end, spawn
from celery_resilience.testing.servers import find_server
from tests.support.stage import Stage, open_stage
from tests.support.waiting import wait_until

DOWN, DONE = ["raise", "network"], ["return", "done"]


@contextlib.contextmanager
def sentinel_of(master: EmbeddedRedis, directory: Path) -> Iterator[redis.Redis]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    conf = directory / "sentinel.conf"
    conf.write_text(
        f"port {port}\nbind 127.0.0.1\ndir {directory}\n"
        f"sentinel monitor shop 127.0.0.1 {master.port} 1\n"
        "sentinel down-after-milliseconds shop 1000\nsentinel failover-timeout shop 5000\n"
    )
    process = spawn([str(find_server()), str(conf), "--sentinel"], log=directory / "sentinel.log")
    try:
        with contextlib.closing(redis.Redis(port=port, decode_responses=True)) as client:
            wait_until(lambda: _answers(client), 20, (directory / "sentinel.log").read_text)
            yield client
    finally:
        end(process, limit_seconds=5)


def _answers(client: redis.Redis) -> bool:
    with contextlib.suppress(redis.ConnectionError):
        return bool(client.ping())
    return False


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[tuple[Stage, EmbeddedRedis, redis.Redis]]:
    with contextlib.ExitStack() as stack:
        record, master, replica = (stack.enter_context(embedded_redis(url="")) for _ in range(3))
        replica.client().replicaof("127.0.0.1", master.port)
        sentinel = stack.enter_context(sentinel_of(master, tmp_path))
        wait_until(lambda: _facts(sentinel)["num-slaves"] == 1, 30, "the sentinel to know the replica")
        url = f"sentinel://127.0.0.1:{sentinel.connection_pool.connection_kwargs['port']}/0"
        conf = {"broker_transport_options": {"master_name": "shop", "visibility_timeout": 4}}
        yield stack.enter_context(open_stage(tmp_path, record, broker=url, conf=conf)), master, sentinel


def _facts(sentinel: redis.Redis) -> dict[str, Any]:
    return dict(sentinel.sentinel_master("shop"))


def test_retries_and_the_fetch_in_one_step_go_through_a_failover(
    stage: tuple[Stage, EmbeddedRedis, redis.Redis],
) -> None:
    scene, master, sentinel = stage
    worker = scene.worker(concurrency=1)
    key, result = scene.script(DOWN, DONE)

    assert result.get(timeout=20) == "done"
    assert scene.attempts(key) == [1, 2]
    assert master.client().info("commandstats").get("cmdstat_brpop") is None
    assert "fetch-degraded" not in worker.log()

    master.kill()
    wait_until(lambda: _facts(sentinel)["port"] != master.port, 30, "another master")
    wait_until(lambda: worker.log().count("Connected to") >= 2, 60, worker.log)
    key, result = scene.script(DOWN, DONE)

    assert result.get(timeout=40) == "done"
    assert scene.attempts(key) == [1, 2]
