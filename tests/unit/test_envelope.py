"""A message as a value: packed and unpacked it is the same, byte for byte, and kombu reads it."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu import Connection
from kombu.message import Message
from kombu.serialization import registry
from kombu.utils.json import loads

from celery_resilience.transport.envelope import RAW, Envelope, hand_over, original, unpack, with_arguments

simple = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | st.text()
values = st.recursive(simple, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3))
tables = st.dictionaries(st.text(), values, max_size=5)
of_one_delivery = ("delivery_tag", "delivery_info", "body_encoding", RAW)
envelopes = st.builds(
    Envelope,
    body=st.binary(),
    content_type=st.text(),
    content_encoding=st.text(),
    headers=tables,
    properties=tables.filter(lambda table: not set(table) & set(of_one_delivery)),
    exchange=st.text(),
    routing_key=st.text(),
)


def json_like(value: Any) -> Any:
    """Take out what kombu's own JSON reads as something else (its marks for dates and the like)."""
    return "__type__" not in repr(value)


@given(envelopes.filter(lambda e: json_like((e.headers, e.properties))), st.text())
def test_a_packed_message_comes_back_the_same_whatever_its_bytes(envelope: Envelope, tag: str) -> None:
    assert unpack(envelope.pack(tag)) == envelope
    assert unpack(envelope.pack(tag).encode()) == envelope


@given(st.binary(), st.integers(0, 9))
def test_kombu_reads_a_packed_message_as_its_own(body: bytes, priority: int) -> None:
    envelope = Envelope(body, "application/data", "binary", {"id": "1"}, {"priority": priority}, "ex", "rk")
    with Connection("memory://") as connection:
        channel = connection.channel()
        message = channel.message_to_python(loads(envelope.pack("tag")))
        channel.close()

    assert bytes(message.body) == body
    assert message.delivery_tag == "tag"
    assert message.headers == {"id": "1"}
    assert message.delivery_info == {"exchange": "ex", "routing_key": "rk"}
    assert (message.properties["priority"], envelope.priority) == (priority, priority)


def test_a_priority_that_is_none_or_no_number_is_0() -> None:
    def priority_of(properties: dict[str, Any]) -> int:
        return Envelope(b"", "", "", {}, properties, "", "").priority

    assert [priority_of(p) for p in ({}, {"priority": None}, {"priority": "x"}, {"priority": 6})] == [0, 0, 0, 6]


def a_message(**more: Any) -> Message:
    """Give a message as a Redis consumer gets it."""
    headers = {"id": "1", "task": "t", "mine": [1], "retries": 0}
    fields = {
        "body": '[[1], {}, {"chain": null}]',
        "content_type": "application/json",
        "content_encoding": "utf-8",
        "headers": headers,
        "delivery_tag": "tag",
        "delivery_info": {"exchange": "", "routing_key": "shop", "redelivered": True},
        "properties": {"correlation_id": "1", "priority": 3, "delivery_tag": "tag", "delivery_info": {}},
        **more,
    }
    return Message(**fields)


def test_whoever_runs_the_task_gets_the_original_message() -> None:
    message = a_message()
    hand_over(message)
    properties = pickle.loads(pickle.dumps(message.properties))
    envelope = original(properties, message.delivery_info)

    assert envelope is not None
    assert envelope.body == b'[[1], {}, {"chain": null}]'
    assert envelope.headers == {"id": "1", "task": "t", "mine": [1], "retries": 0}
    assert envelope.properties == {"correlation_id": "1", "priority": 3}
    assert (envelope.exchange, envelope.routing_key) == ("", "shop")


def test_marks_of_one_delivery_do_not_travel_on() -> None:
    marks = {
        "redelivered": True,
        "x-death": [{}],
        "x-delivery-count": 3,
        "x-first-death-queue": "q",
        "compression": "z",
    }
    message = a_message(headers={"id": "1", **marks})
    hand_over(message)
    envelope = original(message.properties, message.delivery_info)

    assert envelope is not None
    assert envelope.headers == {"id": "1"}


def test_a_message_that_no_worker_of_ours_received_has_no_original() -> None:
    assert original(None, None) is None
    assert original({}, {}) is None


@pytest.mark.parametrize("serializer", ["json", "pickle"])
def test_other_arguments_keep_serialization_and_canvas_links(serializer: str) -> None:
    content_type, encoding, body = registry.dumps(([1], {"a": 1}, {"chain": [2]}), serializer=serializer)
    body = body.encode() if isinstance(body, str) else body
    before = Envelope(body, content_type, encoding, {"argsrepr": "(1,)"}, {}, "", "q")
    after = with_arguments(before, (5,), {"b": 2}, accept=[serializer])

    args, kwargs, embed = registry.loads(after.body, after.content_type, after.content_encoding, accept=[content_type])
    assert (list(args), kwargs, embed) == ([5], {"b": 2}, {"chain": [2]})
    assert after.headers == {"argsrepr": "(5,)", "kwargsrepr": "{'b': 2}"}
    assert after.content_type == content_type
