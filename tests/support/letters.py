"""Letters made to order, and a place where they are dealt with: an app with its broker, its database and its desk."""

from __future__ import annotations

import contextlib
import itertools
import json
import uuid
from typing import Any

from celery import Celery
from kombu import Connection, Queue

from celery_resilience.attempts import Attempts
from celery_resilience.clock import SYSTEM_CLOCK, Clock
from celery_resilience.deadletter import DeadLetter, make_letter
from celery_resilience.deadletter.desk import Desk
from celery_resilience.decision import DeadReason
from celery_resilience.failure import Failure, FailureClass
from celery_resilience.runtime import Runtime, use_runtime
from celery_resilience.transport.envelope import Envelope, unpack
from tests.support.waiting import wait_until

_numbers = itertools.count(1)


def a_message(body: bytes | None = None, *, queue: str = "shop", priority: int = 0, **headers: Any) -> Envelope:
    """Make a message of a task as Celery sends it."""
    number = next(_numbers)
    body = json.dumps([[number], {}, {"chain": None}]).encode() if body is None else body
    known = {"id": str(uuid.uuid4()), "task": "shop.charge", "argsrepr": f"({number},)", "kwargsrepr": "{}"}
    return Envelope(
        body,
        "application/json",
        "utf-8",
        {**known, **headers},
        {"priority": priority, "delivery_mode": 2, "correlation_id": known["id"]},
        "",
        queue,
    )


def a_letter(
    body: bytes | None = None,
    *,
    reason: DeadReason = DeadReason.EXHAUSTED,
    error: str = "ValueError",
    words: str = "no",
    kind: FailureClass = FailureClass.UNKNOWN,
    fingerprint: str = "0123456789abcdef",
    attempt: int = 5,
    parked: bool = False,
    clock: Clock = SYSTEM_CLOCK,
    **message: Any,
) -> DeadLetter:
    """Make a letter; what is not told is the same for all but the message's own id."""
    failure = Failure(
        failure_class=kind,
        retry_after=None,
        fingerprint=fingerprint,
        reason="",
        error_type=f"builtins.{error}",
        message=words,
    )
    envelope = a_message(body, **message)
    attempts = Attempts(attempt=attempt, task_id=envelope.headers["id"])
    return make_letter(envelope, reason, failure=failure, attempts=attempts, parked=parked, clock=clock)


class Office:
    """An app whose desk is under test; `another()` is the same in a second process as far as state is concerned."""

    def __init__(
        self, broker: str, database: str, *, clock: Clock = SYSTEM_CLOCK, redis: str = "", **conf: Any
    ) -> None:
        mark = uuid.uuid4().hex[:8]
        self.conf = {
            "resilience_dlq_queue": f"dlq-{mark}",
            "resilience_database_url": database,
            "task_default_queue": f"default-{mark}",
            "result_backend": redis or None,
            **conf,
        }
        self.broker = broker
        self.clock = clock
        self._others: list[Office] = []
        self._open()

    def _open(self) -> None:
        self.app = Celery(f"office-{self.conf['resilience_dlq_queue']}", broker=self.broker, set_as_current=False)
        self.app.conf.update(self.conf)
        self.runtime = Runtime(self.app, self.clock)
        use_runtime(self.app, self.runtime)

    @property
    def desk(self) -> Desk:
        """The desk under test."""
        return self.runtime.desk

    def another(self, **conf: Any) -> Office:
        """Give the same office with connections of its own."""
        other = Office.__new__(Office)
        other.__dict__.update(self.__dict__)
        other.conf = {**self.conf, **conf}
        name = self.app.main
        other._others = []
        other._open()
        other.app.main = name
        self._others.append(other)
        return other

    def fill(self, *letters: DeadLetter) -> list[DeadLetter]:
        """Put letters into the ledger, past the DLQ."""
        for start in range(0, len(letters), 500):
            self.desk.ledger.add(letters[start : start + 500])
        return list(letters)

    def declare(self, *queues: str) -> None:
        """Make queues, which RabbitMQ wants."""
        with Connection(self.broker) as connection:
            for queue in queues:
                Queue(queue, durable=True, channel=connection.channel()).queue_declare()

    def drain(self, queue: str = "shop", expect: int = 0) -> list[Envelope]:
        """Take every message out of a queue, once there are as many as expected."""
        from celery_resilience.transport.taker import Taker

        found: list[Envelope] = []
        with contextlib.closing(Taker(self.app, limit_seconds=5)) as taker:

            def enough() -> bool:
                while taken := taker.take(queue, 1000):
                    found.extend(envelope for envelope, _ in taken)
                    taker.ack()
                return len(found) >= expect

            wait_until(enough, 10, lambda: f"{expect} messages in {queue}, found {len(found)}")
        return found

    def close(self) -> None:
        """Close connections and delete what RabbitMQ would keep."""
        for other in self._others:
            other.close()
        with contextlib.suppress(Exception):
            self.desk.close()
        self.app.close()


def same_message(letter: DeadLetter, packed: bytes) -> bool:
    """Say whether a packed message is the letter's."""
    return unpack(packed) == letter.envelope
