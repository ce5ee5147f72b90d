"""A stage: servers, an app of tests.apps.resilient, its workers, and the record of what its bodies did.

One stage may serve a whole module: give each test keys of its own.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import redis
from celery import Celery
from celery.result import AsyncResult

from celery_resilience import runtime_of
from celery_resilience.schedule import Schedule
from celery_resilience.testing import EmbeddedRedis
from tests.apps.resilient import build
from tests.support.waiting import wait_until
from tests.support.workers import WorkerFactory, WorkerProcess

APP = "tests.apps.resilient"
_numbers = itertools.count(1)


class Stage:
    """What a test of whole messages needs; `server` holds the record and, unless told otherwise, everything else."""

    def __init__(
        self,
        directory: Path,
        server: EmbeddedRedis,
        *,
        broker: str | None = None,
        results: str | None = None,
        conf: Mapping[str, Any] | None = None,
        app: str = APP,
        make: Callable[[Mapping[str, str]], Celery] | None = None,
        **env: str,
    ) -> None:
        self.server = server
        self.env = {
            "BROKER_URL": broker or server.url,
            "RESULT_URL": results or server.url,
            "RECORD_URL": server.url,
            "CONF": json.dumps({"resilience_database_url": f"sqlite:///{directory / 'ledger.db'}", **(conf or {})}),
            **env,
        }
        self.record: redis.Redis = server.client(decode_responses=True)
        self.app = (make or (lambda env: build(env, set_as_current=False)))(self.env)
        self._module = app
        self._factory = WorkerFactory(directory)

    def worker(self, **options: Any) -> WorkerProcess:
        """Start a worker of this app."""
        env = {**self.env, **options.pop("env", {})}
        return self._factory(self._module, env=env, **options)

    def key(self) -> str:
        """Give a name that no other test of the run uses."""
        return f"k{next(_numbers)}-{uuid.uuid4().hex[:6]}"

    def send(self, task: str, *args: Any, kwargs: Mapping[str, Any] | None = None, **options: Any) -> AsyncResult[Any]:
        """Send a task by its short name."""
        return self.app.tasks[f"resilient.{task}"].apply_async(args, dict(kwargs or {}), **options)

    def script(self, *steps: Any, task: str = "script", **options: Any) -> tuple[str, AsyncResult[Any]]:
        """Send a scripted task; gives its key and its result."""
        key = self.key()
        return key, self.send(task, key, *steps, **options)

    def runs(self, key: str) -> list[Any]:
        """Give what the runs of a key have noted so far."""
        return [json.loads(text) for text in self.record.lrange(f"run:{key}", 0, -1)]

    def attempts(self, key: str) -> list[int]:
        """Give the attempt numbers of the runs of a key."""
        return [run if isinstance(run, int) else run["attempt"] for run in self.runs(key)]

    def wait_runs(self, key: str, count: int, seconds: float = 15) -> list[Any]:
        """Wait until a key has run that often."""
        wait_until(lambda: len(self.runs(key)) >= count, seconds, lambda: f"run {count} of {key}: {self.runs(key)}")
        return self.runs(key)

    def wait_state(self, result: AsyncResult[Any], state: str, seconds: float = 15) -> None:
        """Wait until a task has come to a state."""
        wait_until(lambda: result.state == state, seconds, lambda: f"{state} of {result.id}, which is {result.state}")

    @property
    def schedule(self) -> Schedule:
        """The schedule, through a client of the test's own."""
        schedule = runtime_of(self.app).schedule
        assert schedule is not None
        return schedule

    def unacked(self) -> int:
        """Count the messages that Redis workers hold."""
        return int(self.record.hlen("unacked"))

    def wait_idle(self, seconds: float = 15) -> None:
        """Wait until nothing waits, is queued or is held."""
        wait_until(
            lambda: not (self.schedule.count() or self.unacked() or self.record.llen("resilient")), seconds, "quiet"
        )

    def known_ids(self) -> set[str]:
        """Give the ids of all messages that are in a queue, held by a worker, or in the schedule (Redis broker)."""
        client, (_, entries) = self.record, self.schedule._keys
        lists = [name for name in client.keys("resilient*") if client.type(name) == "list"]
        messages = [json.loads(text) for name in lists for text in client.lrange(name, 0, -1)]
        messages += [json.loads(text)[0] for text in client.hvals("unacked")]
        messages += [json.loads(text) for text in client.hvals(entries)]
        return {message["headers"]["id"] for message in messages}

    def kill(self, worker: WorkerProcess) -> int:
        """Kill a worker as a power cut would, at whatever it is doing; gives how many messages it held."""
        worker.kill()
        return self.unacked()

    def close(self) -> None:
        """End the workers and let go of the servers."""
        self._factory.close()
        with contextlib.suppress(Exception):
            # A result that is collected later would look for its server, for half a minute.
            self.app.backend.remove_pending_result = lambda result: result  # type: ignore[attr-defined]
            self.app.close()
        self.record.close()


@contextlib.contextmanager
def open_stage(directory: Path, server: EmbeddedRedis, **options: Any) -> Iterator[Stage]:
    """Open a stage for the length of a `with` block."""
    with contextlib.closing(Stage(directory, server, **options)) as stage:
        yield stage
