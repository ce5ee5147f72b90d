"""Chains, groups and chords whose members are retried finish as if nothing had happened."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from celery import chain, chord, group

from celery_resilience.testing import embedded_redis
from tests.support.stage import Stage, open_stage
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    with embedded_redis(url="") as server, open_stage(tmp_path_factory.mktemp("logs"), server) as stage:
        stage.worker(concurrency=3)
        yield stage


def test_a_chain_of_retried_members_finishes_with_the_right_sum(stage: Stage) -> None:
    add = stage.app.tasks["resilient.add"]

    assert chain(add.s(1, 1), add.s(2), add.s(3, failures=2)).apply_async().get(timeout=20) == 7


def test_a_group_of_retried_members_finishes_in_order(stage: Stage) -> None:
    add = stage.app.tasks["resilient.add"]

    assert group(add.s(n, n, failures=n % 3) for n in range(6)).apply_async().get(timeout=20) == [0, 2, 4, 6, 8, 10]


def test_a_chord_of_retried_members_calls_its_retried_body_once(stage: Stage) -> None:
    add, total = stage.app.tasks["resilient.add"], stage.app.tasks["resilient.total"]
    result = chord([add.s(n, n, failures=1 + n % 2) for n in range(4)])(total.s())

    assert result.get(timeout=20) == 12
    assert stage.record.get(f"task_retry:{result.id}") == "1"


def test_a_chord_in_a_chain_goes_on_after_its_retries(stage: Stage) -> None:
    add, total = stage.app.tasks["resilient.add"], stage.app.tasks["resilient.total"]
    result = chain(add.s(1, 1), group(add.s(1), add.s(2)), total.s(), add.s(100)).apply_async()

    assert result.get(timeout=20) == 107


def test_a_member_that_fails_for_good_fails_the_chord_once(stage: Stage) -> None:
    add, key = stage.app.tasks["resilient.add"], stage.key()
    script, note = stage.app.tasks["resilient.unparked"], stage.app.tasks["resilient.note"]
    body = stage.app.tasks["resilient.total"].s().on_error(note.si(key=key))
    members = [add.s(1, 1), script.si(stage.key(), ["raise", "network"]).set(resilience={"max_attempts": 2})]
    result = chord(members)(body)

    with pytest.raises(Exception, match=r"down|ChordError|raised"):
        result.get(timeout=20)
    wait_until(lambda: stage.record.llen(f"note:{key}"), 10, "the errback")
    assert stage.record.llen(f"note:{key}") == 1


def test_a_retried_task_that_replaces_itself_is_retried_under_the_same_id(stage: Stage) -> None:
    key = stage.key()
    result = stage.send("replacing", key)

    assert result.get(timeout=20) == "replaced"
    assert stage.attempts(key) == [1, 2]


def test_a_member_of_a_chain_with_its_own_delay_keeps_its_place(stage: Stage) -> None:
    add = stage.app.tasks["resilient.add"]

    assert chain(add.s(1, 1), add.s(1).set(countdown=0.5), add.s(1)).apply_async().get(timeout=20) == 4


@pytest.mark.parametrize("way", ["apply_async", "send_task"])
def test_children_that_were_given_the_headers_of_their_retried_parent_make_attempts_of_their_own(
    stage: Stage, way: str
) -> None:
    keys = [stage.key() for _ in range(3)]
    steps = [["raise", "network"], ["raise", "network"], ["return", "done"]]
    ids = stage.send("handing_on", way, steps, *keys, headers={"trace": "t1"}).get(timeout=20)

    assert [stage.app.AsyncResult(each).get(timeout=20) for each in ids] == ["done"] * 3
    for key in keys:
        assert [(run["retries"], run["headers"]["trace"]) for run in stage.runs(key)] == [(n, "t1") for n in range(3)]
