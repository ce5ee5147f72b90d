"""Gates of tasks with RabbitMQ as the broker: parks wait in Redis and come back by publishing."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kombu
import pytest
from celery.result import AsyncResult

from celery_resilience import runtime_of
from celery_resilience.breaker import CircuitBreaker
from celery_resilience.clock import SYSTEM_CLOCK
from celery_resilience.errors import QueueFullError
from celery_resilience.schedule import Waiting
from celery_resilience.testing import EmbeddedRedis, embedded_redis
from celery_resilience.transport.depth import queue_lengths
from tests.apps import gated
from tests.support.rabbitmq import RabbitMQ
from tests.support.stage import Stage, open_stage
from tests.support.waiting import wait_until

DOWN, DONE = ["raise", "network"], ["return", "done"]


def open_gated(directory: Path, server: EmbeddedRedis, rabbitmq: RabbitMQ, **conf: Any) -> Any:
    """Open a stage whose broker is RabbitMQ, with a queue of priorities that no other test uses."""
    name = f"g{uuid.uuid4().hex[:8]}"
    queue = {"name": name, "exchange": name, "routing_key": name, "arguments": {"x-max-priority": 10}}
    settings = {"task_default_queue": name, "task_default_exchange": name, "task_default_routing_key": name, **conf}
    return open_stage(
        directory,
        server,
        broker=rabbitmq.url,
        conf=settings,
        app="tests.apps.gated",
        make=lambda env: gated.build(env, set_as_current=False),
        QUEUES=json.dumps([queue]),
        LEASE_SECONDS="2",
    )


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory, rabbitmq: RabbitMQ) -> Iterator[Stage]:
    """One worker of four processes for all tests that need nothing special."""
    with embedded_redis(url="") as server, open_gated(tmp_path_factory.mktemp("gates"), server, rabbitmq) as stage:
        stage.worker(concurrency=4)
        yield stage


def force_open(stage: Stage, name: str, for_seconds: float | None = None) -> CircuitBreaker:
    one = runtime_of(stage.app).breaker(name)
    one.force_open(who="test", why="as a test", for_seconds=for_seconds)
    return one


def wait_parked(stage: Stage, result: AsyncResult[Any]) -> Waiting:
    def parked() -> Waiting | None:
        rows = stage.schedule.find(limit=1000)
        return next((row for row in rows if row.task_id == result.id and row.kind == "park"), None)

    return wait_until(parked, 10, lambda: f"the park of {result.id}: {result.state}")  # type: ignore[return-value]  # not None


class TestBreaker:
    def test_what_is_refused_is_parked_and_woken_with_all_it_came_with(self, stage: Stage) -> None:
        """Parked for ten minutes, and back within seconds once the breaker is reset; no attempt is spent."""
        name, keys = stage.key(), [stage.key() for _ in range(10)]
        one = force_open(stage, name, for_seconds=600)
        results = [stage.send("called", name, key, DONE, priority=6, headers={"mine": 1}) for key in keys]
        rows = [wait_parked(stage, result) for result in results]
        assert {row.why for row in rows} == {f"waits for {name}"}
        assert min(row.due_at for row in rows) > SYSTEM_CLOCK.time() + 30
        one.reset(who="test", why="over")

        assert [result.get(timeout=15) for result in results] == ["done"] * 10
        runs = [stage.runs(key) for key in keys]
        assert [(len(run), run[0]["attempt"], run[0]["retries"]) for run in runs] == [(1, 1, 0)] * 10
        assert {(run[0]["priority"], run[0]["headers"]["mine"]) for run in runs} == {(6, 1)}

    def test_failures_trip_it_and_a_probe_that_succeeds_wakes_the_others(self, stage: Stage) -> None:
        name, key = stage.key(), stage.key()
        tripping = stage.send("called", name, key, DOWN, DOWN, DOWN, DONE)
        stage.wait_runs(key, 3)
        breaker = runtime_of(stage.app).breaker(name)
        wait_until(lambda: breaker.snapshot().state != "closed", 5, "the trip")
        others = [stage.key() for _ in range(8)]
        results = [stage.send("called", name, other, DONE) for other in others]

        assert [result.get(timeout=20) for result in [tripping, *results]] == ["done"] * 9
        assert stage.attempts(key) == [1, 2, 3, 4]
        assert [stage.attempts(other) for other in others] == [[1]] * 8
        events = [one.event for one in breaker.history() if one.breaker == name]
        assert events == ["closed", "half-opened", "opened"]

    def test_a_refusal_within_the_body_parks_too(self, stage: Stage) -> None:
        name, key = stage.key(), stage.key()
        one = force_open(stage, name)
        result = stage.send("guarding", name, key, DONE)
        wait_parked(stage, result)
        one.reset(who="test", why="over")

        assert result.get(timeout=15) == "done"
        assert stage.record.llen(f"within:{key}") == 1


def test_a_shared_rate_spreads_calls_and_spends_no_attempt(stage: Stage) -> None:
    key = stage.key()
    results = [stage.send("rated", key, DONE) for _ in range(20)]
    for result in results:
        assert result.get(timeout=20) == "done"
    runs = stage.runs(key)
    moments = sorted(run["at"] for run in runs)

    assert {(run["attempt"], run["retries"]) for run in runs} == {(1, 0)}
    assert moments[-1] - moments[0] >= 1.8
    assert max(sum(1 for other in moments if one <= other < one + 1) for one in moments) <= 12


class TestBulkhead:
    def test_no_more_run_at_once_than_there_are_places(self, stage: Stage) -> None:
        key = stage.key()
        results = [stage.send("tight", key, 0.1) for _ in range(8)]
        for result in results:
            assert result.get(timeout=30) == "done"

        assert max(int(inside) for inside in stage.record.lrange(f"most:{key}", 0, -1)) == 2
        assert stage.attempts(key) == [1] * 8

    def test_places_of_a_killed_worker_come_free(
        self, tmp_path: Path, redis_server: EmbeddedRedis, rabbitmq: RabbitMQ
    ) -> None:
        with open_gated(tmp_path, redis_server, rabbitmq) as stage:
            doomed = stage.worker(concurrency=2)
            held, late = stage.key(), stage.key()
            for _ in range(2):
                stage.send("tight", held, 2.0)
            stage.wait_runs(held, 2)
            doomed.kill()
            killed_at = SYSTEM_CLOCK.time()
            waiting = stage.send("tight", late, 0.01)
            stage.worker(concurrency=2)

            assert waiting.get(timeout=30) == "done"
            assert stage.runs(late)[0]["at"] - killed_at < 20
            assert stage.attempts(held)[:2] == [1, 1]


class TestFullQueues:
    @pytest.fixture
    def idle(self, tmp_path: Path, redis_server: EmbeddedRedis, rabbitmq: RabbitMQ) -> Iterator[Stage]:
        """A stage without a worker: what is sent stays."""
        with open_gated(tmp_path, redis_server, rabbitmq) as stage:
            yield stage

    def test_lengths_come_in_one_answer_and_a_missing_queue_ends_it(self, idle: Stage, rabbitmq: RabbitMQ) -> None:
        names = [idle.key() for _ in range(3)]
        with kombu.Connection(rabbitmq.url) as connection:
            for number, name in enumerate(names):
                queue = connection.SimpleQueue(name)
                for _ in range(number + 1):
                    queue.put("x")
                queue.close()

        assert queue_lengths(idle.app, names) == dict(zip(names, (1, 2, 3), strict=True))
        assert queue_lengths(idle.app, [names[1], "unheard", names[0]]) == {names[1]: 2, "unheard": 0}
        assert queue_lengths(idle.app, [names[2]]) == {names[2]: 3}  # the connection serves on

    def test_a_full_queue_takes_no_more(self, idle: Stage) -> None:
        for _ in range(5):
            idle.send("open_way", "k")
        name = idle.app.conf.task_default_queue
        wait_until(lambda: queue_lengths(idle.app, [name]) == {name: 5}, 5, "five messages")

        with pytest.raises(QueueFullError):
            idle.send("few", "k")
