"""An app for tests of a whole fleet: payments behind a breaker, a shared rate, a bulkhead.

Variables as in tests.apps.resilient, and
SERVICE_URL     the payment service
LEASE_SECONDS   lease of a place in the bulkhead
"""

from __future__ import annotations

import json
import os
import time
import urllib.request
from collections.abc import Mapping
from functools import partial
from typing import Any

from celery import Celery

from celery_resilience import BreakerPolicy, limits
from celery_resilience.attempts import read_attempts
from tests.apps import resilient

# Ten failures in a row trip it however many successes the window still holds.
PAYMENTS = BreakerPolicy(window_seconds=10, consecutive_failures=10, open_seconds=1, open_cap_seconds=2, ramp_seconds=1)


def build(env: Mapping[str, str] = os.environ, **options: Any) -> Celery:
    """Make the app; a test and its workers call it with the same variables."""
    app = resilient.build(env, **options)
    app.conf.resilience_breakers = {"payments": PAYMENTS}
    define_tasks(app, env.get("RECORD_URL", ""), env.get("SERVICE_URL", ""))
    return app


def define_tasks(app: Celery, url: str, service: str) -> None:
    """Define the tasks."""
    task = partial(app.task, shared=False, bind=True)

    @task(name="resilient.pay", breaker="payments")
    def pay(self: Any, order: int) -> int:
        """Call the service, which notes order and attempt."""
        attempt = read_attempts(self.request.__dict__.get("resilience")).attempt
        with urllib.request.urlopen(f"{service}/{order}/{attempt}", timeout=5):
            return order

    @task(name="resilient.hundred", rate_limit_shared="100/s", ignore_result=True)
    def hundred(self: Any) -> None:
        """Note when it ran, and how it came to run."""
        state = read_attempts(self.request.__dict__.get("resilience"))
        resilient.record(url).rpush("hundred", json.dumps([time.time(), state.attempt, state.parks]))

    @task(name="resilient.three", max_concurrent=3)
    def three(self: Any, number: int, seconds: float) -> int:
        """Stay for a while; notes begin and end."""
        run = f"{self.request.hostname} {os.getpid()} {number}"
        resilient.record(url).rpush("began", f"{run} {time.time()}")
        time.sleep(seconds)
        resilient.record(url).rpush("ended", f"{run} {time.time()}")
        return number


if "LEASE_SECONDS" in os.environ:
    limits.LEASE_SECONDS = float(os.environ["LEASE_SECONDS"])
app = build()
