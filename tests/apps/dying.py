"""The app of tests.apps.resilient, with tasks that die in every way, and notes of who was told of it."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from celery import Celery

from celery_resilience import BreakerPolicy, ResilientTask
from celery_resilience.signals import breaker_changed, task_dead_lettered, task_parked
from tests.apps import resilient
from tests.apps.resilient import record


def build(env: Mapping[str, str] = os.environ, **options: Any) -> Celery:
    """Make the app; a test and its workers call it with the same variables."""
    app = resilient.build(env, **options)
    define_tasks(app, env.get("RECORD_URL", ""))
    return app


def define_tasks(app: Celery, url: str) -> None:
    """Add the tasks to an app."""
    task = partial(app.task, shared=False)

    class Mourned(ResilientTask):
        abstract = True

        def on_dead_letter(self, letter: Any) -> None:
            record(url).rpush(f"mourned:{letter.task_id}", f"{letter.reason}:{os.getpid()}")

    class Careless(ResilientTask):
        abstract = True

        def on_dead_letter(self, letter: Any) -> None:
            raise RuntimeError("the pager is broken")

        def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
            if args and args[0] == "before":
                raise RuntimeError("not ready")

    def start(self: Any, key: str) -> int:
        return int(record(url).rpush(f"run:{key}", os.getpid()))

    def crash(self: Any, key: str, times: int = 1000) -> str:
        """Kill the process it runs in, that many times."""
        if start(self, key) <= times:
            os.kill(os.getpid(), signal.SIGKILL)
        return "done"

    task(crash, name="resilient.crash", bind=True, base=Mourned)
    task(crash, name="resilient.crash_once", bind=True, base=Mourned, max_crashes=1)
    task(crash, name="resilient.crash_plainly", bind=True, base=Mourned, dlq=False)
    task(crash, name="resilient.crash_early", bind=True, base=Mourned, acks_late=False)

    @task(name="resilient.leave", bind=True, base=Mourned)
    def leave(self: Any, key: str, way: str = "exit") -> None:
        """End the process by other means."""
        start(self, key)
        if way == "segfault":
            ctypes.string_at(0)
        sys.exit(3)

    @task(name="resilient.linger", bind=True, base=Mourned)
    def linger(self: Any, key: str, seconds: float = 60) -> str:
        """Take long; notes start and end."""
        start(self, key)
        time.sleep(seconds)
        record(url).rpush(f"end:{key}", os.getpid())
        return "done"

    task(linger.run.__func__, name="resilient.hurry", bind=True, base=Mourned, time_limit=1)

    @task(name="resilient.devour", bind=True, base=Mourned, retry_policy=None)
    def devour(self: Any, key: str) -> None:
        """Run out of memory for good."""
        start(self, key)
        raise MemoryError("no more")

    @task(name="resilient.gorge", bind=True, base=Mourned)
    def gorge(self: Any, key: str) -> None:
        """Take more memory than its process may have."""
        start(self, key)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 100_000_000, resource.RLIM_INFINITY))
        kept = []
        while True:
            kept.append(bytearray(1_000_000))

    @task(name="resilient.recurse", bind=True, base=Mourned)
    def recurse(self: Any, key: str) -> None:
        """Go too deep."""
        start(self, key)

        def deeper(n: int) -> int:
            return deeper(n + 1)

        deeper(0)

    @task(name="resilient.unencodable", bind=True, base=Careless)
    def unencodable(self: Any, key: str) -> Any:
        """Give a result that cannot be stored."""
        return object()

    @task(name="resilient.member", bind=True, base=Mourned)
    def member(self: Any, key: str, value: int, *more: int) -> int:
        """Give a value once it is allowed to."""
        start(self, key)
        if not record(url).exists(f"allowed:{key}"):
            raise ValueError("not allowed")
        return value + sum(more)

    task(member.run.__func__, name="resilient.failing_member", bind=True, base=Mourned, when_dead="fail")

    @task(name="resilient.sum")
    def total(numbers: list[int]) -> int:
        """Give the sum of a chord."""
        return sum(numbers)

    @task(name="resilient.echo")
    def echo(*args: Any, **kwargs: Any) -> Any:
        """Give what it was given."""
        return [list(args), kwargs]

    @task(
        name="resilient.cut_off",
        bind=True,
        base=Mourned,
        breaker=BreakerPolicy(consecutive_failures=1, open_seconds=60),
        when_open="dead_letter",
    )
    def cut_off(self: Any, key: str) -> None:
        """Fail, so that its breaker opens."""
        start(self, key)
        raise ConnectionError("down")

    if url:
        _note_signals(url)


def _note_signals(url: str) -> None:
    def dead(sender: Any = None, letter: Any = None, **_: Any) -> None:
        record(url).rpush(f"signal:{letter.task_id}", f"{sender}:{letter.reason}")

    def parked(sender: Any = None, task_id: Any = None, waits_for: Any = None, **_: Any) -> None:
        record(url).rpush(f"parked:{task_id}", f"{sender}:{waits_for}")

    def changed(sender: Any = None, transition: Any = None, **_: Any) -> None:
        record(url).rpush(f"changed:{sender}", f"{transition.from_state}>{transition.to_state}")

    task_dead_lettered.connect(dead, weak=False, dispatch_uid="record-dead")
    task_parked.connect(parked, weak=False, dispatch_uid="record-parked")
    breaker_changed.connect(changed, weak=False, dispatch_uid="record-changed")


app = build()
