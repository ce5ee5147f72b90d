"""A private PostgreSQL: own files, a Unix socket and no port, so that a system's own server is never touched."""

from __future__ import annotations

import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

import psycopg

from celery_resilience.testing.processes import spawn
from tests.support.waiting import wait_until

_numbers = itertools.count(1)


def find_postgres() -> Path | None:
    """Give the directory of the server's programs, the newest version first; None if it is not installed."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: path.parent.name, reverse=True)
    on_path = shutil.which("initdb")
    places += [Path(on_path).resolve().parent] if on_path else []
    return next((place for place in places if (place / "initdb").exists() and (place / "postgres").exists()), None)


class Postgres:
    """A server that answers when the constructor returns; `close()` ends it by its id and deletes its files.

    PostgreSQL refuses to run as root: then it runs as another user. `durable` writes to disk as in production.
    """

    def __init__(self, programs: Path, *, durable: bool = False) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="resilience-pg-"))
        self._user, self._prefix = _unprivileged(self._directory)
        self._process: subprocess.Popen[bytes] | None = None
        options = {"listen_addresses": "", "unix_socket_directories": str(self._directory), "max_connections": "60"}
        options |= {} if durable else {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
        try:
            data = str(self._directory / "data")
            initdb = [str(programs / "initdb"), "-D", data, "-A", "trust", "-E", "UTF8", "--no-sync", "-U", "test"]
            subprocess.run([*self._prefix, *initdb], check=True, capture_output=True, cwd=self._directory)
            self._command = [*self._prefix, str(programs / "postgres"), "-D", data]
            self._command += [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
            self.start()
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Start the server, again after `stop()`, and wait until it answers."""
        self._process = spawn(self._command, log=self._log, cwd=self._directory)
        wait_until(self._answers_or_died, 30, lambda: f"PostgreSQL to answer:\n{self.log()[-2000:]}")
        assert self._process.poll() is None, f"PostgreSQL did not start:\n{self.log()[-2000:]}"

    def url(self, database: str = "postgres") -> str:
        """Give the URL of a database as SQLAlchemy writes it."""
        return f"postgresql+psycopg://test@/{database}?host={self._directory}"

    def new_database(self) -> str:
        """Make an empty database and give its URL."""
        name = f"test{next(_numbers)}"
        with psycopg.connect(self._plain, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return self.url(name)

    def log(self) -> str:
        """Give what the server has logged so far."""
        return self._log.read_text(encoding="utf-8", errors="replace") if self._log.exists() else ""

    def stop(self) -> None:
        """End the server at once, as a power cut would; `start()` brings it back."""
        process, self._process = self._process, None
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGQUIT)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def close(self) -> None:
        """End the server and delete its files."""
        self.stop()
        shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def _plain(self) -> str:
        return f"host={self._directory} user=test dbname=postgres connect_timeout=5"

    @property
    def _log(self) -> Path:
        return self._directory / "postgres.log"

    def _answers_or_died(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            return True
        try:
            with psycopg.connect(self._plain) as connection:
                return connection.execute("SELECT 1").fetchone() == (1,)
        except psycopg.OperationalError:
            return False


def _unprivileged(directory: Path) -> tuple[str, list[str]]:
    """Give a user that PostgreSQL will run as, who owns the directory now, and the words to start a program so."""
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid()).pw_name, []
    names = {one.pw_name for one in pwd.getpwall()}
    user = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
    os.chown(directory, user.pw_uid, user.pw_gid)
    # Changing user forgets the signal that ends a child with its parent, so setpriv sets it again.
    prefix = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--pdeathsig=QUIT"]
    return user.pw_name, prefix
