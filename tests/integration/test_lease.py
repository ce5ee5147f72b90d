"""The visibility heartbeat: whatever a worker holds is delivered to nobody else, however long it takes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_resilience.testing import EmbeddedRedis
from tests.support.stage import Stage, open_stage
from tests.support.waiting import wait_until
from tests.support.workers import Pool

DONE = ["return", "done"]
QUICK_START = ("--without-mingle", "--without-gossip")


@pytest.fixture
def stage(tmp_path: Path, redis_server: EmbeddedRedis) -> Iterator[Stage]:
    with open_stage(tmp_path, redis_server, VISIBILITY_TIMEOUT="1") as stage:
        yield stage


def test_running_prefetched_and_waiting_messages_are_all_kept(stage: Stage) -> None:
    stage.worker(concurrency=1, args=(*QUICK_START, "--prefetch-multiplier", "4"))
    running, first = stage.script(["sleep", 2.5])
    prefetched = [stage.script(DONE) for _ in range(2)]
    waiting, last = stage.script(DONE, countdown=3.5)
    wait_until(lambda: stage.unacked() == 4, 10, "four held messages")
    stage.worker(concurrency=2)

    assert first.get(timeout=20) == "slept"
    assert [result.get(timeout=20) for _, result in prefetched] == ["done", "done"]
    assert last.get(timeout=20) == "done"
    assert [len(stage.runs(key)) for key in (running, waiting, *(key for key, _ in prefetched))] == [1, 1, 1, 1]
    assert {run["redelivered"] for run in stage.runs(waiting) + stage.runs(running)} == {False}
    stage.wait_idle()


def test_the_last_tasks_of_a_warm_shutdown_keep_their_lease(stage: Stage) -> None:
    leaving = stage.worker(concurrency=1)
    key, result = stage.script(["sleep", 3.5])
    stage.wait_runs(key, 1)
    stage.worker(concurrency=1)

    assert leaving.terminate() == 0
    assert result.get(timeout=20) == "slept"
    assert len(stage.runs(key)) == 1


def test_a_short_timeout_needs_none_of_kombus_sweep_options(tmp_path: Path, redis_server: EmbeddedRedis) -> None:
    conf = {"resilience_visibility_timeout_seconds": 2}
    with open_stage(tmp_path, redis_server, conf=conf) as stage:
        doomed = stage.worker(concurrency=1)
        key, result = stage.script(["sleep", 1])
        stage.wait_runs(key, 1)
        doomed.kill()
        stage.worker(concurrency=1)

        assert result.get(timeout=20) == "slept"
        assert [run["attempt"] for run in stage.runs(key)] == [1, 1]
        assert [run["redelivered"] for run in stage.runs(key)] == [False, True]


def test_a_success_costs_no_redis_command_of_ours(tmp_path: Path, redis_server: EmbeddedRedis) -> None:
    conf = {"resilience_schedule_poll_seconds": 10, "task_ignore_result": True}
    with open_stage(tmp_path, redis_server, conf=conf) as stage:
        worker = stage.worker(concurrency=2)
        key, warm_up = stage.key(), stage.key()
        stage.send("flaky", warm_up, 0)
        stage.wait_runs(warm_up, 1)

        def calls(*names: str) -> int:
            stats = stage.record.info("commandstats")
            return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in names)

        worker.freeze()
        for _ in range(200):
            stage.send("flaky", key, 0)
        before = calls("eval", "evalsha", "get")
        worker.thaw()
        stage.wait_runs(key, 200, 30)

        # One script takes a message, or several; the others are the worker's own look at schedule and leases.
        assert calls("eval", "evalsha", "get") - before <= 200 + 10
        assert calls("brpop") == 0


def test_a_reconnected_worker_goes_on_holding(stage: Stage) -> None:
    worker = stage.worker(concurrency=1)
    with stage.server.client() as client:
        client.client_kill_filter(_type="normal", skipme=True)
    wait_until(lambda: worker.log().count("Connected to") == 2, 20, "the second connection")
    key, result = stage.script(["sleep", 2.5])
    stage.wait_runs(key, 1, 30)
    stage.worker(concurrency=1)

    assert result.get(timeout=20) == "slept"
    assert [run["redelivered"] for run in stage.runs(key)] == [False]


@pytest.mark.parametrize("pool", ["gevent", "threads"])
def test_many_that_end_at_once_are_all_acked(tmp_path: Path, redis_server: EmbeddedRedis, pool: Pool) -> None:
    with open_stage(tmp_path, redis_server, conf={"task_ignore_result": True}) as stage:
        key = stage.key()
        for _ in range(300):
            stage.send("flaky", key, 0)
        worker = stage.worker(pool=pool, concurrency=50)
        stage.wait_runs(key, 300, 30)
        stage.wait_idle()

        assert "Couldn't ack" not in worker.log()
        assert len(stage.runs(key)) == 300
