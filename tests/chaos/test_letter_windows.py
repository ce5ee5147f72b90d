"""A crash between the letter and the ack: the message comes back, and the same death told twice is one letter."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_resilience import runtime_of
from celery_resilience.crashpoints import VARIABLE
from celery_resilience.deadletter.filters import LetterFilter
from celery_resilience.testing import EmbeddedRedis
from tests.support.letterbox import options
from tests.support.malformed import Kind, packed
from tests.support.rabbitmq import RabbitMQ
from tests.support.stage import Stage, open_stage
from tests.support.waiting import wait_until
from tests.support.workers import Pool

STORED = {VARIABLE: "letter.stored"}


@pytest.fixture
def stage(tmp_path: Path, redis_server: EmbeddedRedis) -> Iterator[Stage]:
    conf = {"resilience_database_url": f"sqlite:///{tmp_path}/letters.db"}
    with open_stage(tmp_path, redis_server, VISIBILITY_TIMEOUT="1", conf=conf, **options()) as stage:
        yield stage


@pytest.fixture
def on_rabbitmq(tmp_path: Path, redis_server: EmbeddedRedis, rabbitmq: RabbitMQ) -> Iterator[Stage]:
    name = f"crash{uuid.uuid4().hex[:8]}"
    conf = {
        "task_default_queue": name,
        "resilience_dlq_queue": f"{name}.dlq",
        "resilience_database_url": f"sqlite:///{tmp_path}/letters.db",
    }
    with open_stage(tmp_path, redis_server, broker=rabbitmq.url, conf=conf, **options()) as stage:
        yield stage


def crash_and_inherit(stage: Stage, pool: Pool, task_id: str) -> None:
    """Let a worker die behind the letter of a task, and another take over; the ledger has it once."""
    desk = runtime_of(stage.app).desk
    doomed = stage.worker(pool=pool, env=STORED)
    wait_until(lambda: not doomed.is_alive, 20, lambda: f"the crash:\n{doomed.log()[-2000:]}")
    assert desk.depth() == 1
    heir = stage.worker(pool=pool)
    wait_until(lambda: desk.depth() == 2, 20, lambda: f"the letter of the heir:\n{heir.log()[-2000:]}")
    desk.collect()

    assert [letter.task_id for letter in desk.find(LetterFilter(state="any"))] == [task_id]
    assert desk.depth() == 0


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_in_the_process_that_ran_the_task(stage: Stage, pool: Pool) -> None:
    crash_and_inherit(stage, pool, stage.script(["raise", "validation"])[1].id)


def test_in_the_parent_for_an_unknown_task(stage: Stage) -> None:
    crash_and_inherit(stage, "prefork", stage.app.send_task("resilient.nonesuch").id)


def test_in_the_parent_for_a_time_limit(stage: Stage) -> None:
    crash_and_inherit(stage, "prefork", stage.send("hurry", stage.key()).id)


def test_in_the_parent_for_a_malformed_message(stage: Stage) -> None:
    stage.record.lpush("resilient", packed(Kind(name="two parts", body=b"[1, 2]"), "m-1", "resilient"))
    crash_and_inherit(stage, "prefork", "m-1")


def test_on_rabbitmq(on_rabbitmq: Stage) -> None:
    crash_and_inherit(on_rabbitmq, "solo", on_rabbitmq.script(["raise", "validation"])[1].id)


def test_on_rabbitmq_in_the_parent(on_rabbitmq: Stage) -> None:
    crash_and_inherit(on_rabbitmq, "prefork", on_rabbitmq.app.send_task("resilient.nonesuch").id)
