"""The desk: what an operator does with letters. The same verbs serve Python, the command line and the dashboard.

Whatever is settled is claimed first, done, and marked; what a crash leaves in between, the next run finishes.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from celery import Celery
from sqlalchemy import ColumnElement

from ..clock import Clock
from ..crashpoints import crashpoint
from ..errors import ResilienceError, StoreUnavailableError
from ..events import Event, tell
from . import settling
from .filters import LetterFilter, selection_of
from .identity import Registration
from .ledger import Action, Group, Ledger, StoredLetter
from .letter import DeadLetter
from .queue import DeadLetterQueue
from .redrive import Redrive, check_edits
from .settling import Order, Outcome, Settling
from .tables import LETTERS

logger = logging.getLogger(__name__)

DAY = 86400.0
Selection = LetterFilter | str | Sequence[str]


class Desk:
    """The verbs on letters. All raise StoreUnavailableError where database or broker are away."""

    def __init__(
        self,
        app: Celery,
        queue: DeadLetterQueue,
        ledger: Ledger,
        redrive: Redrive,
        registration: Registration,
        *,
        retention_days: float,
        open_breaker_of: Callable[[str], str | None],
        clock: Clock,
    ) -> None:
        self._app = app
        self._queue = queue
        self._ledger = ledger
        self._redrive = redrive
        self._registration = registration
        self._retention_days = retention_days
        self._clock = clock
        self._collecting = threading.Lock()
        self._settling = Settling(app, ledger, redrive, open_breaker_of=open_breaker_of, clock=clock)

    @property
    def ledger(self) -> Ledger:
        """The ledger, once it is sure that it is the one of the whole fleet."""
        self._registration.check()
        return self._ledger

    def collect(self, limit: int | None = None) -> int:
        """Move letters from the DLQ into the ledger, all or about `limit`; gives how many were new."""
        new = taken = 0
        with self._collecting:
            self.ledger.database.probe()  # a queue that counts deliveries must not see letters go to and fro
            while limit is None or taken < limit:
                batch = self._queue.take(settling.BATCH)
                if not batch.letters:
                    return new
                try:
                    new += self.ledger.add(batch.letters)
                except BaseException:
                    with contextlib.suppress(StoreUnavailableError):
                        batch.release()
                    raise
                taken += len(batch.letters)
                crashpoint("desk.collected")
                batch.ack()
        return new

    def depth(self) -> int:
        """Count the letters that wait in the DLQ to be collected."""
        return self._queue.depth()

    def find(self, chosen: LetterFilter | None = None, limit: int = 50, after: str | None = None) -> list[StoredLetter]:
        """List letters, the latest death first; `after` is the id of the last one seen."""
        return self.ledger.find(chosen or LetterFilter(), limit, after)

    def get(self, letter_id: str) -> tuple[StoredLetter, DeadLetter] | None:
        """Give one letter with its message, None if there is none of this id."""
        return self.ledger.get(letter_id)

    def groups(self, chosen: LetterFilter | None = None, by: str = "fingerprint", limit: int = 50) -> list[Group]:
        """Count letters by fingerprint, error, task, class, queue or arguments, the largest group first."""
        return self.ledger.groups(chosen or LetterFilter(), by, limit)

    def count(self, chosen: LetterFilter | None = None) -> int:
        """Count letters."""
        return self.ledger.count(chosen or LetterFilter())

    def actions(self, limit: int = 50) -> list[Action]:
        """List what operators did, the newest first."""
        return self.ledger.actions(limit)

    def requeue(
        self, selection: Selection, order: Order | None = None, *, who: str = "python", note: str = ""
    ) -> Outcome:
        """Send letters back to their queues, each once whoever else does the same. What a crash left is settled first.

        Stops where it is told to; what is left waits as before.
        """
        order, chosen = order or Order(), selection_of(selection)
        check_edits(order.args, order.kwargs)
        audit = self.ledger.note(who=who, verb="requeue", selection=chosen.as_dict(), note=note)
        self.settle()
        plan = {
            "verb": "requeue",
            "to": order.to,
            "args": {str(place): value for place, value in order.args.items()},
            "kwargs": dict(order.kwargs),
            "audit": audit,
        }
        return self._settling.run(chosen, order, plan, who)

    def discard(self, selection: Selection, reason: str, *, who: str = "python") -> Outcome:
        """End letters with a reason: what waits for a parked one fails now."""
        chosen = selection_of(selection)
        audit = self.ledger.note(who=who, verb="discard", selection=chosen.as_dict(), note=reason)
        return self._settling.run(chosen, Order(force=True), {"verb": "discard", "reason": reason, "audit": audit}, who)

    def purge(self, selection: Selection, *, who: str = "python", note: str = "") -> Outcome:
        """Delete letters from the ledger; parked ones are discarded first, or their chords would wait for ever."""
        chosen, done = selection_of(selection), 0
        audit = self.ledger.note(who=who, verb="purge", selection=chosen.as_dict(), note=note)
        if chosen.state in ("waiting", "any"):
            plan = {"verb": "discard", "reason": f"purged {note}".strip()}
            parked = replace(chosen, state="waiting")
            run = self._settling.run(parked, Order(force=True), plan, who, unless=[~LETTERS.c.parked]).run
            done += self._delete(LetterFilter(state="discarded"), audit, [LETTERS.c.claim == run])
        return Outcome(done=done + self._delete(chosen, audit))

    def settle(self) -> int:
        """Finish what runs that died have left claimed; gives how many letters."""
        self._registration.check()
        return self._settling.finish_the_dead()

    def tend(self) -> int:
        """Finish what dead runs have left, and once an hour in the fleet purge what is too old; gives how many of that.

        Chords that wait for letters are the collector's to keep alive.
        """
        self.settle()
        if not self._registration.is_our_turn("tend", 3600):
            return 0
        old = LetterFilter(until=self._clock.time() - self._retention_days * DAY, state="any")
        if not self.ledger.count(old):
            return 0
        purged = self.purge(old, who="retention").done
        tell(logger, logging.INFO, Event.LETTERS_PURGED, count=purged)
        return purged

    def restore(self, letters: Iterable[tuple[DeadLetter, str]], *, who: str = "python") -> int:
        """Write letters into the ledger as they were exported, each with its state; gives how many were new."""
        new, by_state = 0, dict[str, list[DeadLetter]]()
        for letter, state in letters:
            by_state.setdefault("waiting" if state == "claimed" else state, []).append(letter)
            if sum(map(len, by_state.values())) >= settling.BATCH:
                new += sum(self.ledger.add(some, one) for one, some in by_state.items())
                by_state.clear()
        new += sum(self.ledger.add(some, one) for one, some in by_state.items())
        self.ledger.note(who=who, verb="import", selection={}, count=new)
        return new

    def held_back(self, chosen: LetterFilter) -> dict[str, str]:
        """Name the tasks among the letters whose breaker is open, with the breaker."""
        self._registration.check()
        return self._settling.held_back(chosen)

    def died_again(self, run: str) -> int:
        """Count the tasks that a run sent back and that died once more; only what is collected is known."""
        return self._settling.claims.died_again(run)

    def task_ids(self, run: str) -> list[str]:
        """Give the ids of the tasks that a run has sent back."""
        return self._settling.claims.task_ids(run)

    def without_queue(self, chosen: LetterFilter) -> int:
        """Count the letters that can only be sent to a queue that is given."""
        return self.ledger.count(replace(chosen, state="waiting"), [LETTERS.c.queue.is_(None)])

    def close(self) -> None:
        """Close the connections."""
        self._redrive.close()
        self._queue.close()

    def _delete(self, chosen: LetterFilter, audit: int, also: Sequence[ColumnElement[bool]] = ()) -> int:
        done = 0
        while deleted := self._ledger.delete(chosen, settling.BATCH, also):
            self._ledger.count_action(audit, deleted)
            done += deleted
        return done


def no_such_letter(letter_id: str) -> ResilienceError:
    """Say that there is no letter of an id."""
    return ResilienceError(f"No letter has the id {letter_id!r}: `celery -A proj dlq list --state any` shows them.")
