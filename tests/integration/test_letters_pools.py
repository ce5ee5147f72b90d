"""Deaths in pools whose tasks share a process, and in all pools while no letter can be stored."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from celery_resilience.testing import EmbeddedRedis
from tests.support.letterbox import LetterBox, options
from tests.support.malformed import KINDS, Kind, packed
from tests.support.rabbitmq import RabbitMQ
from tests.support.stage import Stage, open_stage
from tests.support.waiting import wait_until
from tests.support.workers import Pool

SOME = [kind for kind in KINDS if kind.name in ("body has two parts", "id is a list", "timelimit is a text", "pickle")]


@pytest.fixture
def stage(tmp_path: Path, redis_server: EmbeddedRedis) -> Iterator[Stage]:
    conf = {"resilience_store_cooldown_seconds": 0.5}
    with open_stage(tmp_path, redis_server, VISIBILITY_TIMEOUT="5", conf=conf, **options()) as stage:
        yield stage


@pytest.mark.parametrize("pool", ["threads", "gevent", "solo"])
def test_one_letter_for_each_death_and_the_worker_lives(stage: Stage, pool: Pool) -> None:
    worker, box = stage.worker(pool=pool), LetterBox(stage)
    failed = {
        stage.script(["raise", "validation"])[1].id: "permanent",
        stage.script(["raise", "network"])[1].id: "exhausted",
        stage.script(["raise", "reject"])[1].id: "rejected",
        stage.send("devour", stage.key()).id: "exhausted",
        stage.send("leave", stage.key()).id: "permanent",
        stage.send("unencodable", "result").id: "permanent",
        stage.app.send_task("resilient.nonesuch").id: "unknown-task",
    }
    for kind in SOME:
        stage.record.lpush("resilient", packed(kind, str(uuid.uuid4()), "resilient"))
    wait_until(lambda: len(box.look()) == len(failed) + len(SOME), 30, lambda: f"all letters: {box.letters}")
    stage.wait_idle()

    assert {letter.task_id: str(letter.reason) for letter in box.look() if letter.task_id in failed} == failed
    assert worker.is_alive
    assert stage.send("echo").get(timeout=10) == [[], {}]


def test_a_hard_time_limit_of_gevent(stage: Stage) -> None:
    stage.worker(pool="gevent")
    result = stage.send("hurry", stage.key())

    assert str(LetterBox(stage).of(result.id).reason) == "time-limit"
    stage.wait_state(result, "FAILURE")
    assert stage.unacked() == 0


@pytest.mark.parametrize("pool", get_args(Pool))
def test_while_no_letter_can_be_stored_no_message_is_let_go(stage: Stage, pool: Pool) -> None:
    stage.record.set("resilience.dlq", "in the way")  # a list cannot be where this is
    worker, box = stage.worker(pool=pool), LetterBox(stage)
    _, failed = stage.script(["raise", "validation"])
    unknown = stage.app.send_task("resilient.nonesuch")
    stage.record.lpush("resilient", packed(Kind(name="two parts", body=b"[1, 2]"), "malformed-1", "resilient"))
    worker.wait_for_log(f"resilience-letter-not-stored task_id={failed.id}")
    worker.wait_for_log(f"resilience-letter-not-stored task_id={unknown.id}")
    worker.wait_for_log("resilience-letter-not-stored task_id=malformed-1")
    assert {failed.id, unknown.id, "malformed-1"} <= stage.known_ids()
    stage.record.delete("resilience.dlq")

    assert str(box.of(failed.id).reason) == "permanent"
    assert str(box.of(unknown.id).reason) == "unknown-task"
    assert str(box.of("malformed-1").reason) == "malformed"
    stage.wait_idle()


def test_a_time_limit_and_a_lost_process_wait_for_their_letters(stage: Stage) -> None:
    stage.record.set("resilience.dlq", "in the way")
    worker, box = stage.worker(), LetterBox(stage)
    slow, lost = stage.send("hurry", stage.key()), stage.send("crash_once", stage.key())
    for result in (slow, lost):
        worker.wait_for_log(f"resilience-letter-not-stored task_id={result.id}")
        assert result.state == "PENDING"
    stage.record.delete("resilience.dlq")

    assert [str(box.of(result.id).reason) for result in (slow, lost)] == ["time-limit", "worker-lost"]
    for result in (slow, lost):
        stage.wait_state(result, "FAILURE")
        assert stage.record.get(f"task_failure:{result.id}") == "1"
    stage.wait_idle()


def test_a_worker_that_ends_with_unburied_messages_leaves_them_to_the_next(stage: Stage) -> None:
    stage.record.set("resilience.dlq", "in the way")
    worker = stage.worker()
    result = stage.app.send_task("resilient.nonesuch")
    worker.wait_for_log(f"resilience-letter-not-stored task_id={result.id}")
    worker.terminate()
    stage.record.delete("resilience.dlq")
    stage.worker()

    assert str(LetterBox(stage).of(result.id).reason) == "unknown-task"


@pytest.fixture
def on_rabbitmq(tmp_path: Path, redis_server: EmbeddedRedis, rabbitmq: RabbitMQ) -> Iterator[Stage]:
    name = f"q{uuid.uuid4().hex[:8]}"
    conf = {"task_default_queue": name, "resilience_dlq_queue": f"{name}.dlq", "resilience_store_cooldown_seconds": 0.5}
    queues = json.dumps([{"name": name}])
    with open_stage(tmp_path, redis_server, broker=rabbitmq.url, conf=conf, QUEUES=queues, **options()) as stage:
        yield stage


def test_a_letter_of_a_natively_delayed_message_knows_its_queue(
    tmp_path: Path, redis_server: EmbeddedRedis, rabbitmq: RabbitMQ
) -> None:
    name = f"q{uuid.uuid4().hex[:8]}"
    queue = {"name": name, "exchange": name, "type": "topic", "arguments": {"x-queue-type": "quorum"}}
    conf = {
        "task_default_queue": name,
        "task_default_exchange": name,
        "task_default_exchange_type": "topic",
        "task_default_routing_key": name,
        "resilience_dlq_queue": f"{name}.dlq",
    }
    opened = open_stage(tmp_path, redis_server, broker=rabbitmq.url, conf=conf, QUEUES=json.dumps([queue]), **options())
    with opened as stage:
        stage.worker()
        _, result = stage.script(["raise", "validation"], countdown=2)

        assert LetterBox(stage).of(result.id).queue == name


def test_without_any_redis_a_worker_counts_the_deaths_of_its_own_children(
    tmp_path: Path, redis_server: EmbeddedRedis, rabbitmq: RabbitMQ
) -> None:
    name = f"q{uuid.uuid4().hex[:8]}"
    conf = {"task_default_queue": name, "resilience_dlq_queue": f"{name}.dlq"}
    queues = json.dumps([{"name": name}])
    opened = open_stage(
        tmp_path, redis_server, broker=rabbitmq.url, results="rpc://", conf=conf, QUEUES=queues, **options()
    )
    with opened as stage:
        stage.worker()
        key = stage.key()
        result = stage.send("crash", key)

        assert str(LetterBox(stage).of(result.id, seconds=40).reason) == "poison"
        assert len(stage.runs(key)) == 3


@pytest.mark.parametrize("pool", get_args(Pool))
def test_deaths_on_rabbitmq(on_rabbitmq: Stage, pool: Pool) -> None:
    stage = on_rabbitmq
    worker, box = stage.worker(pool=pool), LetterBox(stage)
    failed = {
        stage.script(["raise", "validation"])[1].id: "permanent",
        stage.script(["raise", "network"])[1].id: "exhausted",
        stage.script(["raise", "reject"])[1].id: "rejected",
        stage.send("devour", stage.key()).id: "exhausted",
        stage.app.send_task("resilient.nonesuch").id: "unknown-task",
    }
    if pool == "prefork":
        failed[stage.send("crash", stage.key()).id] = "poison"
        failed[stage.send("hurry", stage.key()).id] = "time-limit"
    wait_until(lambda: len(box.look()) == len(failed), 60, lambda: f"all letters: {box.letters}")

    assert {letter.task_id: str(letter.reason) for letter in box.look()} == failed
    assert worker.is_alive
    assert stage.send("echo").get(timeout=10) == [[], {}]
