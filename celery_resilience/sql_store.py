"""The SQL store: where letters and jobs are kept, SQLite on one machine or PostgreSQL for more.

A connection is open for one piece of work and then closed. No SQLite connection is open while the process forks: a
child born in the midst of a write could never lock the file.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError
from sqlalchemy.pool import NullPool
from sqlalchemy.sql.expression import text

from .clock import SYSTEM_CLOCK, Clock
from .errors import ConfigurationError, StoreUnavailableError
from .migrations import migrate

BUSY_SECONDS = 10
CONNECT_SECONDS = 5
_WRITES = "resilience_writes"
_forking = threading.RLock()  # held while a SQLite connection is open, and by whoever forks


class Database:
    """The tables of one database; made or brought up to date at first use. Safe for threads and after a fork."""

    def __init__(self, url: str, clock: Clock = SYSTEM_CLOCK) -> None:
        self.clock = clock
        self._engine = _engine_of(url)
        self._identity: str | None = None
        self._mine = threading.local()

    @property
    def url(self) -> str:
        """Give the URL without its password."""
        return self._engine.url.render_as_string(hide_password=True)

    @property
    def is_sqlite(self) -> bool:
        """Say whether it is a file of this machine."""
        return self._engine.dialect.name == "sqlite"

    @property
    def identity(self) -> str:
        """Give the name that this database gave itself when it was made. Raises StoreUnavailableError."""
        if self._identity is None:
            with self._connected(writes=True) as connection:
                self._identity = migrate(connection, self.clock)
        return self._identity

    @contextlib.contextmanager
    def read(self) -> Iterator[Connection]:
        """Open a connection for reading. Raises StoreUnavailableError."""
        self.identity  # noqa: B018  # brings the schema up to date
        with self._connected(writes=False) as connection:
            yield connection

    @contextlib.contextmanager
    def write(self) -> Iterator[Connection]:
        """Open a transaction, committed at the end of the block. Raises StoreUnavailableError."""
        self.identity  # noqa: B018  # brings the schema up to date
        with self._connected(writes=True) as connection:
            yield connection

    def probe(self) -> None:
        """Raise StoreUnavailableError if the database does not answer now."""
        with self.read() as connection:
            connection.execute(text("SELECT 1"))

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """Use one connection for all that this thread does in the block: opening and closing is dear with SQLite."""
        with self._opened() as connection:
            self._mine.connection = connection
            try:
                yield
            finally:
                self._mine.connection = None

    @contextlib.contextmanager
    def _connected(self, *, writes: bool) -> Iterator[Connection]:
        known: Connection | None = getattr(self._mine, "connection", None)
        opened = self._opened() if known is None else contextlib.nullcontext(known)
        try:
            with opened as plain:
                connection = plain.execution_options(**{_WRITES: writes})
                with connection.begin():
                    yield connection
        except SQLAlchemyError as error:
            raise self._failed(error) from error

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Connection]:
        with _forking if self.is_sqlite else contextlib.nullcontext():
            try:
                connection = self._engine.connect()
            except SQLAlchemyError as error:
                raise self._failed(error) from error
            with connection:
                yield connection

    def _failed(self, error: SQLAlchemyError) -> StoreUnavailableError:
        words = error.orig if isinstance(error, DBAPIError) else error
        return StoreUnavailableError(f"The database {self.url} failed: {words}")


def default_url(app_name: str) -> str:
    """Give the URL of the SQLite file that serves an app without a setting: in the user's state directory.

    That is `$XDG_STATE_HOME/celery-resilience/APP.sqlite3`, or `~/.local/state/…` where the variable is not set.
    """
    home = os.environ.get("XDG_STATE_HOME") or ""
    state = Path(home) if home.startswith("/") else Path.home() / ".local" / "state"
    name = re.sub(r"[^\w.-]+", "_", app_name) or "celery"
    return f"sqlite:///{state / 'celery-resilience' / name}.sqlite3"


def _engine_of(url: str) -> Engine:
    try:
        parsed = make_url(url)
        if parsed.drivername == "postgresql":
            parsed = parsed.set(drivername="postgresql+psycopg")
        dialect = parsed.get_backend_name()
        options: dict[str, Any] = {"poolclass": NullPool}
        if dialect == "sqlite":
            _prepare_file(parsed.database)
            options["connect_args"] = {"timeout": BUSY_SECONDS}
        elif dialect == "postgresql":
            options["connect_args"] = {"connect_timeout": CONNECT_SECONDS}
        else:
            raise ConfigurationError(
                "resilience_database_url", dialect, "is not a database we know", "Use sqlite:/// or postgresql://."
            )
        engine = create_engine(parsed, **options)
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
        remedy = "Write sqlite:////absolute/path or postgresql+psycopg://user@host/name (pip install psycopg)."
        raise ConfigurationError("resilience_database_url", _no_password(url), str(error), remedy) from None
    if dialect == "sqlite":
        event.listen(engine, "connect", _on_connect)
        event.listen(engine, "begin", _on_begin)
    return engine


def _prepare_file(path: str | None) -> None:
    """Make the directory of the file; one relative to the working directory would be another for each process."""
    if not path or not os.path.isabs(path):
        raise ConfigurationError(
            "resilience_database_url", path, "is not an absolute path", "Write sqlite:////var/lib/shop/letters.db."
        )
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    except OSError as error:
        raise StoreUnavailableError(f"The directory of {path} cannot be made: {error}") from error


def _on_connect(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # transactions begin where we say so
    for pragma in ("journal_mode=WAL", "synchronous=FULL", f"busy_timeout={BUSY_SECONDS * 1000}"):
        connection.execute(f"PRAGMA {pragma}")


def _on_begin(connection: Connection) -> None:
    # A writer asks for the lock first: one that reads and then writes could be refused without waiting.
    connection.execute(text("BEGIN IMMEDIATE" if connection.get_execution_options().get(_WRITES) else "BEGIN"))


def _no_password(url: str) -> str:
    return re.sub(r"//([^:/@]*):[^@]*@", r"//\1:***@", url)


os.register_at_fork(before=_forking.acquire, after_in_parent=_forking.release, after_in_child=_forking.release)
