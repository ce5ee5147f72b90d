"""The desk over every broker and database: each letter is in one place, and goes back once."""

from __future__ import annotations

import contextlib
import json
import pickle
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kombu import Connection
from sqlalchemy import update

from celery_resilience.attempts import HEADER, read_attempts
from celery_resilience.deadletter.claims import Claim, Claims
from celery_resilience.deadletter.filters import LetterFilter
from celery_resilience.deadletter.settling import NO_QUEUE, Order
from celery_resilience.deadletter.tables import CLAIMS
from celery_resilience.decision import DeadReason
from celery_resilience.errors import ResilienceError, SplitDatabaseError, StoreUnavailableError
from celery_resilience.testing import EmbeddedRedis
from tests.support.letters import Office, a_letter
from tests.support.missing import missing
from tests.support.postgres import Postgres, find_postgres

EVERYTHING = LetterFilter(state="any")


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    return str(request.getfixturevalue("postgres").new_database())


@pytest.fixture(params=["redis", "rabbitmq"])
def office(request: pytest.FixtureRequest, database: str, resilience_redis: EmbeddedRedis) -> Iterator[Office]:
    redis = resilience_redis.url
    broker = redis if request.param == "redis" else request.getfixturevalue("rabbitmq").url
    with contextlib.closing(Office(broker, database, redis=redis)) as office:
        office.declare("shop")
        yield office
        if request.param == "rabbitmq":
            with Connection(broker) as connection:
                connection.channel().queue_delete("shop")


class TestCollecting:
    def test_letters_come_from_the_dlq_into_the_ledger_as_they_are(self, office: Office) -> None:
        letters = [a_letter(), a_letter(pickle.dumps(1)), a_letter(b"\xff\xfe", words="é\0\ud800")]
        for letter in letters:
            office.runtime.dead_letters.publish(letter)
        office.drain("nothing")  # RabbitMQ counts a confirmed message a moment later
        collected = office.desk.collect()

        assert collected == 3
        assert office.desk.depth() == 0
        for letter in letters:
            stored = office.desk.get(letter.id)
            assert stored is not None
            assert stored[1].envelope == letter.envelope

    def test_the_same_letter_twice_is_one_row(self, office: Office) -> None:
        letter = a_letter()
        for _ in range(3):
            office.runtime.dead_letters.publish(letter)
        office.desk.collect()

        assert office.desk.count(EVERYTHING) == 1
        assert office.desk.depth() == 0

    def test_a_letter_that_was_settled_is_not_revived_by_its_copy(self, office: Office) -> None:
        letter = a_letter()
        office.fill(letter)
        office.desk.requeue(letter.id)
        office.runtime.dead_letters.publish(letter)
        office.desk.collect()

        assert [one.state for one in office.desk.find(EVERYTHING)] == ["requeued"]


