"""A dead member leaves its chord waiting: requeue completes it, discard fails it; a chain goes on where it stopped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from celery import chain, chord

from celery_resilience import runtime_of
from celery_resilience.deadletter.desk import Desk
from celery_resilience.deadletter.filters import LetterFilter
from celery_resilience.deadletter.ledger import StoredLetter
from celery_resilience.testing import embedded_redis
from tests.support.letterbox import options
from tests.support.stage import Stage, open_stage
from tests.support.waiting import wait_until

EXPIRES = 30


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    directory = tmp_path_factory.mktemp("stage")
    conf = {
        "resilience_dlq_collect": True,
        "resilience_database_url": f"sqlite:///{directory}/letters.db",
        "result_expires": EXPIRES,
    }
    with embedded_redis(url="") as server, open_stage(directory, server, conf=conf, **options()) as stage:
        stage.worker(concurrency=4)
        yield stage


@pytest.fixture
def desk(stage: Stage) -> Desk:
    return runtime_of(stage.app).desk


def collected(desk: Desk, task_id: str, count: int = 1) -> StoredLetter:
    """Wait until a worker has collected that many letters of a task; gives the latest."""
    found = wait_until(
        lambda: rows if len(rows := desk.find(LetterFilter(text=task_id, state="any"))) >= count else None,
        20,
        f"letter {count} of {task_id}",
    )
    assert len(found) == count
    return found[0]


def dead_member(stage: Stage, desk: Desk, dying: Any) -> tuple[Any, StoredLetter]:
    """Send a chord of two sound members and a dying one; wait until that is dead."""
    sound = [stage.app.tasks["resilient.add"].s(n, n, failures=0) for n in (1, 2)]
    body = chord([*sound, dying])(stage.app.tasks["resilient.sum"].s())
    return body, collected(desk, dying.id)


def test_a_dead_member_is_parked_and_its_requeue_completes_the_chord(stage: Stage, desk: Desk) -> None:
    key = stage.key()
    dying = stage.app.tasks["resilient.member"].s(key, 10).set(task_id=f"m-{key}")
    body, letter = dead_member(stage, desk, dying)
    stage.wait_state(stage.app.AsyncResult(letter.task_id), "DEAD")
    assert (letter.parked, body.state) == (True, "PENDING")
    stage.record.set(f"allowed:{key}", 1)

    assert desk.requeue(letter.id).done == 1
    assert body.get(timeout=20) == 16


@pytest.mark.parametrize(
    ("task", "args", "reason"), [("crash", (3,), "poison"), ("hurry", (5,), "time-limit")], ids=["poison", "time limit"]
)
def test_a_member_that_dies_in_the_parents_eyes_is_parked_too(
    stage: Stage, desk: Desk, task: str, args: tuple[Any, ...], reason: str
) -> None:
    key = stage.key()
    dying = stage.app.tasks[f"resilient.{task}"].s(key, *args).set(task_id=f"m-{key}")
    body, letter = dead_member(stage, desk, dying)
    stage.wait_state(stage.app.AsyncResult(letter.task_id), "DEAD")

    assert (letter.reason, letter.parked, body.state) == (reason, True, "PENDING")
    assert desk.discard(letter.id, "not worth it").done == 1
    with pytest.raises(Exception, match="discarded"):
        body.get(timeout=20)


def test_a_dead_link_inside_a_member_is_parked_too(stage: Stage, desk: Desk) -> None:
    key, add = stage.key(), stage.app.tasks["resilient.add"]
    dying = stage.app.tasks["resilient.member"].s(key, 10).set(task_id=f"m-{key}")
    members = [add.s(1, 1, failures=0), chain(dying, add.s(5, failures=0))]
    body = chord(members)(stage.app.tasks["resilient.sum"].s())
    letter = collected(desk, f"m-{key}")
    assert letter.parked
    stage.record.set(f"allowed:{key}", 1)
    desk.requeue(letter.id)

    assert body.get(timeout=20) == 17


def test_the_join_keys_outlive_what_siblings_set(stage: Stage, desk: Desk) -> None:
    key = stage.key()
    dying = stage.app.tasks["resilient.member"].s(key, 10).set(task_id=f"m-{key}")
    late = stage.app.tasks["resilient.linger"].s(stage.key(), 14)
    chord([dying, late, stage.app.tasks["resilient.add"].s(1, 1, failures=0)])(stage.app.tasks["resilient.sum"].s())
    letter = collected(desk, f"m-{key}")
    group = desk.ledger.get(letter.id)[1].canvas["group"]  # type: ignore[index]
    joins = f"celery-taskset-meta-{group}.j"

    wait_until(lambda: stage.record.ttl(joins) > 10 * EXPIRES, 20, "a longer life")
    wait_until(lambda: 0 < stage.record.ttl(joins) <= EXPIRES, 20, "a sibling's return")
    wait_until(lambda: stage.record.ttl(joins) > 10 * EXPIRES, 20, "a longer life again")


def test_a_chain_goes_on_at_the_failed_link_and_attempts_go_on_counting(stage: Stage, desk: Desk) -> None:
    key, add = stage.key(), stage.app.tasks["resilient.add"]
    dying = stage.app.tasks["resilient.member"].si(key, 10).set(task_id=f"m-{key}")
    result = chain(add.s(1, 1, failures=0), dying, add.s(100, failures=0)).apply_async()
    letter = collected(desk, f"m-{key}")
    stage.wait_state(stage.app.AsyncResult(f"m-{key}"), "FAILURE")
    first = desk.ledger.get(letter.id)
    assert first is not None
    assert not letter.parked
    assert letter.attempt == 1
    desk.requeue(letter.id)
    again = collected(desk, f"m-{key}", 2)
    second = desk.ledger.get(again.id)
    assert second is not None

    assert (again.attempt, again.generation) == (2, 1)
    assert second[1].envelope.body == first[1].envelope.body
    assert [entry["attempt"] for entry in second[1].trail] == [1]
    assert wait_until(lambda: stage.app.AsyncResult(f"m-{key}").state == "FAILURE", 10, "the second failure")
    stage.record.set(f"allowed:{key}", 1)
    desk.requeue(again.id)
    # The links behind a failed one were failed with it; that is overwritten when they run, and a result remembers.
    wait_until(lambda: stage.app.AsyncResult(result.id).state == "SUCCESS", 20, "the last link")
    assert stage.app.AsyncResult(result.id).get(timeout=5) == 110
    assert len(stage.runs(key)) == 3
