"""Step 1: letters, their messages, claims and the audit."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Float,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
    text,
)

_NUMBER = BigInteger().with_variant(Integer, "sqlite")  # only INTEGER counts by itself there


def apply(connection: Connection) -> None:
    """Make the tables."""
    metadata = MetaData()
    letters = _letters(metadata)
    _others(metadata)
    _index(letters)
    metadata.create_all(connection)


def _letters(metadata: MetaData) -> Table:
    return Table(
        "resilience_letters",
        metadata,
        Column("number", _NUMBER, primary_key=True, autoincrement=True),
        Column("id", String(64), nullable=False, unique=True),
        Column("state", String(16), nullable=False),
        Column("reason", String(32), nullable=False),
        Column("task", String(500)),
        Column("task_id", String(500)),
        Column("queue", String(500)),
        Column("failure_class", String(32), nullable=False),
        Column("error_type", String(500), nullable=False),
        Column("error_name", String(500), nullable=False),
        Column("error_message", Text, nullable=False),
        Column("fingerprint", String(64), nullable=False),
        Column("arguments", String(64), nullable=False),
        Column("attempt", Integer, nullable=False),
        Column("generation", Integer, nullable=False),
        Column("first_failed_at", Float),
        Column("failed_at", Float, nullable=False),
        Column("collected_at", Float, nullable=False),
        Column("settled_at", Float),
        Column("parked", Boolean, nullable=False),
        Column("job_id", String(500)),
        Column("group_id", String(500)),
        Column("claim", String(100)),
        Column("text", Text, nullable=False),
    )


def _others(metadata: MetaData) -> None:
    Table(
        "resilience_messages",
        metadata,
        Column("number", BigInteger, primary_key=True, autoincrement=False),
        Column("told", Text, nullable=False),
        Column("packed", LargeBinary, nullable=False),
    )
    Table(
        "resilience_claims",
        metadata,
        Column("token", String(100), primary_key=True),
        Column("until", Float, nullable=False),
        Column("who", String(200), nullable=False),
        Column("plan", Text, nullable=False),
    )
    Table(
        "resilience_audit",
        metadata,
        Column("number", _NUMBER, primary_key=True, autoincrement=True),
        Column("at", Float, nullable=False),
        Column("who", String(200), nullable=False),
        Column("verb", String(32), nullable=False),
        Column("selection", Text, nullable=False),
        Column("count", Integer, nullable=False),
        Column("note", Text, nullable=False),
    )


def _index(letters: Table) -> None:
    """Index what waits by each thing it is asked for; those indexes shrink as letters are settled."""
    waits = text("state = 'waiting'")
    for name in ("task", "queue", "failure_class", "error_name", "fingerprint"):
        columns = (letters.c[name], letters.c.failed_at, letters.c.number)
        Index(f"resilience_waiting_{name}", *columns, sqlite_where=waits, postgresql_where=waits)
    by_time = (letters.c.failed_at, letters.c.number)
    Index("resilience_waiting_failed_at", *by_time, sqlite_where=waits, postgresql_where=waits)
    Index("resilience_letters_failed_at", *by_time)
    Index("resilience_letters_task_id", letters.c.task_id)
    claimed = text("claim IS NOT NULL")
    Index("resilience_letters_claim", letters.c.claim, sqlite_where=claimed, postgresql_where=claimed)
    parked = text("parked AND state = 'waiting'")
    Index("resilience_letters_parked", letters.c.number, sqlite_where=parked, postgresql_where=parked)
