"""The tasks that overhead.py measures, as plain Celery has them; the package is not even imported here."""

from __future__ import annotations

import os
from typing import Any

from celery import Celery, Task

DELAY_SECONDS = 1.0


def celery_app(name: str) -> Celery:
    """Make an app on the benchmark's own broker."""
    app = Celery(name, broker=os.environ.get("BENCH_BROKER_URL", "redis://"), set_as_current=False)
    app.conf.update(
        broker_connection_retry_on_startup=True,
        task_ignore_result=True,
        worker_prefetch_multiplier=8,
        broker_transport_options={"visibility_timeout": 600},
    )
    return app


def succeed(self: Task[Any, Any]) -> None:
    """Do nothing."""


def fail_once(self: Task[Any, Any]) -> None:
    """Fail the first time."""
    if self.request.retries == 0:
        raise ConnectionError("down")


app = celery_app("plain")

AUTORETRY = {"autoretry_for": (ConnectionError,), "retry_kwargs": {"countdown": DELAY_SECONDS}, "max_retries": 4}
app.task(name="plain.succeed", bind=True, acks_late=True)(succeed)
app.task(name="plain.fail_once", bind=True, acks_late=True, **AUTORETRY)(fail_once)
