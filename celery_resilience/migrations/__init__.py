"""The schema of our tables, by numbered steps that are applied under a lock and never changed once released.

Each step is a module `mNNNN_noun` with `apply(connection)`. A database that is newer than the code is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sqlalchemy import Column, Connection, Float, Integer, MetaData, String, Table, func, insert, inspect, select, text

from ..clock import Clock
from ..errors import ConfigurationError
from . import m0001_letters

Step = Callable[[Connection], None]
STEPS: Sequence[Step] = (m0001_letters.apply,)
_LOCK = 7_203_518_004  # any number that nobody else takes
_metadata = MetaData()
VERSIONS = Table(
    "resilience_schema",
    _metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("applied_at", Float, nullable=False),
)
IDENTITY = Table(
    "resilience_database",
    _metadata,
    Column("identity", String(64), primary_key=True),
    Column("made_at", Float, nullable=False),
)


def migrate(connection: Connection, clock: Clock) -> str:
    """Bring the schema up to date inside a write transaction; gives the identity of the database.

    On PostgreSQL an advisory lock keeps others out, on SQLite the transaction itself does.
    """
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _LOCK})
    _metadata.create_all(connection)
    done = version(connection)
    if done > len(STEPS):
        raise ConfigurationError(
            "resilience_database_url",
            connection.engine.url.render_as_string(hide_password=True),
            f"has schema {done}, newer than the {len(STEPS)} that this version knows",
            "Upgrade celery-resilience here, too.",
        )
    for number, step in enumerate(STEPS[done:], start=done + 1):
        step(connection)
        connection.execute(insert(VERSIONS).values(version=number, applied_at=clock.time()))
    return _identity(connection, clock)


def version(connection: Connection) -> int:
    """Give the number of the last step that was applied, 0 if none was."""
    if not inspect(connection).has_table(VERSIONS.name):
        return 0
    return int(connection.execute(select(func.max(VERSIONS.c.version))).scalar() or 0)


def _identity(connection: Connection, clock: Clock) -> str:
    known = connection.execute(select(IDENTITY.c.identity)).scalar()
    if known is None:
        known = clock.token()
        connection.execute(insert(IDENTITY).values(identity=known, made_at=clock.time()))
    return str(known)
