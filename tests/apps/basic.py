"""A plain Celery app without the package: it tests the harness itself."""

from __future__ import annotations

import time

from tests.apps.configuration import celery_app

app = celery_app("basic")


@app.task(name="basic.add")
def add(a: int, b: int) -> int:
    """Give the sum."""
    return a + b


@app.task(name="basic.nap", acks_late=True)
def nap(seconds: float) -> str:
    """Take a time."""
    time.sleep(seconds)
    return "awake"
