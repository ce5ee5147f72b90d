"""The resilient app with tasks behind gates: breakers, shared rates, bulkheads, limits of a queue.

Variables as in tests.apps.resilient, and
LEASE_SECONDS   lease of a place in a bulkhead, for tests that need not wait half a minute
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from celery import Celery

from celery_resilience import BreakerPolicy, RetryPolicy, limits
from celery_resilience.attempts import read_attempts
from tests.apps import resilient

POLICY = BreakerPolicy(
    failure_rate=None, consecutive_failures=3, open_seconds=1, open_cap_seconds=2, successes_to_close=1, ramp_seconds=0
)


class RestError(Exception):
    """The other side asks for rest."""

    failure_class = "RATE_LIMITED"
    retry_after = 2.0


def build(env: Mapping[str, str] = os.environ, **options: Any) -> Celery:
    """Make the app; a test and its workers call it with the same variables."""
    app = resilient.build(env, **options)
    app.conf.resilience_breaker_policy = POLICY
    define_tasks(app, env.get("RECORD_URL", ""))
    return app


def define_tasks(app: Celery, url: str) -> None:
    """Define the tasks; each notes its runs under its key."""
    task = partial(app.task, shared=False, bind=True)

    def note(self: Any, key: str, list_name: str = "run") -> None:
        state = read_attempts(self.request.__dict__.get("resilience"))
        seen = resilient.seen(self, parks=state.parks, reserved=state.reserved, trail=len(state.trail))
        resilient.record(url).rpush(f"{list_name}:{key}", json.dumps(seen, default=str))

    def follow(self: Any, key: str, *steps: Any) -> Any:
        """Follow the step of this attempt; the last one is for all further attempts."""
        note(self, key)
        return resilient.follow(self, steps[min(self.request.retries, len(steps) - 1)]) if steps else "done"

    def by_argument(self: Any, breaker: str, key: str, *steps: Any) -> Any:
        """Do as `follow` behind the breaker that is named by the first argument."""
        return follow(self, key, *steps)

    def first(breaker: str, *_: Any) -> str:
        return breaker

    def instead(breaker: str, key: str, *_: Any) -> str:
        return f"instead of {key}"

    task(follow, name="resilient.named", breaker="named")
    task(follow, name="resilient.listed", breaker=["listed-a", "listed-b"])
    task(follow, name="resilient.own", breaker=POLICY)
    task(follow, name="resilient.ramped", breaker=replace(POLICY, ramp_seconds=4))
    task(follow, name="resilient.open_way")
    task(by_argument, name="resilient.called", breaker=first)
    task(by_argument, name="resilient.failing", breaker=first, when_open="fail")
    task(by_argument, name="resilient.instead", breaker=first, when_open=instead)
    task(by_argument, name="resilient.due", breaker=first, deadline_seconds=2.5)
    task(follow, name="resilient.rated", rate_limit_shared="10/s")
    task(by_argument, name="resilient.by_tenant", rate_limit_shared=lambda tenant, *_: ("4/s", tenant))
    task(follow, name="resilient.few", max_queue_length=5)

    def guarding(self: Any, breaker: str, key: str, *steps: Any) -> Any:
        """Guard a part of the body."""
        note(self, key)
        with self.guard(breaker):
            note(self, key, "within")
            return resilient.follow(self, steps[min(self.request.retries, len(steps) - 1)]) if steps else "done"

    task(guarding, name="resilient.guarding")
    task(guarding, name="resilient.guarding_or_failing", when_open="fail")
    task(guarding, name="resilient.guarding_or_else", when_open=instead)

    def resting(self: Any, breaker: str, key: str) -> str:
        """Be told to rest at the very first call of a key."""
        note(self, key)
        if resilient.record(url).set(f"told:{key}", 1, nx=True):
            raise RestError("429")
        return "done"

    task(resting, name="resilient.resting", breaker=first)
    task(resting, name="resilient.resting_rate", rate_limit_shared=lambda tenant, *_: ("50/s", tenant))

    patient = RetryPolicy(strategy="fixed", base_seconds=1.0, jitter="none")  # a length is a second old

    @task(name="resilient.fan", breaker="fan", retry_policy=patient)
    def fan(self: Any, key: str, queue: str, times: int) -> str:
        """Send so many tasks into a queue."""
        note(self, key)
        for _ in range(times):
            app.tasks["resilient.open_way"].apply_async((key,), queue=queue)
        return "sent"

    @task(name="resilient.tight", max_concurrent=2)
    def tight(self: Any, key: str, seconds: float) -> str:
        """Stay for a while in a place of which there are two; notes how many are in there."""
        note(self, key)
        client = resilient.record(url)
        inside = client.incr(f"inside:{key}")
        client.rpush(f"most:{key}", inside)
        time.sleep(seconds)
        client.decr(f"inside:{key}")
        return "done"


if "LEASE_SECONDS" in os.environ:
    limits.LEASE_SECONDS = float(os.environ["LEASE_SECONDS"])
app = build()
