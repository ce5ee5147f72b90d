"""Whatever kills a task, it is in the DLQ exactly once, with its bytes and the right reason, and the worker lives."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from celery_resilience.testing import embedded_redis
from tests.support.letterbox import LetterBox, options
from tests.support.malformed import Kind, packed
from tests.support.stage import Stage, open_stage
from tests.support.waiting import wait_until
from tests.support.workers import WorkerProcess


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with (
        embedded_redis(url="") as server,
        open_stage(
            tmp_path_factory.mktemp("logs"), server, conf={"resilience_dlq_expired": True}, **options()
        ) as stage,
    ):
        yield stage


@pytest.fixture(scope="module")
def worker(stage: Stage) -> WorkerProcess:
    return stage.worker(concurrency=3)


@pytest.fixture(scope="module")
def box(stage: Stage, worker: WorkerProcess) -> LetterBox:
    return LetterBox(stage)


@pytest.fixture(autouse=True)
def _worker_lives(stage: Stage, worker: WorkerProcess) -> Iterator[None]:
    yield
    assert worker.is_alive
    assert stage.send("echo", 1, kwargs={"b": 2}).get(timeout=20) == [[1], {"b": 2}]


@pytest.mark.parametrize(
    ("steps", "reason", "attempts"),
    [
        ([["raise", "validation"]], "permanent", [1]),
        ([["raise", "permanent"]], "permanent", [1]),
        ([["raise", "network"]], "exhausted", [1, 2, 3, 4, 5]),
        ([["raise", "reject"]], "rejected", [1]),
        ([["raise", "huge"]], "exhausted", [1, 2, 3, 4, 5]),
        ([["raise", "unpicklable"]], "exhausted", [1, 2, 3, 4, 5]),
    ],
)
def test_an_ordinary_failure(
    stage: Stage, box: LetterBox, steps: list[object], reason: str, attempts: list[int]
) -> None:
    key, result = stage.script(*steps, headers={"mine": [1, "ü"]})
    letter = box.of(result.id)

    assert str(letter.reason) == reason
    assert stage.attempts(key) == attempts
    assert (letter.attempt, letter.task, letter.queue) == (attempts[-1], "resilient.script", "resilient")
    assert [entry["attempt"] for entry in letter.trail] == attempts[:-1]
    assert letter.envelope.headers["mine"] == [1, "ü"]
    assert "Traceback" in letter.traceback or reason == "rejected"
    stage.wait_state(result, "FAILURE")
    assert stage.record.lrange(f"signal:{result.id}", 0, -1) == [f"resilient.script:{reason}"]


def test_a_body_that_runs_out_of_memory_for_good(stage: Stage, box: LetterBox) -> None:
    result = stage.send("devour", stage.key())

    letter = box.of(result.id)
    assert str(letter.reason) == "exhausted"
    assert letter.error_type == "builtins.MemoryError"
    stage.wait_state(result, "FAILURE")


def test_a_body_that_goes_too_deep(stage: Stage, box: LetterBox) -> None:
    assert "RecursionError" in box.of(stage.send("recurse", stage.key()).id).error_type


def test_a_hard_time_limit_is_one_letter_and_one_failure(stage: Stage, box: LetterBox) -> None:
    key = stage.key()
    result = stage.send("hurry", key)
    letter = box.of(result.id)
    stage.wait_state(result, "FAILURE")

    assert str(letter.reason) == "time-limit"
    assert len(stage.runs(key)) == 1
    wait_until(lambda: stage.record.llen(f"mourned:{result.id}"), 5, "the hook")
    assert stage.record.lrange(f"signal:{result.id}", 0, -1) == ["resilient.hurry:time-limit"]
    assert stage.record.get(f"task_failure:{result.id}") == "1"


def test_a_task_that_kills_its_process_starts_three_times(stage: Stage, box: LetterBox) -> None:
    key = stage.key()
    result = stage.send("crash", key)
    letter = box.of(result.id)
    stage.wait_state(result, "FAILURE")

    assert (str(letter.reason), letter.failure_class) == ("poison", "POISON")
    assert len(stage.runs(key)) == 3
    assert stage.record.llen(f"mourned:{result.id}") == 1
    assert "without coming to an end" in str(result.result)
    assert not stage.record.keys("*starts*")


@pytest.mark.parametrize("way", ["exit", "segfault"])
def test_other_ways_to_leave_the_process(stage: Stage, box: LetterBox, way: str) -> None:
    key = stage.key()

    assert str(box.of(stage.send("leave", key, way).id).reason) == "poison"
    assert len(stage.runs(key)) == 3


def test_a_task_that_crashes_twice_and_then_succeeds_is_no_letter(stage: Stage, box: LetterBox) -> None:
    key = stage.key()

    assert stage.send("crash", key, 2).get(timeout=20) == "done"
    assert len(stage.runs(key)) == 3
    assert not stage.record.keys("*starts*")


@pytest.mark.parametrize(("task", "reason"), [("crash_once", "worker-lost"), ("crash_early", "worker-lost")])
def test_a_lost_process_is_the_end_where_nothing_may_start_again(
    stage: Stage, box: LetterBox, task: str, reason: str
) -> None:
    key = stage.key()
    result = stage.send(task, key)

    assert str(box.of(result.id).reason) == reason
    assert len(stage.runs(key)) == 1
    stage.wait_state(result, "FAILURE")


def test_without_dead_letters_a_lost_process_is_celerys_own_failure(stage: Stage, box: LetterBox) -> None:
    key = stage.key()
    result = stage.send("crash_plainly", key)
    stage.wait_state(result, "FAILURE")

    assert len(stage.runs(key)) == 1
    assert not [letter for letter in box.look() if letter.task_id == result.id]


@pytest.mark.parametrize("args", [("before",), ("result",)])
def test_what_celery_fails_outside_of_the_body_is_a_letter_too(
    stage: Stage, worker: WorkerProcess, box: LetterBox, args: tuple[str, ...]
) -> None:
    result = stage.send("unencodable", *args)

    assert str(box.of(result.id).reason) == "permanent"
    worker.wait_for_log(f"resilience-hook-failed task_id={result.id}")


def test_an_open_breaker_may_make_letters(stage: Stage, box: LetterBox) -> None:
    key = stage.key()
    first = stage.send("cut_off", key, resilience={"max_attempts": 1})
    assert str(box.of(first.id).reason) == "permanent"
    second = stage.send("cut_off", key)

    assert str(box.of(second.id).reason) == "circuit-open"
    assert len(stage.runs(key)) == 1
    assert stage.record.lrange("changed:resilient.cut_off", 0, -1) == ["closed>open"]


def test_a_deadline_is_the_reason_of_what_came_too_late(stage: Stage, box: LetterBox) -> None:
    _, result = stage.script(["raise", "long_hint"], resilience={"deadline_seconds": 5})

    assert str(box.of(result.id).reason) == "deadline"


def test_what_expired_is_kept_where_that_was_asked_for(stage: Stage, box: LetterBox) -> None:
    result = stage.send("echo", 1, expires=-5)

    assert str(box.of(result.id).reason) == "expired"
    stage.wait_state(result, "REVOKED")


def test_a_body_that_takes_all_the_memory_there_is(stage: Stage, box: LetterBox) -> None:
    result = stage.send("gorge", stage.key())
    letter = box.of(result.id)

    assert letter.error_type == "builtins.MemoryError"
    assert str(letter.reason) == "exhausted"
    stage.wait_state(result, "FAILURE")


def test_a_message_of_celerys_first_protocol_is_kept_by_the_parent(stage: Stage, box: LetterBox) -> None:
    old = {"task": "resilient.script", "id": "old-1", "args": [stage.key(), ["raise", "validation"]], "kwargs": {}}
    body = json.dumps(old).encode()
    kind = Kind(name="old", body=body)
    raw = json.loads(packed(kind, "old-1", "resilient"))
    stage.record.lpush("resilient", json.dumps({**raw, "headers": {}}))
    letter = box.of(lambda one: one.envelope.body == body)

    assert str(letter.reason) == "permanent"
    assert "not so" in letter.error_message


def test_unknown_tasks_are_kept(stage: Stage, box: LetterBox) -> None:
    result = stage.app.send_task("resilient.nonesuch", (1, 2), {"a": "b"})
    letter = box.of(result.id)

    assert (str(letter.reason), letter.task) == ("unknown-task", "resilient.nonesuch")
    assert letter.envelope.body.startswith(b'[[1, 2], {"a": "b"}')
    stage.wait_state(result, "FAILURE")
