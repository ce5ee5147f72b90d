"""The letter: whatever the message, it comes back byte for byte, and its end is told within bounds."""

from __future__ import annotations

import datetime
import json
import pickle
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_resilience.attempts import HEADER, Attempts
from celery_resilience.deadletter.letter import (
    LETTER_HEADER,
    LETTER_TYPE,
    MAX_HEADER,
    make_letter,
    read_letter,
    to_message,
)
from celery_resilience.decision import DeadReason
from celery_resilience.failure import FailureClass
from celery_resilience.testing import FakeClock
from celery_resilience.transport.envelope import _OF_ONE_DELIVERY, Envelope
from tests.support.failures import failure_of


def message(body: bytes = b"[[1], {}, {}]", **headers: Any) -> Envelope:
    headers = {"id": "t-1", "task": "shop.charge", **headers}
    properties = {"priority": 3, "correlation_id": "t-1", "expiration": "5000"}
    return Envelope(body, "application/json", "utf-8", headers, properties, "", "shop")


simple = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text()
tables = st.dictionaries(st.text(), simple | st.lists(simple, max_size=3), max_size=5)
envelopes = st.builds(
    Envelope,
    body=st.binary(),
    content_type=st.text().filter(lambda text: text != LETTER_TYPE),
    content_encoding=st.text(),
    headers=tables.filter(lambda table: not any(name.startswith(("x-", "redelivered")) for name in table)),
    properties=tables.filter(lambda table: not set(table) & set(_OF_ONE_DELIVERY)),  # an envelope never holds those
    exchange=st.text(),
    routing_key=st.text(),
)


@given(envelopes, st.sampled_from(DeadReason), st.text(), st.booleans())
def test_a_letter_and_its_message_come_back_the_same(
    envelope: Envelope, reason: DeadReason, words: str, wrapped: bool
) -> None:
    letter = make_letter(envelope, reason, error=words, clock=FakeClock())

    assert letter.envelope == envelope
    if "__type__" not in repr(envelope):  # kombu's own marks
        assert read_letter(to_message(letter, wrapped=wrapped)) == letter


@pytest.mark.parametrize("body", [pickle.dumps(({}, [])), b"\xff\xfe\x00", b"!!python/object:os.system", b""])
def test_a_body_is_carried_and_never_read(body: bytes) -> None:
    letter = make_letter(message(body), DeadReason.UNDECODABLE, error="no")

    assert read_letter(to_message(letter)).envelope.body == body


class TestItsName:
    def test_the_same_death_told_twice_has_one_name(self) -> None:
        assert make_letter(message(), DeadReason.PERMANENT).id == make_letter(message(), DeadReason.EXHAUSTED).id

    @pytest.mark.parametrize(
        "other",
        [
            make_letter(message(), DeadReason.POISON),
            make_letter(message(b"other bytes"), DeadReason.PERMANENT),
            make_letter(message(id="t-2"), DeadReason.PERMANENT),
            make_letter(message(), DeadReason.PERMANENT, attempts=Attempts(attempt=2)),
            make_letter(message(), DeadReason.PERMANENT, attempts=Attempts(generation=1)),
        ],
    )
    def test_another_death_has_another(self, other: Any) -> None:
        assert make_letter(message(), DeadReason.PERMANENT).id != other.id

    @pytest.mark.parametrize("task_id", [None, 7, "", "x" * 600, "a\0b", "\ud800", ["a"]])
    def test_without_a_trustworthy_task_id_the_delivery_tells(self, task_id: Any) -> None:
        def named(unique: str | None) -> str:
            return make_letter(message(id=task_id), DeadReason.MALFORMED, unique=unique).id

        assert named("tag-1") == named("tag-1")
        assert named("tag-1") != named("tag-2")
        assert named(None) != named(None)

    def test_the_message_id_serves_where_there_is_one(self) -> None:
        envelope = replace(message(id=None), properties={"message_id": "m-1"})

        ids = {make_letter(envelope, DeadReason.MALFORMED).id for _ in range(2)}
        assert len(ids) == 1


