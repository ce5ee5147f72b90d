"""The header: what travels with a message comes back the same, stays small, and is never trusted."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_resilience import FailureClass
from celery_resilience.attempts import FIRST, MAX_BYTES, MAX_TRAIL, Attempts, read_attempts, slot
from celery_resilience.settings import policy_of_call
from tests.support.failures import failure_of

states = st.builds(
    Attempts,
    attempt=st.integers(1, 10**6),
    asked=st.integers(0, 10**6),
    task_id=st.none() | st.text(min_size=1, max_size=80),
    lineage=st.none() | st.text(min_size=1, max_size=80),
    queue=st.none() | st.text(min_size=1, max_size=255),
    deadline_at=st.none() | st.floats(1, 1e11),
    options=st.fixed_dictionaries(
        {},
        optional={"max_attempts": st.integers(1, 100), "jitter": st.just("none"), "deadline_seconds": st.floats(1, 9)},
    ),
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(states, st.lists(st.text(max_size=3000), max_size=14))
def test_a_header_comes_back_as_it_was_written_within_8_kb(state: Attempts, messages: list[str]) -> None:
    for message in messages:
        state = state.after_failure(failure_of(message=message), delay=1.5, at=2.5, worker="w@host")
    header = state.to_header()
    back = read_attempts(header)

    assert len(header.encode()) <= MAX_BYTES
    assert len(back.trail) <= MAX_TRAIL
    assert [dict(e) for e in back.trail] == [dict(e) for e in state.trail][len(state.trail) - len(back.trail) :]
    assert (back.attempt, back.asked, back.task_id, back.lineage, back.queue, back.deadline_at, back.options) == (
        state.attempt,
        state.asked,
        state.task_id,
        state.lineage,
        state.queue,
        state.deadline_at,
        state.options,
    )


def test_the_oldest_of_a_long_trail_go_first() -> None:
    state = FIRST
    for n in range(30):
        state = state.after_failure(failure_of(message="é" * 3000), delay=n, at=n, worker="w" * 255)
    back = read_attempts(state.to_header())

    assert back.attempt == 31
    assert back.previous_delay == 29
    assert [entry["attempt"] for entry in back.trail] == sorted(entry["attempt"] for entry in back.trail)
    assert back.trail[-1]["attempt"] == 30


def test_a_failure_is_one_attempt_and_one_entry_of_the_trail() -> None:
    after = FIRST.after_failure(failure_of(FailureClass.SYSTEM), delay=2, at=10, worker="w@h")

    assert (after.attempt, after.asked, after.failed_attempts, after.previous_delay) == (2, 0, 2, 2)
    assert after.trail[0]["class"] == "SYSTEM"
    assert FIRST.trail == ()


def test_a_retry_the_body_asked_for_is_no_failed_attempt() -> None:
    after = FIRST.after_asking().after_asking()

    assert (after.attempt, after.asked, after.failed_attempts) == (3, 2, 1)
    assert after.trail == ()


def test_no_header_is_the_first_attempt() -> None:
    assert read_attempts(None) is FIRST
    assert FIRST.attempt == 1


@given(anything)
def test_a_header_of_somebody_else_is_read_without_an_error(header: object) -> None:
    text = json.dumps(header)

    assert read_attempts(header).attempt >= 1
    assert read_attempts(text).attempt >= 1


@pytest.mark.parametrize(
    "header", ["", "{", b"\xff", "[]", "5", '{"attempt": "x"}', '{"attempt": 1e999}', '{"trail": [5]}']
)
def test_a_header_that_cannot_be_ours_starts_at_the_first_attempt(header: object) -> None:
    assert read_attempts(header) == FIRST


@pytest.mark.parametrize(
    "header", ["[" * 100_000, '{"trail":' * 100_000, '{"trail":' * 1500, b"[" * 16_000, '{"queue": "\\ud800"}']
)
def test_a_header_too_deep_to_read_or_impossible_to_write_starts_at_the_first_attempt(header: object) -> None:
    assert read_attempts(header) == FIRST


@pytest.mark.parametrize("name", ["task_id", "lineage", "queue"])
def test_an_endless_name_in_a_header_counts_as_none(name: str) -> None:
    assert read_attempts(json.dumps({"attempt": 3, name: "x" * 5000})) == Attempts(attempt=3)


@pytest.mark.parametrize(
    "header",
    [
        {"options": {"color": "red"}},
        {"options": {"max_attempts": "many"}},
        {"options": {"max_attempts": -3}},
        {"options": {"deadline_seconds": "soon"}},
        {"options": {"base_seconds": 9, "cap_seconds": 1}},
        {"deadline_at": "nan"},
        {"attempt": -5, "asked": 99},
        {"attempt": 2, "asked": 2},
    ],
)
def test_what_a_foreign_header_says_never_breaks_a_decision(header: dict[str, object]) -> None:
    state = read_attempts(json.dumps(header))
    policy_of_call(state.options)

    assert isinstance(state.options.get("deadline_seconds", 1.0), (int, float))
    assert state.deadline_at is None or state.deadline_at == state.deadline_at
    assert state.failed_attempts >= 1


def test_a_header_that_went_through_amqp_as_a_table_is_read_too() -> None:
    assert read_attempts({"attempt": 3, "queue": "q"}) == Attempts(attempt=3, queue="q")


def test_attempt_and_deadline_survive_whatever_the_trail_weighs() -> None:
    state = Attempts(attempt=7, deadline_at=5.0, trail=tuple({"error": "x" * 5000} for _ in range(5)))
    back = read_attempts(state.to_header())

    assert (back.attempt, back.deadline_at, len(back.trail)) == (7, 5.0, 1)


def test_long_names_of_limits_give_way_to_the_numbers() -> None:
    names = [f"{'😀' * 199}{n}" for n in range(9)]
    state = Attempts(
        attempt=4, parks=2, task_id="x", owed=tuple(slot(n, 2.0) for n in names), reserved=(slot(names[0], 1.0),),
        waits_for=(names[0],),
    )  # fmt: skip
    header = state.to_header()
    known = read_attempts(header)

    assert len(header) <= MAX_BYTES
    assert (known.attempt, known.parks, known.waits_for) == (4, 2, (names[0],))
    assert known.reserved == state.reserved  # a promise outlasts a debt


def test_a_requeue_goes_on_counting_and_allows_as_much_as_the_first_time() -> None:
    dead = Attempts(attempt=5, asked=1, parks=2, task_id="t", deadline_at=9.0, waits_for=("x",), lineage="old")
    back = dead.after_requeue("letter:nonce", "letter", attempt=6, generation=1)

    assert (back.attempt, back.failed_attempts, back.parks, back.deadline_at) == (6, 1, 0, None)
    assert read_attempts(back.to_header()) == back
    assert back.after_asking().failed_attempts == 1
