"""The app of tests.apps.resilient with tasks whose bodies make guarded calls.

Variables are those of tests.apps.resilient; the service is a Redis key `service:<name>`: absent is up, else down.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from celery import Celery

from celery_resilience import BreakerPolicy, RetryPolicy, guarded
from tests.apps.resilient import build as build_resilient
from tests.apps.resilient import record, seen

IN_PLACE = RetryPolicy(max_attempts=2, strategy="fixed", base_seconds=0.05, floor_seconds=0, jitter="none")
BREAKERS = {"payments": BreakerPolicy(consecutive_failures=4, open_seconds=2.0, successes_to_close=1)}


def build(env: Mapping[str, str] = os.environ, **options: Any) -> Celery:
    """Make the app; a test and its workers call it with the same variables."""
    app = build_resilient(env, **options)
    app.conf.resilience_breakers = BREAKERS
    url = env.get("RECORD_URL", "")

    @guarded(breaker="payments", retry_policy=IN_PLACE, budget_seconds=0.5)
    def pay(key: str) -> str:
        record(url).rpush(f"calls:{key}", 1)
        if record(url).exists(f"service:{key}"):
            raise ConnectionError("down")
        return "paid"

    @app.task(name="resilient.paying", bind=True, shared=False)
    def paying(self: Any, key: str) -> str:
        """Make one guarded call; notes each run of the body."""
        record(url).rpush(f"run:{key}", json.dumps(seen(self), default=str))
        return pay(key)

    @app.task(name="resilient.paying_within", bind=True, shared=False, breaker="payments")
    def paying_within(self: Any, key: str) -> str:
        """Make one guarded call behind the breaker that guards the task, too."""
        record(url).rpush(f"run:{key}", json.dumps(seen(self), default=str))
        return pay(key)

    @guarded(rate="2/s", name="slow-api", budget_seconds=0)
    def ask() -> str:
        return "asked"

    @app.task(name="resilient.asking", bind=True, shared=False)
    def asking(self: Any, key: str) -> str:
        """Make one call under a shared rate; notes each run of the body."""
        record(url).rpush(f"run:{key}", json.dumps(seen(self), default=str))
        return ask()

    return app


app = build()
