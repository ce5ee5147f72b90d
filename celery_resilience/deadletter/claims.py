"""Claims: batches of letters that one operator is settling, and what becomes of them if he dies.

A claim has an end. After it, and not before, somebody else takes it over and finishes what it says.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, delete, func, insert, select, update

from ..sql_store import Database
from .filters import LetterFilter
from .tables import AUDIT, CLAIMS, LETTERS, MESSAGES

PORTION_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A batch: its name, until when it is its holder's, who that is, and what is to be done with its letters."""

    token: str
    until: float
    who: str
    plan: Mapping[str, Any]

    @property
    def run(self) -> str:
        """Name the run of an operator that this batch belongs to."""
        return self.token.partition("/")[0]


class Held(NamedTuple):
    """One letter of a claim: enough to send it, no more is decoded."""

    number: int
    id: str
    queue: str | None
    parked: bool
    reason: str
    failure_class: str
    error_type: str
    error_message: str
    fingerprint: str
    attempt: int
    generation: int
    failed_at: float
    packed: bytes


_HELD = [LETTERS.c[name] for name in Held._fields if name != "packed"]


class Claims:
    """The claims of a ledger. Everything raises StoreUnavailableError where the database is away."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def make(self, claim: Claim, chosen: LetterFilter, limit: int, unless: Sequence[ColumnElement[bool]] = ()) -> int:
        """Claim up to `limit` letters that wait, the earliest death first; what another holds is passed over.

        `unless` names conditions under which a letter is left alone.
        """
        conditions = [*replace(chosen, state="waiting").conditions(), *(~one for one in unless)]
        picked = select(LETTERS.c.number).where(*conditions).order_by(LETTERS.c.failed_at, LETTERS.c.number)
        picked = picked.limit(limit).with_for_update(skip_locked=True)
        with self._database.write() as connection:
            numbers = list(connection.scalars(picked))
            if not numbers:
                return 0
            row = {"token": claim.token, "until": claim.until, "who": claim.who, "plan": json.dumps(dict(claim.plan))}
            connection.execute(insert(CLAIMS), [row])
            return self._change(connection, numbers, "waiting", {"state": "claimed", "claim": claim.token})

    def letters(self, claim: Claim) -> Iterator[list[Held]]:
        """Give the letters that are still claimed, no more at once than memory should hold."""
        mine = LETTERS.c.claim == claim.token, LETTERS.c.state == "claimed"
        sizes = select(LETTERS.c.number, func.length(MESSAGES.c.packed)).join(MESSAGES, _same_number())
        with self._database.read() as connection:
            found = connection.execute(sizes.where(*mine).order_by(LETTERS.c.number)).all()
        query = select(*_HELD, MESSAGES.c.packed).join(MESSAGES, _same_number()).order_by(LETTERS.c.number)
        for numbers in _portions([(number, size) for number, size in found]):
            with self._database.read() as connection:
                rows = connection.execute(query.where(LETTERS.c.number.in_(numbers))).all()
            yield [Held._make(row) for row in rows]

    def settle(self, claim: Claim, done: Sequence[int], state: str) -> int:
        """Mark letters as requeued or discarded; those of the claim that are not among them wait again."""
        now = self._database.clock.time()
        with self._database.write() as connection:
            mine = LETTERS.c.claim == claim.token, LETTERS.c.state == "claimed"
            every = set(connection.scalars(select(LETTERS.c.number).where(*mine)))
            values = {"state": state, "settled_at": now, "claim": claim.run}
            settled = self._change(connection, [number for number in done if number in every], "claimed", values)
            self._change(connection, sorted(every.difference(done)), "claimed", {"state": "waiting", "claim": None})
            connection.execute(delete(CLAIMS).where(CLAIMS.c.token == claim.token))
            counted = update(AUDIT).where(AUDIT.c.number == claim.plan.get("audit"))
            connection.execute(counted.values(count=AUDIT.c.count + settled))
        return settled

    def expired(self, now: float) -> list[Claim]:
        """List the claims whose holder has not come to an end in time."""
        query = select(CLAIMS).where(CLAIMS.c.until < now).order_by(CLAIMS.c.until).limit(100)
        with self._database.read() as connection:
            rows = connection.execute(query).mappings().all()
        return [
            Claim(token=row["token"], until=row["until"], who=row["who"], plan=json.loads(row["plan"])) for row in rows
        ]

    def take_over(self, claim: Claim, until: float) -> Claim | None:
        """Become the holder of a claim that has ended; None if another was faster."""
        still = CLAIMS.c.token == claim.token, CLAIMS.c.until == claim.until
        with self._database.write() as connection:
            won = connection.execute(update(CLAIMS).where(*still).values(until=until)).rowcount == 1
        return Claim(token=claim.token, until=until, who=claim.who, plan=claim.plan) if won else None

    def died_again(self, run: str) -> int:
        """Count the letters of tasks that a run sent back and that died once more."""
        old, new = LETTERS.alias("old"), LETTERS.alias("new")
        again = (new.c.task_id == old.c.task_id) & (new.c.generation > old.c.generation)
        query = select(func.count(func.distinct(old.c.number))).select_from(old.join(new, again))
        query = query.where(old.c.claim == run)
        with self._database.read() as connection:
            return int(connection.execute(query).scalar_one())

    def task_ids(self, run: str) -> list[str]:
        """Give the ids of the tasks that a run has sent back."""
        query = select(LETTERS.c.task_id).where(LETTERS.c.claim == run, LETTERS.c.task_id.is_not(None))
        with self._database.read() as connection:
            return [str(task_id) for task_id in connection.scalars(query)]

    @staticmethod
    def _change(connection: Connection, numbers: Sequence[int], before: str, values: Mapping[str, Any]) -> int:
        if not numbers:
            return 0
        still = LETTERS.c.number.in_(list(numbers)), LETTERS.c.state == before
        return int(connection.execute(update(LETTERS).where(*still).values(**values)).rowcount)


def _portions(sizes: Sequence[tuple[int, int]]) -> Iterator[list[int]]:
    """Divide rows into portions whose messages fit into memory together; one that does not fits alone."""
    portion: list[int] = []
    total = 0
    for number, size in sizes:
        if portion and total + size > PORTION_BYTES:
            yield portion
            portion, total = [], 0
        portion.append(number)
        total += size
    if portion:
        yield portion


def _same_number() -> ColumnElement[bool]:
    return LETTERS.c.number == MESSAGES.c.number
