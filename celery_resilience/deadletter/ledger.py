"""The ledger: the SQL archive of letters, where they are searched, counted and settled.

A letter is written once, by its id; each later change of state is a compare-and-set that says whether it won.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from sqlalchemy import ColumnElement, Connection, Select, delete, desc, func, insert, select, tuple_, update
from sqlalchemy.dialects import postgresql, sqlite

from ..redaction import redact_text
from ..sql_store import Database
from ..transport.envelope import unpack
from .filters import GROUPS, LetterFilter
from .letter import DeadLetter, letter_text, load_letter
from .tables import AUDIT, LETTERS, MESSAGES

TEXT_LIMIT = 1000
PREVIEW_LIMIT = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredLetter:
    """A letter as a listing shows it, without its message."""

    id: str
    state: str
    reason: str
    task: str | None
    task_id: str | None
    queue: str | None
    failure_class: str
    error_type: str
    error_message: str
    fingerprint: str
    attempt: int
    generation: int
    first_failed_at: float | None
    failed_at: float
    collected_at: float
    settled_at: float | None
    parked: bool
    job_id: str | None

    def as_dict(self) -> dict[str, Any]:
        """Give plain values for JSON."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Letters that have one thing in common, with the newest of them as an example."""

    key: str | None
    count: int
    first_failed_at: float
    last_failed_at: float
    example: StoredLetter

    def as_dict(self) -> dict[str, Any]:
        """Give plain values for JSON."""
        return {**{one.name: getattr(self, one.name) for one in fields(self)}, "example": self.example.as_dict()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """One row of the audit."""

    at: float
    who: str
    verb: str
    selection: Mapping[str, Any]
    count: int
    note: str

    def as_dict(self) -> dict[str, Any]:
        """Give plain values for JSON."""
        return {one.name: getattr(self, one.name) for one in fields(self)}


_SHOWN = [LETTERS.c[one.name] for one in fields(StoredLetter)]


class Ledger:
    """Letters in a database. Everything raises StoreUnavailableError where the database is away."""

    def __init__(self, database: Database) -> None:
        self.database = database

    def add(self, letters: Sequence[DeadLetter], state: str = "waiting") -> int:
        """Write letters down; those that are there already stay as they are. Gives how many were new."""
        unique = {letter.id: letter for letter in letters}
        now = self.database.clock.time()
        with self.database.write() as connection:
            known = set(connection.scalars(select(LETTERS.c.id).where(LETTERS.c.id.in_(list(unique)))))
            new = {id: letter for id, letter in unique.items() if id not in known}
            if not new:
                return 0
            rows = [_row(letter, now, state) for letter in new.values()]
            connection.execute(_once(connection, LETTERS, "id"), rows)
            numbers = connection.execute(select(LETTERS.c.id, LETTERS.c.number).where(LETTERS.c.id.in_(list(new))))
            messages = [_message(number, new[id]) for id, number in numbers]
            connection.execute(_once(connection, MESSAGES, "number"), messages)
        return len(new)

    def find(self, chosen: LetterFilter, limit: int = 50, after: str | None = None) -> list[StoredLetter]:
        """List letters, the latest death first; `after` is the id of the last one seen."""
        with self.database.read() as connection:
            query = select(*_SHOWN).where(*chosen.conditions())
            if after is not None:
                seen = connection.execute(_place_of(after)).first()
                if seen is None:
                    return []
                query = query.where(tuple_(LETTERS.c.failed_at, LETTERS.c.number) < tuple_(*seen))
            query = query.order_by(desc(LETTERS.c.failed_at), desc(LETTERS.c.number)).limit(limit)
            return [_stored(row) for row in connection.execute(query).mappings()]

    def get(self, letter_id: str) -> tuple[StoredLetter, DeadLetter] | None:
        """Give one letter with all that is known of it, None if there is none of this id."""
        query = select(*_SHOWN, MESSAGES.c.told, MESSAGES.c.packed).join(MESSAGES, _same_number())
        with self.database.read() as connection:
            row = connection.execute(query.where(LETTERS.c.id == letter_id)).mappings().first()
        return None if row is None else (_stored(row), read_row(row["told"], row["packed"]))

    def count(self, chosen: LetterFilter, also: Sequence[ColumnElement[bool]] = ()) -> int:
        """Count letters."""
        with self.database.read() as connection:
            query = select(func.count()).select_from(LETTERS).where(*chosen.conditions(), *also)
            return int(connection.execute(query).scalar_one())

    def counts(self, by: str, chosen: LetterFilter) -> dict[str, int]:
        """Count letters by one column."""
        column = LETTERS.c[by]
        with self.database.read() as connection:
            query = select(column, func.count()).where(*chosen.conditions()).group_by(column)
            return {str(key): int(count) for key, count in connection.execute(query)}

    def groups(self, chosen: LetterFilter, by: str = "fingerprint", limit: int = 50) -> list[Group]:
        """Count letters by what they have in common, the largest group first."""
        key, seen = GROUPS[by], LETTERS.c.failed_at
        query = select(key, func.count(), func.min(seen), func.max(seen), func.max(LETTERS.c.number))
        query = query.where(*chosen.conditions()).group_by(key).order_by(desc(func.count()), desc(func.max(seen)))
        with self.database.read() as connection:
            rows = connection.execute(query.limit(limit)).all()
            wanted = select(LETTERS.c.number, *_SHOWN).where(LETTERS.c.number.in_([row[4] for row in rows]))
            examples = {row["number"]: _stored(row) for row in connection.execute(wanted).mappings()}
        return [
            Group(key=row[0], count=row[1], first_failed_at=row[2], last_failed_at=row[3], example=examples[row[4]])
            for row in rows
            if row[4] in examples
        ]

    def oldest(self) -> float | None:
        """Give when the oldest letter that waits died, None if none waits."""
        query = select(func.min(LETTERS.c.failed_at)).where(*LetterFilter().conditions())
        with self.database.read() as connection:
            found = connection.execute(query).scalar()
        return None if found is None else float(found)

    def related(self, task_id: str) -> list[StoredLetter]:
        """List all letters of one task, the first death first: it may have died again after a requeue."""
        query = select(*_SHOWN).where(LETTERS.c.task_id == task_id).order_by(LETTERS.c.number).limit(100)
        with self.database.read() as connection:
            return [_stored(row) for row in connection.execute(query).mappings()]

    def parked_groups(self) -> list[str]:
        """Name the groups whose chords wait for a letter."""
        query = select(LETTERS.c.group_id).distinct().where(
            LETTERS.c.parked, LETTERS.c.group_id.is_not(None), *LetterFilter().conditions()
        )  # fmt: skip
        with self.database.read() as connection:
            return [str(group) for group in connection.scalars(query)]

    def delete(self, chosen: LetterFilter, limit: int, also: Sequence[ColumnElement[bool]] = ()) -> int:
        """Delete up to `limit` letters with their messages, but none that is claimed; gives how many."""
        with self.database.write() as connection:
            query = select(LETTERS.c.number).where(*chosen.conditions(), LETTERS.c.state != "claimed", *also)
            numbers = list(connection.scalars(query.limit(limit)))
            connection.execute(delete(MESSAGES).where(MESSAGES.c.number.in_(numbers)))
            connection.execute(delete(LETTERS).where(LETTERS.c.number.in_(numbers)))
        return len(numbers)

    def note(self, *, who: str, verb: str, selection: Mapping[str, Any], count: int = 0, note: str = "") -> int:
        """Write an action into the audit; gives its number."""
        row = {
            "at": self.database.clock.time(),
            "who": _clean(who)[:200],
            "verb": verb,
            "selection": json.dumps(dict(selection)),
            "count": count,
            "note": _clean(note),
        }
        with self.database.write() as connection:
            key: Any = connection.execute(insert(AUDIT).values(**row)).inserted_primary_key
            return int(key[0])

    def count_action(self, number: int, more: int) -> None:
        """Add to the count of an action."""
        with self.database.write() as connection:
            connection.execute(update(AUDIT).where(AUDIT.c.number == number).values(count=AUDIT.c.count + more))

    def actions(self, limit: int = 50) -> list[Action]:
        """List the audit, the newest first."""
        query = select(AUDIT).order_by(desc(AUDIT.c.number)).limit(limit)
        with self.database.read() as connection:
            rows = connection.execute(query).mappings().all()
        return [
            Action(
                at=row["at"],
                who=row["who"],
                verb=row["verb"],
                selection=json.loads(row["selection"]),
                count=row["count"],
                note=row["note"],
            )
            for row in rows
        ]


def read_row(told: str, packed: bytes) -> DeadLetter:
    """Give a letter as it was written down."""
    return load_letter(json.loads(told), unpack(packed))


def arguments_of(letter: DeadLetter) -> str:
    """Give the preview of a letter's arguments that its sender wrote, without secrets; nothing is decoded for it."""
    headers = letter.envelope.headers
    words = [str(headers.get(name) or "") for name in ("argsrepr", "kwargsrepr")]
    return redact_text(" ".join(word for word in words if word))[:PREVIEW_LIMIT]


def _row(letter: DeadLetter, now: float, state: str) -> dict[str, Any]:
    message = redact_text(letter.error_message)
    words = (letter.task, letter.error_type, message, letter.queue, letter.task_id, arguments_of(letter))
    group = letter.canvas.get("group")
    row = {
        "id": letter.id,
        "state": state,
        "reason": str(letter.reason),
        "task": letter.task,
        "task_id": letter.task_id,
        "queue": letter.queue,
        "failure_class": letter.failure_class[:32],
        "error_type": letter.error_type[:500],
        "error_name": letter.error_type.rpartition(".")[2][:500],
        "error_message": message[:2000],
        "fingerprint": letter.fingerprint,
        "arguments": _same_arguments(letter),
        "attempt": letter.attempt,
        "generation": letter.generation,
        "first_failed_at": letter.first_failed_at,
        "failed_at": letter.failed_at,
        "collected_at": now,
        "settled_at": None,
        "parked": letter.parked,
        "job_id": letter.job_id,
        "group_id": group if isinstance(group, str) and len(group) <= 500 else None,
        "claim": None,
        "text": "\n".join(word for word in words if word).lower()[:TEXT_LIMIT],
    }
    return {name: _clean(value) if isinstance(value, str) else value for name, value in row.items()}


def _message(number: int, letter: DeadLetter) -> dict[str, Any]:
    try:
        packed = letter.envelope.pack(letter.id)
    except (TypeError, ValueError):  # a header of AMQP that JSON has no word for
        plain = json.loads(json.dumps(dict(letter.envelope.headers), default=repr, skipkeys=True))
        properties = json.loads(json.dumps(dict(letter.envelope.properties), default=repr, skipkeys=True))
        packed = replace(letter.envelope, headers=plain, properties=properties).pack(letter.id)
    return {"number": number, "told": letter_text(letter), "packed": packed.encode("utf-8", "surrogatepass")}


def _same_arguments(letter: DeadLetter) -> str:
    """Give what letters of the same task and arguments share, as far as can be told without decoding a body."""
    headers = letter.envelope.headers
    known = [letter.task, headers.get("argsrepr"), headers.get("kwargsrepr")]
    of_call = repr(known).encode("utf-8", "replace") if known[1] or known[2] else letter.envelope.body
    return hashlib.blake2b(of_call, digest_size=16).hexdigest()


def _clean(text: str) -> str:
    """Give text that every database takes: PostgreSQL knows no NUL, and no lone surrogates."""
    if text.isascii() and "\0" not in text:
        return text
    return text.replace("\0", "␀").encode("utf-8", "backslashreplace").decode("utf-8")


def _once(connection: Connection, table: Any, key: str) -> Any:
    dialect: Any = postgresql if connection.dialect.name == "postgresql" else sqlite
    return dialect.insert(table).on_conflict_do_nothing(index_elements=[key])


def _place_of(letter_id: str) -> Select[Any]:
    return select(LETTERS.c.failed_at, LETTERS.c.number).where(LETTERS.c.id == letter_id)


def _same_number() -> Any:
    return LETTERS.c.number == MESSAGES.c.number


def _stored(row: Mapping[Any, Any]) -> StoredLetter:
    return StoredLetter(**{one.name: row[one.name] for one in fields(StoredLetter)})
