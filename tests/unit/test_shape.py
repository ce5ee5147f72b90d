"""Messages that Celery cannot run are told before they reach it; all it can run pass."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st
from kombu.message import Message

from celery_resilience.transport.sound import MARK, UndecodedBody, sound
from celery_resilience.worker.shape import problem_of
from tests.support.malformed import ENVELOPES, KINDS, SOUND_BODY, Kind

APP = Celery("shape", set_as_current=False)


def message(kind: Kind, **more: Any) -> Message:
    return Message(
        kind.body,
        content_type=kind.content_type,
        content_encoding=kind.content_encoding,
        headers=kind.all_headers("id-1"),
        accept={"application/json"},
        **more,
    )


@pytest.mark.parametrize(
    "kind",
    [kind for kind in KINDS if kind.name not in ("task is unknown", "a header named as a method", "bomb")],
    ids=lambda kind: kind.name,
)
def test_every_kind_of_the_matrix_is_told(kind: Kind) -> None:
    given_message = message(kind)
    is_told = bool(given_message.errors) or problem_of(given_message, APP) is not None

    assert is_told is not kind.runs


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"eta": "2030-01-01T00:00:00"},
        {"eta": "2030-01-01T00:00:00.123456+02:00", "expires": "2031-01-01T00:00:00Z"},
        {"timelimit": [300, 100.5]},
        {"timelimit": None},
        {"timelimit": [0, None]},
        {"retries": 3, "group": "g", "group_index": 4, "root_id": "r", "shadow": "other name"},
        {"stamped_headers": ["a"], "stamps": {"a": [1]}},
        {"id": "order/17 – ü"},
        {"argsrepr": "('…',)", "ignore_result": True, "unknown": object()},
    ],
    ids=str,
)
def test_what_celery_sends_passes(headers: dict[str, Any]) -> None:
    assert problem_of(message(Kind(name="sound", headers=headers)), APP) is None


@pytest.mark.parametrize(
    "payload",
    [
        b'{"task": "t", "id": "1", "args": [1], "kwargs": {}, "retries": 0, "eta": null}',
        b'{"task": "t", "id": "1"}',
    ],
)
def test_the_older_protocol_passes(payload: bytes) -> None:
    old = Message(payload, content_type="application/json", content_encoding="utf-8", headers={}, accept=None)

    assert problem_of(old, APP) is None


def test_arguments_are_never_shown() -> None:
    _, told = problem_of(message(Kind(name="k", body=b'[{"password": "hunter2"}, {}, {}]')), APP) or ("", "")

    assert "hunter2" not in str(told)


def test_a_body_that_could_not_be_decoded_is_told_by_its_type() -> None:
    assert problem_of(message(Kind(name="k", body=UndecodedBody(SOUND_BODY))), APP) is not None


@pytest.mark.parametrize("name", ENVELOPES)
def test_any_envelope_becomes_one_that_kombu_can_deliver(name: str) -> None:
    import json

    from tests.support.malformed import packed

    change, _ = ENVELOPES[name]
    made = sound(change(json.loads(packed(Kind(name="sound"), "id-1", "queue"))), "queue")

    assert_deliverable(made)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
FIELDS = ["headers", "properties", "body", "content-type", "content-encoding"]
PROPERTIES = ["delivery_tag", "delivery_info", "body_encoding", "priority"]


@given(JSON | st.dictionaries(st.sampled_from(FIELDS), JSON | st.dictionaries(st.sampled_from(PROPERTIES), JSON)))
def test_any_json_at_all_becomes_one_that_kombu_can_deliver(raw: Any) -> None:
    assert_deliverable(sound(raw, "queue"))


def assert_deliverable(made: Any) -> None:
    properties = made["properties"]
    assert isinstance(made["headers"], dict)
    assert isinstance(made["body"], str)
    assert isinstance(properties["delivery_tag"], str)
    assert properties["delivery_tag"]
    assert isinstance(properties["delivery_info"]["exchange"], str)
    assert isinstance(properties["delivery_info"]["routing_key"], str)


def test_a_sound_envelope_is_passed_on_as_it_is() -> None:
    raw = {
        "body": "",
        "headers": {},
        "properties": {"delivery_tag": "t", "delivery_info": {"exchange": "", "routing_key": "q"}},
    }

    assert sound(raw, "queue") is raw
    assert MARK not in raw["headers"]
