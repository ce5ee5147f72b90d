"""The same matrix on RabbitMQ, whose messages cannot be wrong in their envelope."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator

import amqp
import kombu
import pytest

from celery_resilience.testing import embedded_redis
from tests.support.letterbox import LetterBox, options
from tests.support.malformed import KINDS, Kind
from tests.support.rabbitmq import RabbitMQ
from tests.support.stage import Stage, open_stage
from tests.support.workers import WorkerProcess


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, rabbitmq: RabbitMQ) -> Iterator[Stage]:
    name = f"q{uuid.uuid4().hex[:8]}"
    conf = {"task_default_queue": name, "resilience_dlq_queue": f"{name}.dlq"}
    with (
        embedded_redis(url="") as server,
        open_stage(
            tmp_path_factory.mktemp("logs"),
            server,
            broker=rabbitmq.url,
            conf=conf,
            QUEUES=json.dumps([{"name": name}]),
            **options(),
        ) as stage,
    ):
        yield stage


@pytest.fixture(scope="module")
def worker(stage: Stage) -> WorkerProcess:
    return stage.worker(concurrency=1)


@pytest.fixture(scope="module")
def box(stage: Stage, worker: WorkerProcess) -> LetterBox:
    return LetterBox(stage)


@pytest.fixture(scope="module")
def channel(stage: Stage, worker: WorkerProcess) -> Iterator[amqp.Channel]:
    with kombu.Connection(stage.env["BROKER_URL"]) as connection:
        yield connection.default_channel


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_on_rabbitmq(stage: Stage, worker: WorkerProcess, box: LetterBox, channel: amqp.Channel, kind: Kind) -> None:
    task_id, before = str(uuid.uuid4()), len(box.look())
    types = {"content_type": kind.content_type, "content_encoding": kind.content_encoding}
    given = {name: value for name, value in types.items() if value is not None}
    queue = stage.app.conf.task_default_queue
    channel.basic_publish(
        amqp.Message(kind.body, application_headers=kind.all_headers(task_id), **given), routing_key=queue
    )
    assert stage.send("echo", 1).get(timeout=30) == [[1], {}]
    assert worker.is_alive
    letters = box.look()[before:]

    if kind.runs:
        assert not letters
        assert stage.app.AsyncResult(task_id).get(timeout=10) == [[1], {"b": 2}]
        return
    assert [str(letter.reason) in kind.reasons for letter in letters] == [True]
    assert letters[0].envelope.body == kind.body
    headers = letters[0].envelope.headers
    assert {name: headers[name] for name in kind.all_headers(task_id)} == kind.all_headers(task_id)
    assert letters[0].queue == queue
