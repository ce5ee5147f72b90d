"""The desk against a model: what entered is waiting, requeued, discarded or purged, in whatever order things come."""

from __future__ import annotations

import contextlib
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import update

from celery_resilience.attempts import HEADER, read_attempts
from celery_resilience.deadletter import DeadLetter
from celery_resilience.deadletter.claims import Claim
from celery_resilience.deadletter.filters import LetterFilter
from celery_resilience.deadletter.settling import Order
from celery_resilience.deadletter.tables import CLAIMS
from celery_resilience.testing import EmbeddedRedis
from tests.support.letters import Office, a_letter
from tests.support.proof import size

TASKS = ("shop.charge", "shop.mail")
tasks = st.sampled_from(TASKS)


class DeskMachine(RuleBasedStateMachine):
    """Letters die, are collected, settled and crash on their way; the model is a dictionary from id to state."""

    url = ""

    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory(prefix="resilience-machine-")
        self.office = Office(self.url, f"sqlite:///{Path(self._directory.name) / 'ledger.db'}", redis=self.url)
        self.in_dlq: dict[str, DeadLetter] = {}
        self.states: dict[str, str] = {}
        self.known: dict[str, DeadLetter] = {}
        self.claimed: dict[str, set[str]] = {}
        self.pushed = 0  # by operators that died before they could say so
        self.purged = 0
        self.entered = 0
        self.sent: Counter[str] = Counter()

    def _waiting(self, task: str) -> list[str]:
        return [id for id, state in self.states.items() if state == "waiting" and self.known[id].task == task]

    @initialize()
    def begin(self) -> None:
        """Nothing is learned from an empty ledger."""
        for task in TASKS:
            self.die(task, False, 1, True)

    @rule(task=tasks, parked=st.booleans(), copies=st.integers(1, 2), is_collected=st.booleans())
    def die(self, task: str, parked: bool, copies: int, is_collected: bool) -> None:
        for _ in range(2):
            letter = a_letter(task=task, parked=parked)
            for _ in range(copies):
                self.office.runtime.dead_letters.publish(letter)
            self.in_dlq[letter.id] = self.known[letter.id] = letter
        if is_collected:
            self.collect()

    @rule()
    def collect(self) -> None:
        assert self.office.desk.collect() == len(self.in_dlq)
        self.entered += len(self.in_dlq)
        self.states |= dict.fromkeys(self.in_dlq, "waiting")
        self.in_dlq.clear()

    @rule(task=tasks, limit=st.none() | st.integers(1, 3))
    def requeue(self, task: str, limit: int | None) -> None:
        waiting = self._waiting(task)
        outcome = self.office.desk.requeue(LetterFilter(task=task), Order(limit=limit))

        assert outcome.done == min(len(waiting), limit or len(waiting))
        for stored in self.office.desk.find(LetterFilter(task=task, state="requeued"), 1000):
            if self.states[stored.id] == "waiting":
                self.states[stored.id] = "requeued"
                self.sent[str(stored.task_id)] += 1

    @rule(task=tasks)
    def discard(self, task: str) -> None:
        waiting = self._waiting(task)

        assert self.office.desk.discard(LetterFilter(task=task), "no").done == len(waiting)
        self.states |= dict.fromkeys(waiting, "discarded")

    @rule(task=tasks, state=st.sampled_from(["waiting", "requeued", "discarded", "any"]))
    def purge(self, task: str, state: Any) -> None:
        chosen = [id for id, one in self.states.items() if self.known[id].task == task and one != "claimed"]
        chosen = [id for id in chosen if state in ("any", self.states[id])]

        assert self.office.desk.purge(LetterFilter(task=task, state=state)).done == len(chosen)
        self.purged += len(chosen)
        for id in chosen:
            del self.states[id]

    @rule(task=tasks, pushed=st.booleans(), verb=st.sampled_from(["requeue", "discard"]))
    def crash(self, task: str, pushed: bool, verb: str) -> None:
        """An operator dies with letters claimed, before or after they were sent."""
        desk, waiting = self.office.desk, self._waiting(task)
        token = f"{self.office.clock.token()}/0"
        claim = Claim(token=token, until=desk._redrive.now() + 60, who="ann", plan={"verb": verb, "reason": "no"})
        assert desk._settling.claims.make(claim, LetterFilter(task=task), 1000) == len(waiting)
        if pushed and verb == "requeue":
            for letters in desk._settling.claims.letters(claim):
                desk._redrive.send(claim, letters, Counter())
            self.pushed += len(waiting)
        if waiting:
            self.states |= dict.fromkeys(waiting, "claimed")
            self.claimed.setdefault(verb, set()).update(waiting)

    @precondition(lambda self: self.claimed)
    @rule()
    def settle(self) -> None:
        """The claims of the dead run out, and the next run finishes what they say."""
        with self.office.runtime.database.write() as connection:
            connection.execute(update(CLAIMS).values(until=1.0))
        assert self.office.another().desk.settle() == sum(map(len, self.claimed.values()))
        self.pushed = 0
        for id in self.claimed.pop("requeue", ()):
            self.states[id] = "requeued"
            self.sent[str(self.known[id].task_id)] += 1
        for id in self.claimed.pop("discard", ()):
            self.states[id] = "discarded"

    @rule()
    def run_and_die_again(self) -> None:
        """A worker runs everything that was sent back, and all of it dies once more."""
        if self.claimed.get("requeue"):
            return  # some of it may have been pushed: the model does not know which
        ran: Counter[str] = Counter()
        for message in self.office.drain():
            ran[message.headers["id"]] += 1
            attempts = read_attempts(message.headers[HEADER])
            old = next(letter for letter in self.known.values() if letter.task_id == message.headers["id"])
            again = replace(
                old, id=f"{old.task_id}.{attempts.generation}", generation=attempts.generation, envelope=message
            )
            self.office.runtime.dead_letters.publish(again)
            self.in_dlq[again.id] = self.known[again.id] = again

        assert ran == self.sent
        self.sent.clear()

    @invariant()
    def every_letter_is_in_one_place(self) -> None:
        counts = Counter(self.states.values())
        found = Counter(self.office.desk.ledger.counts("state", LetterFilter(state="any")))

        assert found == counts
        assert self.office.runtime.broker_store.command("LLEN", "shop") == sum(self.sent.values()) + self.pushed
        assert self.entered == sum(counts.values()) + self.purged

    def teardown(self) -> None:
        with contextlib.suppress(Exception):
            self.office.close()
        self._directory.cleanup()


@pytest.mark.timeout(size(120, 1800))
def test_what_entered_is_somewhere(resilience_redis: EmbeddedRedis) -> None:
    class Machine(DeskMachine):
        url = resilience_redis.url

        def teardown(self) -> None:
            super().teardown()
            resilience_redis.flush()

    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=size(25, 300),
            stateful_step_count=size(20, 40),
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
