"""Settling: the cycle of claim, do and mark through which every letter leaves the ledger's waiting state.

Killed at any point, nothing is lost: the claim says what was to be done, and whoever comes after its end finishes it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from celery import Celery
from sqlalchemy import ColumnElement

from ..clock import Clock
from ..crashpoints import crashpoint
from ..rate import Rate, read_rate
from ..transport.envelope import unpack
from .chords import fail_waiters
from .claims import Claim, Claims, Held
from .filters import LetterFilter
from .ledger import Ledger
from .redrive import Redrive
from .tables import LETTERS

BATCH = 1000
LEASE_SECONDS = 60.0
LOOK_SECONDS = 1.0  # how old the knowledge of breakers may be


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a selection: `done` letters, those `left` alone by reason, and why it `stopped` before its end."""

    done: int = 0
    left: Mapping[str, int] = field(default_factory=dict)
    stopped: str | None = None
    run: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Give plain values for JSON."""
        return {one.name: getattr(self, one.name) for one in fields(self)} | {"left": dict(self.left)}


def _always(_run: str, _done: int) -> str | None:
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """How letters are to be sent back.

    `to` is another queue; `args` (by place) and `kwargs` change a copy of the arguments; `rate` as in "50/s"; `force`
    sends in spite of an open breaker; `first` is the size of the first batch; `may_go_on` is asked after each batch,
    with the run and the number sent so far: words end the run, None lets it go on.
    """

    to: str | None = None
    args: Mapping[int, Any] = field(default_factory=dict)
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    rate: str | Rate | None = None
    force: bool = False
    limit: int | None = None
    first: int | None = None
    may_go_on: Callable[[str, int], str | None] = _always

    @property
    def pace(self) -> Rate | None:
        """Give the rate as a value."""
        return None if self.rate is None else read_rate("rate", self.rate)


class Settling:
    """Runs the cycle for one desk."""

    def __init__(
        self,
        app: Celery,
        ledger: Ledger,
        redrive: Redrive,
        *,
        open_breaker_of: Callable[[str], str | None],
        clock: Clock,
    ) -> None:
        self._app = app
        self._ledger = ledger
        self._redrive = redrive
        self._open_breaker_of = open_breaker_of
        self._clock = clock
        self.claims = Claims(ledger.database)

    def run(
        self,
        chosen: LetterFilter,
        order: Order,
        plan: Mapping[str, Any],
        who: str,
        unless: Sequence[ColumnElement[bool]] = (),
    ) -> Outcome:
        """Settle what is chosen, batch by batch, until nothing is left or it is told to stop."""
        run = _Run(self._clock.token(), self._gate(chosen, order))
        while run.stopped is None:
            size = _size(order, run)
            passed = [*unless, *_passed_over(plan, run)]
            claim = Claim(token=f"{run.name}/{run.number}", until=self._until(), who=who, plan=plan)
            run.number += 1
            if size <= 0:
                break
            with self._ledger.database.kept():
                if not self.claims.make(claim, chosen, size, passed):
                    break
                crashpoint("desk.claimed")
                sent = self.finish(claim, run.problems, run.failed)
            run.done += sent
            run.stopped = order.may_go_on(run.name, run.done)
            if order.pace is not None and run.stopped is None:
                self._clock.sleep(sent * order.pace.interval_seconds)
        return Outcome(done=run.done, left=self._left(chosen, plan, run), stopped=run.stopped, run=run.name)

    def finish(self, claim: Claim, problems: Counter[str], failed: list[int] | None = None) -> int:
        """Do what a claim says with its letters, and mark them; gives how many were settled."""
        done: dict[int, str] = {}
        every: list[int] = []
        is_discard = claim.plan["verb"] == "discard"
        for letters in self.claims.letters(claim):
            every += [held.number for held in letters]
            settled = self._fail(letters, claim) if is_discard else self._redrive.send(claim, letters, problems)
            done |= {held.number: held.id for held in settled}
        crashpoint("desk.published")
        count = self.claims.settle(claim, list(done), "discarded" if is_discard else "requeued")
        crashpoint("desk.marked")
        if not is_discard:
            self._redrive.forget(list(done.values()))
        if failed is not None:
            failed += sorted(set(every).difference(done))
        return count

    def finish_the_dead(self) -> int:
        """Finish what runs that died have left claimed; gives how many letters."""
        settled = 0
        for claim in self.claims.expired(self._redrive.now()):
            mine = self.claims.take_over(claim, self._until())
            if mine is not None:
                settled += self.finish(mine, Counter())
        return settled

    def held_back(self, chosen: LetterFilter) -> dict[str, str]:
        """Name the tasks among the letters whose breaker is open, with the breaker."""
        return self._open_among(self._tasks(chosen))

    def _gate(self, chosen: LetterFilter, order: Order) -> Callable[[], dict[str, str]]:
        """Give a function that names the tasks to hold back, from knowledge at most a second old."""
        if order.force:
            return dict
        tasks, known, asked_at = self._tasks(chosen), dict[str, str](), float("-inf")

        def look() -> dict[str, str]:
            nonlocal known, asked_at
            if self._clock.monotonic() - asked_at >= LOOK_SECONDS:
                known, asked_at = self._open_among(tasks), self._clock.monotonic()
            return known

        return look

    def _tasks(self, chosen: LetterFilter) -> list[str]:
        waiting = replace(chosen, state="waiting")
        return [group.key for group in self._ledger.groups(waiting, "task", 1000) if group.key]

    def _open_among(self, tasks: Sequence[str]) -> dict[str, str]:
        found = {task: self._open_breaker_of(task) for task in tasks}
        return {task: name for task, name in found.items() if name is not None}

    def _left(self, chosen: LetterFilter, plan: Mapping[str, Any], run: _Run) -> dict[str, int]:
        """Count what a run left alone, by reason."""
        left, waiting = dict(run.problems), replace(chosen, state="waiting")
        for task, name in run.held_back().items():
            left[f"The breaker {name} of {task} is open."] = self._ledger.count(replace(waiting, task=task))
        if plan["verb"] == "requeue" and not plan.get("to"):
            homeless = self._ledger.count(waiting, [LETTERS.c.queue.is_(None)])
            left |= {NO_QUEUE: homeless} if homeless else {}
        return left

    def _fail(self, letters: Sequence[Held], claim: Claim) -> Sequence[Held]:
        for held in letters:
            if held.parked:
                fail_waiters(self._app, unpack(held.packed), str(claim.plan.get("reason")))
        return letters

    def _until(self) -> float:
        return self._redrive.now() + LEASE_SECONDS


NO_QUEUE = "No single queue was their origin: give one."


@dataclass(slots=True)
class _Run:
    """How far a run has come."""

    name: str
    held_back: Callable[[], dict[str, str]]
    number: int = 0
    done: int = 0
    stopped: str | None = None
    problems: Counter[str] = field(default_factory=Counter)
    failed: list[int] = field(default_factory=list)


def _size(order: Order, run: _Run) -> int:
    """Give the size of the next batch: small where a rate is to be kept, or where the first must prove itself."""
    size, pace = BATCH, order.pace
    if run.number == 0 and order.first is not None:
        size = order.first
    elif pace is not None:
        size = max(1, min(BATCH, int(pace.calls / pace.seconds)))
    return size if order.limit is None else min(size, order.limit - run.done)


def _passed_over(plan: Mapping[str, Any], run: _Run) -> list[ColumnElement[bool]]:
    """Give the conditions under which a letter is left alone."""
    found: list[ColumnElement[bool]] = []
    if plan["verb"] == "requeue" and not plan.get("to"):
        found.append(LETTERS.c.queue.is_(None))
    if held_back := run.held_back():
        found.append(LETTERS.c.task.is_not(None) & LETTERS.c.task.in_(list(held_back)))
    if run.failed:
        found.append(LETTERS.c.number.in_(list(run.failed)))
    return found