class TestWhatIsTold:
    def test_all_of_the_failure_and_the_attempts(self) -> None:
        clock = FakeClock()
        attempts = Attempts(attempt=2, task_id="t-1", generation=1, queue="shop").after_failure(
            failure_of(), delay=1, at=clock.time() - 60, worker="w"
        )
        letter = make_letter(
            message(group="g"), DeadReason.EXHAUSTED, failure=failure_of(), attempts=attempts, clock=clock
        )

        assert (letter.attempt, letter.generation, letter.queue, letter.task) == (3, 1, "shop", "shop.charge")
        assert (letter.failure_class, letter.error_type) == ("NETWORK", "tests.Made")
        assert (letter.first_failed_at, letter.failed_at) == (clock.time() - 60, clock.time())
        assert letter.canvas == {"group": "g"}
        assert "python" in letter.versions

    def test_the_attempts_of_the_messages_own_header_serve_too(self) -> None:
        header = Attempts(attempt=4, task_id="t-1").to_header()

        assert make_letter(message(**{HEADER: header}), DeadReason.WORKER_LOST).attempt == 4
        assert make_letter(message(id="other", **{HEADER: header}), DeadReason.WORKER_LOST).attempt == 1

    @pytest.mark.parametrize(
        ("reason", "kind"),
        [(DeadReason.POISON, FailureClass.POISON), (DeadReason.MALFORMED, FailureClass.STRUCTURAL)],
    )
    def test_without_a_failure_the_reason_gives_the_class(self, reason: DeadReason, kind: FailureClass) -> None:
        letter = make_letter(message(), reason, error=ValueError("no"))

        assert (letter.failure_class, letter.error_type, letter.error_message) == (
            kind.value,
            "builtins.ValueError",
            "no",
        )
        assert len(letter.fingerprint) == 16

    def test_an_error_without_text_is_told_by_its_type(self) -> None:
        class MuteError(Exception):
            def __str__(self) -> str:
                raise ValueError

        assert "Mute" in make_letter(message(), DeadReason.PERMANENT, error=MuteError()).error_message

    def test_secrets_are_hidden(self) -> None:
        letter = make_letter(
            message(), DeadReason.PERMANENT, error="password='hunter2'", traceback="get(token='abc123')"
        )

        assert "hunter2" not in letter.error_message
        assert "abc123" not in letter.traceback

    def test_a_long_traceback_is_cut_at_its_beginning(self) -> None:
        letter = make_letter(message(), DeadReason.PERMANENT, traceback="é\n" * 50_000 + "the last line")
        header = to_message(letter).headers[LETTER_HEADER]

        assert MAX_HEADER * 0.9 < len(header) <= MAX_HEADER
        assert read_letter(to_message(letter)).traceback.endswith("the last line")

    def test_whatever_else_is_long_the_header_is_not(self) -> None:
        trail = tuple({"error": "x" * 20_000} for _ in range(10))
        letter = make_letter(message(), DeadReason.PERMANENT, attempts=Attempts(trail=trail), error="y" * 40_000)

        assert len(to_message(letter).headers[LETTER_HEADER]) <= MAX_HEADER
        assert read_letter(to_message(letter)).id == letter.id

    def test_headers_too_many_for_amqp_go_into_the_body(self) -> None:
        letter = make_letter(message(mine="x" * 120_000), DeadReason.PERMANENT)
        carried = to_message(letter)

        assert carried.content_type == LETTER_TYPE
        assert read_letter(carried) == letter

    def test_what_would_change_its_way_travels_inside(self) -> None:
        carried = to_message(make_letter(message(), DeadReason.PERMANENT))

        assert carried.properties == {"correlation_id": "t-1"}
        assert read_letter(carried).envelope.properties["expiration"] == "5000"


class TestStrangers:
    def test_what_rabbitmq_dead_lettered_is_understood(self) -> None:
        death = {
            "reason": "expired",
            "queue": "shop",
            "exchange": "ex",
            "routing-keys": ["rk"],
            "count": 1,
            "time": datetime.datetime(2026, 1, 1),
        }
        carried = replace(message(**{"x-death": [death], "x-first-death-queue": "shop"}), routing_key="resilience.dlq")
        letter = read_letter(carried)

        assert (letter.reason, letter.queue, letter.task) == (DeadReason.EXPIRED, "shop", "shop.charge")
        assert (letter.envelope.exchange, letter.envelope.routing_key) == ("ex", "rk")
        assert set(letter.envelope.headers) == {"id", "task"}
        assert read_letter(carried).id == letter.id

    @pytest.mark.parametrize("death", [None, [], "x", [1], [{"reason": "maxlen"}], [{}]])
    def test_whatever_x_death_holds_it_is_a_letter(self, death: Any) -> None:
        assert read_letter(message(**{"x-death": death})).reason is DeadReason.REJECTED

    @pytest.mark.parametrize(
        "header", ["", "{", "[]", "1", 7, None, json.dumps({"id": "x"}), "[" * 100_000, b"\xff", {"id": 1}]
    )
    def test_a_header_that_is_not_ours_makes_a_strangers_letter(self, header: Any) -> None:
        letter = read_letter(message(**{LETTER_HEADER: header}))

        assert letter.reason is DeadReason.REJECTED
        assert letter.envelope.body == message().body

    def test_a_wrapper_that_is_not_ours_does_too(self) -> None:
        assert read_letter(replace(message(b"{}"), content_type=LETTER_TYPE)).reason is DeadReason.REJECTED
