"""A message that is wrong in any field ends as one letter with its bytes kept, or runs; the worker goes on."""

from __future__ import annotations

import base64
import json
import uuid
from collections.abc import Iterator

import pytest

from celery_resilience.testing import embedded_redis
from tests.support.letterbox import LetterBox, options
from tests.support.malformed import ENVELOPES, KINDS, SOUND_BODY, Kind, packed
from tests.support.stage import Stage, open_stage
from tests.support.waiting import wait_until
from tests.support.workers import WorkerProcess


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with embedded_redis(url="") as server, open_stage(tmp_path_factory.mktemp("logs"), server, **options()) as stage:
        yield stage


@pytest.fixture(scope="module")
def worker(stage: Stage) -> WorkerProcess:
    return stage.worker(concurrency=1)


@pytest.fixture(scope="module")
def box(stage: Stage, worker: WorkerProcess) -> LetterBox:
    return LetterBox(stage)


def settle(stage: Stage, worker: WorkerProcess, text: str) -> None:
    """Put a text into the queue, and a sound task behind it; wait until both are gone."""
    stage.record.lpush("resilient", text)
    assert stage.send("echo", 1).get(timeout=30) == [[1], {}]
    wait_until(lambda: not (stage.unacked() or stage.record.llen("resilient")), 10, "nothing held")
    assert worker.is_alive
    assert len(worker.children()) == 1


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_on_redis(stage: Stage, worker: WorkerProcess, box: LetterBox, kind: Kind) -> None:
    task_id, before = str(uuid.uuid4()), len(box.look())
    settle(stage, worker, packed(kind, task_id, "resilient"))
    letters = box.look()[before:]

    if kind.runs:
        assert not letters
        assert stage.app.AsyncResult(task_id).get(timeout=10) == [[1], {"b": 2}]
        return
    assert [str(letter.reason) in kind.reasons for letter in letters] == [True]
    envelope = letters[0].envelope
    assert envelope.body == kind.body
    assert (envelope.content_type, envelope.content_encoding) == (
        kind.content_type or "application/data", kind.content_encoding or "binary",
    )  # fmt: skip
    assert {name: envelope.headers[name] for name in kind.all_headers(task_id)} == kind.all_headers(task_id)
    assert letters[0].queue == "resilient"


@pytest.mark.parametrize("name", ENVELOPES)
def test_an_envelope_on_redis(stage: Stage, worker: WorkerProcess, box: LetterBox, name: str) -> None:
    change, runs = ENVELOPES[name]
    task_id, before = str(uuid.uuid4()), len(box.look())
    raw = change(json.loads(packed(Kind(name="sound"), task_id, "resilient")))
    settle(stage, worker, json.dumps(raw))
    letters = box.look()[before:]

    if runs:
        assert not letters
        assert stage.app.AsyncResult(task_id).get(timeout=10) == [[1], {"b": 2}]
        return
    assert len(letters) == 1
    body = raw.get("body") if isinstance(raw, dict) else raw
    text = body if isinstance(body, str) else "" if isinstance(raw, dict) and body is None else json.dumps(body)
    assert letters[0].envelope.body in (text.encode(), SOUND_BODY)
    if letters[0].envelope.body == SOUND_BODY:
        assert base64.b64decode(text) == SOUND_BODY
