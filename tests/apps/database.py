"""An app whose results are in a database: there a chord waits by polling, in Celery's own `chord_unlock`."""

from __future__ import annotations

import time

from celery_resilience import ResilientTask
from tests.apps.configuration import celery_app

app = celery_app("database", task_cls=ResilientTask)
app.conf.update(result_chord_retry_interval=0.2, task_store_eager_result=False)


@app.task(name="database.slow")
def slow(seconds: float) -> float:
    """Take a time."""
    time.sleep(seconds)
    return seconds


@app.task(name="database.total")
def total(numbers: list[float]) -> float:
    """Give the sum."""
    return sum(numbers)
