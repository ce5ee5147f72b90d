"""Real Celery workers in processes of their own, which tests may stop, freeze and kill."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from celery_resilience.testing.processes import spawn
from tests.support.process_tree import freeze_session, kill_session, members_of, send
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
_numbers = itertools.count(1)

Pool = Literal["prefork", "threads", "gevent", "solo"]
Loglevel = Literal["DEBUG", "INFO"]  # not above: "ready." is said at INFO
QUICK_START = ("--without-mingle", "--without-gossip")  # mingle alone waits a second for answers


class WorkerProcess:
    """A `celery worker` process; call `wait_ready()` before use and `close()` at the end, always (the fixture does)."""

    def __init__(
        self,
        app: str = "tests.apps.basic",
        *,
        log_dir: Path,
        pool: Pool = "prefork",
        concurrency: int = 2,
        queues: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        loglevel: Loglevel = "INFO",
        args: Sequence[str] = QUICK_START,
    ) -> None:
        self.name = f"w{next(_numbers)}-{os.getpid()}"
        self.log_path = log_dir / f"{self.name}.log"
        self._frozen: list[int] = []
        command = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            app,
            "worker",
            "--pool",
            pool,
            "--hostname",
            f"{self.name}@test",
        ]
        command += ["--concurrency", str(concurrency), "--loglevel", loglevel, *args]
        command += ["--queues", ",".join(queues)] if queues else []
        environment = {
            **os.environ,
            "PYTHONUNBUFFERED": "1",
            "PYTHONPATH": str(ROOT),
            "C_FORCE_ROOT": "1",
            **(env or {}),
        }
        self._process = spawn(command, log=self.log_path, env=environment, cwd=ROOT)

    @property
    def pid(self) -> int:
        """Give the id of the parent process."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Say whether the parent process runs (or is frozen)."""
        return self._process.poll() is None

    def tree(self) -> list[int]:
        """Give the ids of all living processes of this worker, the parent first."""
        return members_of(self.pid)

    def children(self) -> list[int]:
        """Give the ids of the pool's processes; none for the pools that have none."""
        return [pid for pid in self.tree() if pid != self.pid]

    def log(self) -> str:
        """Give what the worker has logged so far."""
        return self.log_path.read_text(encoding="utf-8", errors="replace") if self.log_path.exists() else ""

    def wait_for_log(self, text: str, seconds: float = 20.0) -> None:
        """Wait until a text is in the log; fail at once, showing the log's end, if the worker dies before."""

        def is_there_or_dead() -> bool:
            return text in self.log() or not self.is_alive

        wait_until(is_there_or_dead, seconds, lambda: f"{text!r} in the log of {self.name}:\n{self.log()[-3000:]}")
        if text not in self.log():
            raise AssertionError(f"{self.name} ended before it logged {text!r}:\n{self.log()[-3000:]}")

    def wait_ready(self, seconds: float = 30.0) -> None:
        """Wait until the worker consumes."""
        self.wait_for_log(" ready.", seconds)

    def terminate(self, seconds: float = 20.0) -> int:
        """Ask for a warm shutdown (SIGTERM to the parent) and wait; give the exit code."""
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            tail = self.log()[-3000:]
            raise AssertionError(f"{self.name} did not end within {seconds:g} s of SIGTERM:\n{tail}") from None

    def kill(self) -> None:
        """Kill the whole tree at one moment, as a power cut would."""
        kill_session(self.pid)
        self._process.wait()

    def kill_parent(self) -> None:
        """Kill the parent alone; its children notice and end by themselves, or are ended by close()."""
        self._process.kill()
        self._process.wait()

    def freeze(self) -> None:
        """Stop the whole tree (SIGSTOP), as a stalled machine would: it keeps its connections and its messages."""
        self._frozen = freeze_session(self.pid)

    def thaw(self) -> None:
        """Let a frozen tree go on, the children first."""
        send(signal.SIGCONT, self._frozen[::-1])
        self._frozen = []

    def close(self) -> None:
        """End whatever is left of the worker; safe to call twice."""
        self.kill()


class WorkerFactory:
    """Starts the workers of one test and ends them all; several started with `wait=False` come up side by side."""

    def __init__(self, log_dir: Path) -> None:
        self._log_dir = log_dir
        self._started: list[WorkerProcess] = []

    def __call__(
        self,
        app: str = "tests.apps.basic",
        *,
        pool: Pool = "prefork",
        concurrency: int = 2,
        queues: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        loglevel: Loglevel = "INFO",
        args: Sequence[str] = QUICK_START,
        wait: bool = True,
    ) -> WorkerProcess:
        """Start a worker and wait until it is ready."""
        worker = WorkerProcess(
            app,
            log_dir=self._log_dir,
            pool=pool,
            concurrency=concurrency,
            queues=queues,
            env=env,
            loglevel=loglevel,
            args=args,
        )
        self._started.append(worker)
        if wait:
            worker.wait_ready()
        return worker

    def close(self) -> None:
        """End every worker and print the end of its log, which pytest shows for tests that failed."""
        for worker in self._started:
            worker.close()
            print(f"--- log of {worker.name}, its end ---\n{worker.log()[-4000:]}")