class TestRequeue:
    def test_the_same_bytes_go_back_to_the_origin_queue_and_numbers_go_on(self, office: Office) -> None:
        old = "2020-01-01"
        letter = a_letter(b'[[1], {"a":  "\xc3\xa9"}, {}]', expires=old, eta=old, retries=4, group="g")
        office.fill(letter)
        outcome = office.desk.requeue(letter.id, who="ann", note="try again")
        message = office.drain(expect=1)[0]
        attempts = read_attempts(message.headers[HEADER])

        assert outcome.done == 1
        assert message.body == letter.envelope.body
        assert (message.exchange, message.routing_key) == ("", "shop")
        kept = ("id", "task", "group", "argsrepr")
        assert {name: message.headers[name] for name in kept} == {name: letter.envelope.headers[name] for name in kept}
        assert [message.headers[name] for name in ("retries", "eta", "expires")] == [0, None, None]
        assert (attempts.attempt, attempts.generation, attempts.failed_attempts) == (6, 1, 1)
        assert (attempts.queue, attempts.task_id, attempts.trail[-1]["attempt"]) == ("shop", letter.task_id, 5)
        assert [(one.who, one.verb, one.count, one.note) for one in office.desk.actions()] == [
            ("ann", "requeue", 1, "try again")
        ]

    def test_one_that_never_ran_spends_no_attempt(self, office: Office) -> None:
        office.fill(a_letter(reason=DeadReason.CIRCUIT_OPEN, attempt=2))
        office.desk.requeue(LetterFilter())

        assert read_attempts(office.drain(expect=1)[0].headers[HEADER]).attempt == 2

    def test_each_goes_once_however_many_operators_there_are(self, office: Office) -> None:
        letters = office.fill(*(a_letter() for _ in range(1200)))
        desks = [office.desk, office.another().desk, office.another().desk]
        done: list[int] = []
        threads = [
            threading.Thread(target=lambda desk=desk: done.append(desk.requeue(LetterFilter()).done)) for desk in desks
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        sent = [message.headers["id"] for message in office.drain(expect=1200)]

        assert sum(done) == 1200
        assert sorted(sent) == sorted(str(letter.task_id) for letter in letters)
        assert office.desk.count(LetterFilter(state="requeued")) == 1200

    def test_what_is_requeued_is_not_requeued_again(self, office: Office) -> None:
        letter = office.fill(a_letter())[0]
        office.desk.requeue(letter.id)

        assert office.desk.requeue(letter.id).done == 0
        assert len(office.drain(expect=1)) == 1

    def test_another_queue_and_other_arguments_on_a_copy(self, office: Office) -> None:
        office.declare("other")
        letter = office.fill(a_letter(b'[[1, 2], {"a": 1}, {"chain": null}]'))[0]
        office.desk.requeue(letter.id, Order(to="other", args={1: "x"}, kwargs={"b": [2]}))
        message = office.drain("other", expect=1)[0]
        stored = office.desk.get(letter.id)

        assert json.loads(message.body) == [[1, "x"], {"a": 1, "b": [2]}, {"chain": None}]
        assert "x" in message.headers["argsrepr"]
        assert read_attempts(message.headers[HEADER]).queue == "other"
        assert stored is not None
        assert stored[1].envelope == letter.envelope

    @pytest.mark.parametrize("body", [pickle.dumps(((1,), {}, {})), b"[]", b"\xff", b"[[], {}, {}]"])
    def test_arguments_that_cannot_be_set_leave_the_letter_waiting(self, office: Office, body: bytes) -> None:
        letters = office.fill(a_letter(body), a_letter(b"[[1, 2, 3, 4], {}, {}]"))
        outcome = office.desk.requeue(LetterFilter(), Order(args={3: 1}))

        assert outcome.done == 1
        assert sum(outcome.left.values()) == 1
        assert [one.id for one in office.desk.find()] == [letters[0].id]

    def test_values_that_json_has_no_word_for_are_refused(self, office: Office) -> None:
        with pytest.raises(ResilienceError, match="JSON"):
            office.desk.requeue(LetterFilter(), Order(kwargs={"a": object()}))

    def test_without_an_origin_queue_it_waits_to_be_told(self, office: Office) -> None:
        letter = replace(a_letter(), queue=None)
        office.fill(letter)

        assert office.desk.requeue(LetterFilter()).left == {NO_QUEUE: 1}
        assert office.desk.requeue(LetterFilter(), Order(to="shop")).done == 1
        assert len(office.drain(expect=1)) == 1

    def test_it_stops_where_it_is_told_to_and_the_rest_waits(self, office: Office) -> None:
        office.fill(*(a_letter() for _ in range(10)))
        limited = office.desk.requeue(LetterFilter(), Order(limit=3))
        told = office.desk.requeue(LetterFilter(), Order(first=2, may_go_on=lambda _run, sent: f"enough: {sent}"))

        assert (limited.done, told.done, told.stopped) == (3, 2, "enough: 2")
        assert office.desk.count() == 5

    def test_an_open_breaker_holds_its_tasks_back(self, office: Office) -> None:
        def charge() -> None: ...

        office.app.task(name="shop.charge", breaker="payments", shared=False)(charge)
        office.fill(a_letter(), a_letter(task="shop.mail"))
        office.runtime.breaker("payments").force_open(who="ann", why="test")
        outcome = office.desk.requeue(LetterFilter())

        assert outcome.done == 1
        assert list(outcome.left.values()) == [1]
        assert "payments" in next(iter(outcome.left))
        assert office.desk.requeue(LetterFilter(), Order(force=True)).done == 1

    def test_bodies_of_20_mb_go_one_after_the_other(self, office: Office) -> None:
        body = b"x" * (20 * 2**20)
        office.fill(*(a_letter(body + bytes([n])) for n in range(2)))

        assert office.desk.requeue(LetterFilter()).done == 2
        assert sorted(message.body[-1] for message in office.drain(expect=2)) == [0, 1]

    def test_what_died_again_is_counted_by_run(self, office: Office) -> None:
        letters = office.fill(*(a_letter() for _ in range(3)))
        run = office.desk.requeue(LetterFilter()).run
        office.fill(replace(letters[0], id="again", generation=1))

        assert office.desk.died_again(run) == 1


class TestDiscardAndPurge:
    def test_a_discarded_letter_is_kept_with_its_reason_in_the_audit(self, office: Office) -> None:
        letter = office.fill(a_letter())[0]

        assert office.desk.discard(letter.id, "a test order", who="ann").done == 1
        assert office.desk.discard(letter.id, "again").done == 0
        assert [one.state for one in office.desk.find(EVERYTHING)] == ["discarded"]
        assert [(one.verb, one.count, one.note) for one in office.desk.actions()][-1] == ("discard", 1, "a test order")

    def test_a_parked_one_fails_what_waits_for_it(self, office: Office) -> None:
        letter = office.fill(a_letter(parked=True))[0]
        office.desk.discard(LetterFilter(), "hopeless")
        result = office.app.AsyncResult(str(letter.task_id))

        assert result.state == "FAILURE"
        assert "hopeless" in str(result.result)

    def test_a_purge_deletes_and_discards_what_is_parked_first(self, office: Office) -> None:
        letters = office.fill(a_letter(parked=True), a_letter(), a_letter())
        office.desk.requeue(letters[2].id)
        outcome = office.desk.purge(LetterFilter(), who="ann")

        assert outcome.done == 2
        assert [one.id for one in office.desk.find(EVERYTHING)] == [letters[2].id]
        assert office.app.AsyncResult(str(letters[0].task_id)).state == "FAILURE"
        assert (office.desk.actions()[0].verb, office.desk.actions()[0].count) == ("purge", 2)

    def test_what_is_too_old_is_purged_once_an_hour(self, office: Office) -> None:
        old = replace(a_letter(), failed_at=office.clock.time() - 31 * 86400)
        office.fill(old, a_letter())

        assert (office.desk.tend(), office.desk.tend()) == (1, 0)
        assert office.desk.count(EVERYTHING) == 1

    def test_what_was_exported_can_be_restored(self, office: Office) -> None:
        letters = office.fill(*(a_letter() for _ in range(3)))
        office.desk.discard(letters[0].id, "no")
        kept = [(letter, stored.state) for stored, letter in map(office.desk.get, [one.id for one in letters])]  # type: ignore[misc]
        office.desk.purge(EVERYTHING)

        assert office.desk.restore(kept) == 3
        assert office.desk.restore(kept) == 0
        assert office.desk.count() == 2
        assert office.desk.get(letters[1].id)[1] == letters[1]  # type: ignore[index]


class TestAfterACrash:
    """A claim whose holder died, at each point; what was between is settled by the next run."""

    def claimed(self, office: Office, **plan: Any) -> Any:
        plan = {"verb": "requeue", "to": None, **plan}
        claim = Claim(token="dead/0", until=office.desk._redrive.now() + 60, who="ann", plan=plan)
        Claims(office.runtime.database).make(claim, LetterFilter(), 100)
        return claim

    def end(self, office: Office, token: str) -> None:
        with office.runtime.database.write() as connection:
            connection.execute(update(CLAIMS).where(CLAIMS.c.token == token).values(until=1.0))

    def test_nobody_else_touches_what_is_claimed(self, office: Office) -> None:
        office.fill(a_letter())
        self.claimed(office)

        assert office.desk.requeue(LetterFilter()).done == 0
        assert office.desk.purge(EVERYTHING).done == 0
        assert office.desk.discard(LetterFilter(), "no").done == 0

    def test_claimed_and_not_sent_it_is_sent_by_the_next_run(self, office: Office) -> None:
        office.fill(a_letter())
        self.end(office, self.claimed(office, to="shop").token)

        assert office.desk.settle() == 1
        assert len(office.drain(expect=1)) == 1

    def test_sent_and_not_marked_it_is_sent_no_second_time_or_under_one_name(self, office: Office) -> None:
        office.fill(a_letter())
        claim = self.claimed(office)
        for letters in office.desk._settling.claims.letters(claim):
            office.desk._redrive.send(claim, letters, Counter())
        self.end(office, claim.token)
        office.another().desk.requeue(LetterFilter())
        sent = office.drain(expect=1)

        assert office.desk.count(LetterFilter(state="requeued")) == 1
        if office.runtime.broker_store is not None:
            assert len(sent) == 1
        else:  # workers run one of them: the same requeue under two nonces
            marks = [str(read_attempts(message.headers[HEADER]).requeue).split(":") for message in sent]
            assert len(marks) == 2
            assert marks[0][0] == marks[1][0]
            assert marks[0][1] != marks[1][1]

    def test_a_sleeper_that_wakes_after_its_claim_ended_sends_nothing(self, office: Office) -> None:
        from collections import Counter

        if office.runtime.broker_store is None:
            return  # where the broker has no clock, workers tell the copies apart
        office.fill(a_letter())
        claim = replace(self.claimed(office), until=1.0)
        letters = next(office.desk._settling.claims.letters(claim))
        with pytest.raises(StoreUnavailableError, match="ended"):
            office.desk._redrive.send(claim, letters, Counter())

        assert office.drain() == []


class TestTheFleetsDatabase:
    def test_a_second_database_is_refused_by_name(self, office: Office, tmp_path: Path) -> None:
        office.fill(a_letter())
        other = office.another(resilience_database_url=f"sqlite:///{tmp_path / 'other.db'}")
        with pytest.raises(SplitDatabaseError, match=r"other\.db.*adopt-database"):
            other.desk.find()
        other.runtime.dead_letters.publish(a_letter())
        with pytest.raises(SplitDatabaseError):
            other.desk.collect()

        assert other.desk.depth() == 1
        other.runtime.registration.adopt()
        assert other.desk.find() == []
        with pytest.raises(SplitDatabaseError):
            office.desk.find()


def test_while_the_database_is_away_letters_wait_in_the_dlq(resilience_redis: EmbeddedRedis) -> None:
    programs = find_postgres()
    if programs is None:
        missing("PostgreSQL", "run `make servers`")
    with contextlib.closing(Postgres(programs, durable=True)) as server:
        office = Office(resilience_redis.url, server.new_database(), redis=resilience_redis.url)
        office.fill(a_letter())
        server.stop()
        office.runtime.dead_letters.publish(a_letter())
        with pytest.raises(StoreUnavailableError):
            office.desk.collect()
        assert office.desk.depth() == 1
        server.start()

        assert office.desk.collect() == 1
        assert (office.desk.depth(), office.desk.count()) == (0, 2)
        office.close()
