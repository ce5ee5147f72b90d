"""Guarded calls on a real Redis and in a real worker: one breaker for all, refusals park, attempts are kept."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import Celery

from celery_resilience import BreakerPolicy, RetryPolicy, guarded, runtime_of
from celery_resilience.errors import BreakerOpenError, LimitReachedError
from celery_resilience.testing import EmbeddedRedis
from tests.apps.guarded import build
from tests.support.stage import Stage, open_stage
from tests.support.waiting import wait_until

QUICK = RetryPolicy(max_attempts=3, strategy="fixed", base_seconds=0.05, floor_seconds=0, jitter="none")


def app_on(server: EmbeddedRedis) -> Celery:
    """Make an app with services of its own, as another process would have."""
    app = Celery("shop", broker=server.url, set_as_current=False)
    app.conf.resilience_breakers = {"payments": BreakerPolicy(consecutive_failures=3, open_seconds=30)}
    return app


def fail() -> None:
    raise ConnectionError("down")


class TestOnRedis:
    def test_the_breaker_is_shared_with_everybody_on_that_redis(self, redis_server: EmbeddedRedis) -> None:
        ours, theirs = app_on(redis_server), app_on(redis_server)

        with pytest.raises(ConnectionError):
            guarded(breaker="payments", retry_policy=QUICK, app=ours)(fail)()

        with pytest.raises(BreakerOpenError), guarded(breaker="payments", app=theirs):
            raise AssertionError("admitted")
        assert runtime_of(theirs).breaker("payments").snapshot().state == "open"

    def test_a_rate_is_shared_by_its_name(self, redis_server: EmbeddedRedis) -> None:
        ours, theirs = app_on(redis_server), app_on(redis_server)
        with guarded(rate="1/m", name="api", app=ours):
            pass

        with pytest.raises(LimitReachedError) as refused, guarded(rate="1/m", name="api", app=theirs):
            raise AssertionError("admitted")
        assert 50 < refused.value.retry_after <= 60
        with guarded(rate="1/m", name="another", app=theirs):
            pass

    def test_a_refused_slot_is_not_taken(self, redis_server: EmbeddedRedis) -> None:
        app, waits = app_on(redis_server), []

        for _ in range(4):
            try:
                with guarded(rate="1/m", name="api", app=app):
                    pass
            except LimitReachedError as refused:
                waits.append(refused.retry_after)

        assert len(waits) == 3
        assert all(50 < wait <= 60 for wait in waits)

    def test_slots_within_the_budget_pace_the_calls(self, redis_server: EmbeddedRedis) -> None:
        app = app_on(redis_server)
        call = guarded(rate="10/s", name="api", app=app)(time.monotonic)

        at = [call() for _ in range(4)]
        assert 0.28 <= at[3] - at[0] < 2

    def test_coroutines_are_paced_together(self, redis_server: EmbeddedRedis) -> None:
        @guarded(rate="10/s", name="api", app=app_on(redis_server))
        async def call() -> float:
            return time.monotonic()

        async def four() -> list[float]:
            return await asyncio.gather(*(call() for _ in range(4)))

        at = sorted(asyncio.run(four()))
        assert 0.28 <= at[3] - at[0] < 2

    def test_redis_gone_does_not_stop_the_calls(self, redis_server: EmbeddedRedis) -> None:
        app = app_on(redis_server)
        call = guarded(breaker="payments", rate="1/m", name="api", app=app)(lambda: "paid")
        assert call() == "paid"
        redis_server.kill()

        started = time.monotonic()
        assert [call() for _ in range(20)] == ["paid"] * 20
        assert time.monotonic() - started < 2


@pytest.fixture
def stage(tmp_path: Path, redis_server: EmbeddedRedis) -> Iterator[Stage]:
    make = {"app": "tests.apps.guarded", "make": lambda env: build(env, set_as_current=False)}
    with open_stage(tmp_path, redis_server, **make) as stage:
        yield stage


class TestInAWorker:
    def test_the_same_breaker_on_the_task_and_in_its_body_closes_again(self, stage: Stage) -> None:
        stage.worker(concurrency=2)
        breaker, key = runtime_of(stage.app).breaker("payments"), stage.key()
        stage.record.set(f"service:{key}", "down")
        results = [stage.send("paying_within", key) for _ in range(4)]
        wait_until(lambda: breaker.snapshot().state == "open", 10, "the trip")
        stage.record.delete(f"service:{key}")

        assert [result.get(timeout=30) for result in results] == ["paid"] * 4
        assert breaker.snapshot().state == "closed"

    def test_a_body_that_a_breaker_refuses_is_parked_and_spends_no_attempt(self, stage: Stage) -> None:
        stage.worker(concurrency=1)
        breaker, key = runtime_of(stage.app).breaker("payments"), stage.key()
        breaker.force_open(who="test", why="maintenance", for_seconds=60)

        result = stage.send("paying", key)
        stage.wait_runs(key, 1)
        wait_until(lambda: stage.schedule.count() == 1, 15, "the parked message")
        assert stage.record.llen(f"calls:{key}") == 0
        breaker.reset(who="test", why="over")

        assert result.get(timeout=15) == "paid"
        assert set(stage.attempts(key)) == {1}
        assert stage.record.llen(f"calls:{key}") == 1

    def test_an_outage_costs_the_attempt_that_met_it_and_no_more(self, stage: Stage) -> None:
        """Two attempts of two calls each trip the breaker; then the task is parked until the service is back."""
        key = stage.key()
        stage.record.set(f"service:{key}", "down")
        stage.worker(concurrency=1)

        result = stage.send("paying", key)
        wait_until(lambda: runtime_of(stage.app).breaker("payments").snapshot().state == "open", 15, "the trip")
        stage.record.delete(f"service:{key}")

        assert result.get(timeout=30) == "paid"
        assert max(stage.attempts(key)) == 3
        assert stage.record.llen(f"calls:{key}") == 5

    def test_a_body_that_a_rate_refuses_is_parked_and_spends_no_attempt(self, stage: Stage) -> None:
        stage.worker(concurrency=1)
        keys = [stage.key() for _ in range(3)]

        results = [stage.send("asking", key) for key in keys]

        assert [result.get(timeout=30) for result in results] == ["asked"] * 3
        assert {attempt for key in keys for attempt in stage.attempts(key)} == {1}
        assert sum(len(stage.runs(key)) for key in keys) > 3
