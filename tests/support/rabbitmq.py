"""A private RabbitMQ node: own name, ports, port mapper and files, so that a system's own node is never touched."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path

import kombu

from celery_resilience.testing.processes import end, spawn
from tests.support.process_tree import kill_session
from tests.support.waiting import wait_until

# Debian's own program on PATH changes user and directory; the one below it does not.
_PROGRAMS = ("/usr/lib/rabbitmq/bin/rabbitmq-server", "/opt/homebrew/sbin/rabbitmq-server", "rabbitmq-server")
_SETTINGS = (
    "listeners.tcp.1 = 127.0.0.1:{port}\ndisk_free_limit.absolute = 50MB\nlog.console = true\nlog.file = false\n"
)


def find_rabbitmq() -> str | None:
    """Give the path of the server program; None if it (or Erlang's port mapper) is not installed."""
    program = next(filter(None, map(shutil.which, _PROGRAMS)), None)
    return program if program and shutil.which("epmd") else None


class RabbitMQ:
    """A RabbitMQ node that answers when the constructor returns (about 5 s); `close()` ends it and its files."""

    def __init__(self, program: str) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="resilience-rabbitmq-"))
        self._port, dist_port, epmd_port = _free_ports(3)
        self._node = f"resilience{os.getpid()}x{self._port}@localhost"
        self._epmd: subprocess.Popen[bytes] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        env = self._environment(dist_port, epmd_port)
        try:
            # Started by us and not by Erlang, which would leave it behind as a daemon.
            command = ["epmd", "-address", "127.0.0.1", "-port", str(epmd_port)]
            self._epmd = spawn(command, log=self._directory / "epmd.log", env=env)
            wait_until(lambda: _is_open(epmd_port), 10, "epmd to listen")
            self._process = spawn([program], log=self._log_path, env=env, cwd=self._directory)
            wait_until(self._answers_or_died, 60, lambda: f"RabbitMQ to answer:\n{self.log()[-3000:]}")
            assert self._process.poll() is None, f"RabbitMQ did not start:\n{self.log()[-3000:]}"
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        """Give the URL of the default virtual host."""
        return f"amqp://guest:guest@127.0.0.1:{self._port}//"

    def log(self) -> str:
        """Give what the node has logged so far."""
        return self._log_path.read_text(encoding="utf-8", errors="replace") if self._log_path.exists() else ""

    def close(self) -> None:
        """Kill node and port mapper by their ids and delete their files; nothing in them is worth a slow goodbye."""
        if self._process is not None:
            kill_session(self._process.pid)
            self._process.wait()
            self._process = None
        if self._epmd is not None:
            end(self._epmd, limit_seconds=5)
            self._epmd = None
        shutil.rmtree(self._directory, ignore_errors=True)

    @property
    def _log_path(self) -> Path:
        return self._directory / "rabbitmq.log"

    def _environment(self, dist_port: int, epmd_port: int) -> dict[str, str]:
        here = self._directory
        (here / "rabbitmq.conf").write_text(_SETTINGS.format(port=self._port), encoding="utf-8")
        (here / "enabled_plugins").write_text("[].\n", encoding="utf-8")
        (here / "env.conf").touch()
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("RABBITMQ_", "ERL_"))}
        return inherited | {
            "HOME": str(here),  # the Erlang cookie is made there
            "RUNNING_UNDER_SYSTEMD": "true",  # the script becomes the node: it is our child and ends with us
            "ERL_EPMD_PORT": str(epmd_port),
            "RABBITMQ_NODENAME": self._node,
            "RABBITMQ_DIST_PORT": str(dist_port),
            "RABBITMQ_CONF_ENV_FILE": str(here / "env.conf"),
            "RABBITMQ_CONFIG_FILE": str(here / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(here / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(here / "enabled_plugins"),
            "RABBITMQ_MNESIA_BASE": str(here / "mnesia"),
            "RABBITMQ_LOG_BASE": str(here / "log"),
            "RABBITMQ_PID_FILE": str(here / "pid"),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1} +S 1:1",
        }

    def _answers_or_died(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            return True
        if not _is_open(self._port):
            return False
        with kombu.Connection(self.url, connect_timeout=2) as connection:
            try:
                properties = connection.connection.server_properties
            except connection.connection_errors:
                return False
        # Proof that it is our node: somebody else's would carry another name.
        return str(properties.get("cluster_name")).partition("@")[0] == self._node.partition("@")[0]


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0
