"""A task that takes its worker along starts exactly three times; what only stood beside it is not blamed."""

from __future__ import annotations

import json
import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_resilience.testing import EmbeddedRedis
from tests.support.letterbox import LetterBox, options
from tests.support.rabbitmq import RabbitMQ
from tests.support.stage import Stage, open_stage
from tests.support.waiting import wait_until
from tests.support.workers import QUICK_START


def on_redis(tmp_path: Path, server: EmbeddedRedis, **conf: Any) -> Any:
    return open_stage(tmp_path, server, VISIBILITY_TIMEOUT="2", conf=conf, **options())


def on_rabbitmq(tmp_path: Path, server: EmbeddedRedis, rabbitmq: RabbitMQ, **arguments: Any) -> Any:
    name = f"q{uuid.uuid4().hex[:8]}"
    conf = {"task_default_queue": name, "resilience_dlq_queue": f"{name}.dlq"}
    queues = json.dumps([{"name": name, "arguments": arguments or None}])
    return open_stage(tmp_path, server, broker=rabbitmq.url, conf=conf, QUEUES=queues, **options())


@pytest.fixture(params=["redis", "classic", "quorum"])
def stage(request: pytest.FixtureRequest, tmp_path: Path, redis_server: EmbeddedRedis) -> Iterator[Stage]:
    if request.param == "redis":
        opened = on_redis(tmp_path, redis_server)
    else:
        arguments = {"x-queue-type": "quorum"} if request.param == "quorum" else {}
        opened = on_rabbitmq(tmp_path, redis_server, request.getfixturevalue("rabbitmq"), **arguments)
    with opened as stage:
        yield stage


@pytest.mark.timeout(120)
def test_a_task_whose_whole_worker_is_killed_each_time_starts_three_times(stage: Stage) -> None:
    key, box = stage.key(), LetterBox(stage)
    result = stage.send("linger", key)
    for start in range(1, 4):
        worker = stage.worker(concurrency=1)
        stage.wait_runs(key, start)
        worker.kill()
    stage.worker(concurrency=1)

    letter = box.of(result.id)
    assert str(letter.reason) == "poison"
    assert len(stage.runs(key)) == 3
    stage.wait_state(result, "FAILURE")
    assert not stage.record.keys("*starts*")


@pytest.mark.timeout(120)
def test_deaths_of_the_child_and_of_the_whole_worker_are_counted_together(stage: Stage) -> None:
    key, box = stage.key(), LetterBox(stage)
    result = stage.send("linger", key)
    worker = stage.worker(concurrency=1)
    stage.wait_runs(key, 1)
    os.kill(stage.runs(key)[0], signal.SIGKILL)
    stage.wait_runs(key, 2)
    worker.kill()
    stage.worker(concurrency=1)
    stage.wait_runs(key, 3)
    os.kill(stage.runs(key)[2], signal.SIGKILL)

    assert str(box.of(result.id).reason) == "poison"
    assert len(stage.runs(key)) == 3


@pytest.mark.timeout(120)
def test_what_was_only_prefetched_beside_a_killer_is_not_blamed(stage: Stage) -> None:
    killer, keys, box = stage.key(), [stage.key() for _ in range(5)], LetterBox(stage)
    first = stage.send("linger", killer)
    worker = stage.worker(concurrency=1, args=("--prefetch-multiplier", "8", *QUICK_START))
    stage.wait_runs(killer, 1)
    bystanders = [stage.send("linger", key, 0.01) for key in keys]
    worker.wait_for_log(f"{bystanders[-1].id}] received")
    worker.kill()
    for start in (2, 3):
        worker = stage.worker(concurrency=1, args=("--prefetch-multiplier", "8", *QUICK_START))
        stage.wait_runs(killer, start)
        worker.kill()
    stage.worker(concurrency=2)

    for key, bystander in zip(keys, bystanders, strict=True):
        assert bystander.get(timeout=30) == "done"
        assert len(stage.runs(key)) == 1
    assert str(box.of(first.id).reason) == "poison"
    assert len(box.look()) == 1


@pytest.mark.timeout(120)
@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGQUIT])
def test_deploys_are_not_counted(stage: Stage, stop: signal.Signals) -> None:
    key, box = stage.key(), LetterBox(stage)
    result = stage.send("linger", key, 60 if stop is signal.SIGQUIT else 0.5)
    for deploy in range(1, 6):
        worker = stage.worker(concurrency=1)
        stage.wait_runs(key, deploy if stop is signal.SIGQUIT else 1)
        os.kill(worker.pid, stop)
        wait_until(lambda worker=worker: not worker.is_alive, 20, "the worker's end")  # type: ignore[misc]
    stage.worker(concurrency=1)
    stage.wait_runs(key, 6 if stop is signal.SIGQUIT else 1)

    assert not box.look()
    if stop is signal.SIGTERM:
        assert result.get(timeout=10) == "done"
        assert len(stage.runs(key)) == 1


@pytest.mark.timeout(120)
def test_what_is_poison_stays_so_while_its_letter_cannot_be_stored(tmp_path: Path, redis_server: EmbeddedRedis) -> None:
    with on_redis(tmp_path, redis_server, resilience_store_cooldown_seconds=0.3) as stage:
        key, box = stage.key(), LetterBox(stage)
        result = stage.send("linger", key)
        for start in range(1, 4):
            worker = stage.worker(concurrency=1)
            stage.wait_runs(key, start)
            worker.kill()
        stage.record.set("resilience.dlq", "in the way")
        worker = stage.worker(concurrency=1)
        wait_until(lambda: worker.log().count("resilience-letter-not-stored") >= 3, 30, "three tries in vain")
        stage.record.delete("resilience.dlq")

        assert str(box.of(result.id).reason) == "poison"
        assert len(stage.runs(key)) == 3
