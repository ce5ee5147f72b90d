"""Gates of tasks with real workers: who is refused is parked, and no refusal spends an attempt."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from celery import chord
from celery.result import AsyncResult

from celery_resilience import runtime_of
from celery_resilience.attempts import HEADER, Attempts, read_attempts
from celery_resilience.breaker import CircuitBreaker
from celery_resilience.clock import SYSTEM_CLOCK
from celery_resilience.crashpoints import VARIABLE
from celery_resilience.errors import BreakerOpenError, DeadlineExceededError, QueueFullError
from celery_resilience.schedule import Waiting
from celery_resilience.testing import EmbeddedRedis, embedded_redis
from tests.apps import gated
from tests.support.stage import Stage, open_stage
from tests.support.waiting import wait_until

APP = "tests.apps.gated"
DOWN, DONE = ["raise", "network"], ["return", "done"]


def open_gated(directory: Path, server: EmbeddedRedis, **options: Any) -> Any:
    return open_stage(
        directory, server, app=APP, make=lambda env: gated.build(env, set_as_current=False), **options
    )  # fmt: skip


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """One worker of four processes for all tests that need nothing special."""
    with embedded_redis(url="") as server, open_gated(tmp_path_factory.mktemp("gates"), server) as stage:
        stage.worker(concurrency=4)
        yield stage


def breaker(stage: Stage, name: str) -> CircuitBreaker:
    return runtime_of(stage.app).breaker(name)


def force_open(stage: Stage, name: str, for_seconds: float | None = None) -> CircuitBreaker:
    one = breaker(stage, name)
    one.force_open(who="test", why="as a test", for_seconds=for_seconds)
    return one


def parked(stage: Stage, result: AsyncResult[Any]) -> Waiting | None:
    rows = stage.schedule.find(limit=1000)
    return next((row for row in rows if row.task_id == result.id and row.kind == "park"), None)


def wait_parked(stage: Stage, result: AsyncResult[Any], seconds: float = 10) -> Waiting:
    return wait_until(lambda: parked(stage, result), seconds, lambda: f"the park of {result.id}: {result.state}")  # type: ignore[return-value]  # not None


def spent(stage: Stage, key: str) -> list[tuple[int, int, int]]:
    """Give attempt, Celery's count and length of the trail of each run."""
    return [(run["attempt"], run["retries"], run["trail"]) for run in stage.runs(key)]


class TestNamingABreaker:
    @pytest.mark.parametrize(
        ("task", "name"),
        [("named", "named"), ("listed", "listed-b"), ("own", "resilient.own")],
    )
    def test_a_task_waits_for_the_breaker_it_names(self, stage: Stage, task: str, name: str) -> None:
        one = force_open(stage, name)
        key, result = stage.script(DONE, task=task)
        row = wait_parked(stage, result)
        assert (row.why, row.attempt, stage.runs(key)) == (f"waits for {name}", 1, [])
        one.reset(who="test", why="over")

        assert result.get(timeout=10) == "done"
        assert spent(stage, key) == [(1, 0, 0)]

    def test_a_function_names_it_by_the_arguments(self, stage: Stage) -> None:
        shut, key, other = stage.key(), stage.key(), stage.key()
        one = force_open(stage, shut)
        refused, passed = stage.send("called", shut, key, DONE), stage.send("called", stage.key(), other, DONE)

        assert passed.get(timeout=10) == "done"
        assert wait_parked(stage, refused).why == f"waits for {shut}"
        one.reset(who="test", why="over")
        assert refused.get(timeout=10) == "done"

    def test_failures_of_the_body_trip_it(self, stage: Stage) -> None:
        name, key = stage.key(), stage.key()
        result = stage.send("called", name, key, DOWN, DOWN, DOWN, DONE)

        assert result.get(timeout=20) == "done"
        assert spent(stage, key) == [(1, 0, 0), (2, 1, 1), (3, 2, 2), (4, 3, 3)]
        events = [one.event for one in breaker(stage, name).history() if one.breaker == name]
        assert events == ["closed", "half-opened", "opened"]
        assert stage.runs(key)[3]["parks"] >= 1
        assert stage.runs(key)[3]["at"] - stage.runs(key)[2]["at"] > 0.8  # the breaker's time, not the policy's 0.1 s

    def test_other_failures_do_not(self, stage: Stage) -> None:
        name = stage.key()
        results = [stage.send("called", name, stage.key(), ["raise", "validation"]) for _ in range(5)]
        for result in results:
            stage.wait_state(result, "FAILURE")

        assert breaker(stage, name).snapshot().state == "closed"


class TestWhenOpen:
    def test_fail_ends_the_task_with_the_refusal(self, stage: Stage) -> None:
        name, key = stage.key(), stage.key()
        force_open(stage, name)
        result = stage.send("failing", name, key, DONE)

        with pytest.raises(BreakerOpenError, match=f"The breaker '{name}' refuses calls"):
            result.get(timeout=10)
        assert stage.runs(key) == []

    def test_a_fallback_gives_the_result_instead(self, stage: Stage) -> None:
        name, key = stage.key(), stage.key()
        force_open(stage, name)

        assert stage.send("instead", name, key, DONE).get(timeout=10) == f"instead of {key}"
        assert stage.runs(key) == []

    def test_while_closed_neither_is_used(self, stage: Stage) -> None:
        name = stage.key()

        for task in ("failing", "instead"):
            assert stage.send(task, name, stage.key(), DONE).get(timeout=10) == "done"


class TestARefusal:
    def test_spends_no_attempt_however_often_it_comes(self, stage: Stage) -> None:
        name, key = stage.key(), stage.key()
        one = force_open(stage, name)
        result = stage.send("called", name, key, DOWN, DONE, resilience={"max_attempts": 2})
        wait_until(lambda: parks(stage, result) >= 2, 15, "the second park")
        one.reset(who="test", why="over")

        assert result.get(timeout=15) == "done"
        assert spent(stage, key) == [(1, 0, 0), (2, 1, 1)]
        assert stage.runs(key)[0]["parks"] >= 2
        assert stage.runs(key)[1]["parks"] == stage.runs(key)[0]["parks"]

    def test_leaves_the_task_waiting_and_tells_nobody_of_a_retry(self, stage: Stage) -> None:
        name = stage.key()
        one = force_open(stage, name)
        result = stage.send("called", name, stage.key(), DONE)
        wait_parked(stage, result)

        assert result.state == "PENDING"
        assert not stage.record.exists(f"task_retry:{result.id}", f"task_failure:{result.id}")
        one.reset(who="test", why="over")
        assert result.get(timeout=10) == "done"

    def test_is_over_at_the_deadline(self, stage: Stage) -> None:
        name, key = stage.key(), stage.key()
        force_open(stage, name)
        result = stage.send("due", name, key, DONE)
        wait_parked(stage, result)
        stage.wait_state(result, "FAILURE", 10)

        assert type(result.result).__name__ == "DeadlineExceededError"
        assert stage.runs(key) == []
        assert parked(stage, result) is None

    def test_beyond_the_deadline_is_over_at_once(self, stage: Stage) -> None:
        name = stage.key()
        force_open(stage, name, for_seconds=60)
        result = stage.send("due", name, stage.key(), DONE)

        with pytest.raises(DeadlineExceededError, match=f"deadline .* The breaker '{name}' refuses calls"):
            result.get(timeout=2)
        assert "BreakerOpenError" in result.traceback  # the refusal is its cause

    def test_in_the_body_beyond_the_deadline_is_over_at_once_too(self, stage: Stage) -> None:
        name = stage.key()
        force_open(stage, name, for_seconds=60)
        result = stage.send("guarding", name, stage.key(), DONE, resilience={"deadline_seconds": 5})

        with pytest.raises(DeadlineExceededError, match=f"The breaker '{name}' refuses calls"):
            result.get(timeout=4)


def parks(stage: Stage, result: AsyncResult[Any]) -> int:
    """Give how often a message that is parked now has been parked."""
    _, entries = stage.schedule._keys
    messages = [json.loads(text)["headers"] for text in stage.record.hvals(entries)]
    return max((read_attempts(one[HEADER]).parks for one in messages if one["id"] == result.id), default=0)


class TestGuardInABody:
    def test_a_refusal_parks_the_task(self, stage: Stage) -> None:
        name, key = stage.key(), stage.key()
        one = force_open(stage, name)
        result = stage.send("guarding", name, key, DONE)
        assert wait_parked(stage, result).why == f"waits for {name}"
        one.reset(who="test", why="over")

        assert result.get(timeout=10) == "done"
        assert {(attempt, retries) for attempt, retries, _ in spent(stage, key)} == {(1, 0)}
        assert stage.record.llen(f"within:{key}") == 1

    def test_a_task_that_shall_fail_when_open_fails(self, stage: Stage) -> None:
        name, key = stage.key(), stage.key()
        force_open(stage, name)
        result = stage.send("guarding_or_failing", name, key, DONE)

        with pytest.raises(BreakerOpenError, match=f"The breaker '{name}' refuses calls"):
            result.get(timeout=10)
        assert (len(stage.runs(key)), stage.record.llen(f"within:{key}")) == (1, 0)

    def test_a_fallback_gives_the_result_instead(self, stage: Stage) -> None:
        name, key = stage.key(), stage.key()
        force_open(stage, name)

        assert stage.send("guarding_or_else", name, key, DONE).get(timeout=10) == f"instead of {key}"
        assert (len(stage.runs(key)), stage.record.llen(f"within:{key}")) == (1, 0)

    def test_while_closed_neither_is_used(self, stage: Stage) -> None:
        for task in ("guarding_or_failing", "guarding_or_else"):
            assert stage.send(task, stage.key(), stage.key(), DONE).get(timeout=10) == "done"

    def test_failures_within_trip_it_for_everybody(self, stage: Stage) -> None:
        name, key = stage.key(), stage.key()
        result = stage.send("guarding", name, key, DOWN, DOWN, DOWN, DONE)

        assert result.get(timeout=20) == "done"
        assert stage.record.llen(f"within:{key}") == 4
        assert "opened" in [one.event for one in breaker(stage, name).history() if one.breaker == name]


class TestWaking:
    def test_what_is_parked_comes_back_when_the_breaker_closes(self, stage: Stage) -> None:
        """Forced open for ten minutes, and ended after a moment: nobody waits the ten minutes."""
        name, keys = stage.key(), [stage.key() for _ in range(20)]
        one = force_open(stage, name, for_seconds=600)
        results = [stage.send("called", name, key, DONE) for key in keys]
        for result in results:
            assert wait_parked(stage, result).due_at > SYSTEM_CLOCK.time() + 30
        one.reset(who="test", why="over")

        assert [result.get(timeout=10) for result in results] == ["done"] * 20
        assert [spent(stage, key) for key in keys] == [[(1, 0, 0)]] * 20

    def test_a_probe_that_succeeds_wakes_the_others(self, stage: Stage) -> None:
        name, key = stage.key(), stage.key()
        tripping = stage.send("called", name, key, DOWN, DOWN, DOWN, DONE)
        stage.wait_runs(key, 3)
        wait_until(lambda: breaker(stage, name).snapshot().state == "open", 5, "the trip")
        others = [stage.key() for _ in range(10)]
        results = [stage.send("called", name, other, DONE) for other in others]

        assert [result.get(timeout=15) for result in [tripping, *results]] == ["done"] * 11
        assert [stage.attempts(other) for other in others] == [[1]] * 10


class TestRamp:
    def test_what_was_parked_does_not_come_back_all_at_once(self, stage: Stage) -> None:
        key = stage.key()
        one = force_open(stage, "resilient.ramped", for_seconds=2)
        results = [stage.send("ramped", key, DONE) for _ in range(40)]
        for result in results:
            wait_parked(stage, result)
        released_at = one.snapshot().override_until

        assert [result.get(timeout=20) for result in results] == ["done"] * 40
        moments = [run["at"] - released_at for run in stage.runs(key)]
        assert min(moments) > -0.3  # by the clock of Redis
        assert sum(moment < 1.5 for moment in moments) <= 30
        assert max(moments) > 2
        assert stage.attempts(key) == [1] * 40


class TestRestAfterARetryAfter:
    @pytest.mark.parametrize("task", ["resting", "resting_rate"])
    def test_siblings_wait_too(self, stage: Stage, task: str) -> None:
        name, key = stage.key(), stage.key()
        told = stage.send(task, name, key)
        stage.wait_state(told, "RETRY")
        siblings = [stage.send(task, name, key) for _ in range(5)]
        results = [result.get(timeout=15) for result in [told, *siblings]]
        moments = sorted(run["at"] for run in stage.runs(key))

        assert results == ["done"] * 6
        assert len(moments) == 7
        assert min(moments[1:]) - moments[0] > 1.8
        assert sorted(stage.attempts(key)) == [1, 1, 1, 1, 1, 1, 2]

    def test_an_operators_override_stays(self, stage: Stage) -> None:
        name = stage.key()
        one = breaker(stage, name)
        one.disable(who="ann", why="a drill")
        one.rest(60)

        assert one.snapshot().override_who == "ann"


class TestRetryBudget:
    def waiting(self, stage: Stage, result: AsyncResult[Any]) -> Waiting | None:
        return next((row for row in stage.schedule.find(limit=1000) if row.task_id == result.id), None)

    def storm(self, stage: Stage, name: str, cost: float) -> None:
        limits = runtime_of(stage.app).limits
        assert limits is not None
        limits.spend(name, cost, 0, longest_wait=1e6)

    def test_a_retry_in_a_storm_has_its_turn_later(self, stage: Stage) -> None:
        name, key = stage.key(), stage.key()
        self.storm(stage, name, 100 + 300)
        result = stage.send("called", name, key, DOWN, DONE)
        row = wait_until(lambda: self.waiting(stage, result), 10, "the retry")

        assert row.kind == "retry"  # type: ignore[union-attr]  # not None
        assert 20 < row.due_at - SYSTEM_CLOCK.time() < 31  # type: ignore[union-attr]

    def test_a_retry_that_finds_the_line_full_pays_before_it_runs(self, stage: Stage) -> None:
        name, key = stage.key(), stage.key()
        self.storm(stage, name, 2000)
        result = stage.send("called", name, key, DOWN, DONE)
        wait_until(lambda: self.waiting(stage, result), 10, "the retry")
        assert headers(stage, result).owed == (f"{name}@1.000",)

        bring_forward(stage, result)
        assert wait_parked(stage, result).why == "waits for retry budget"
        assert stage.attempts(key) == [1]
        assert headers(stage, result).owed == (f"{name}@1.000",)

        stage.record.delete(runtime_of(stage.app).limits._key("budget", name))  # type: ignore[union-attr]
        bring_forward(stage, result)
        assert result.get(timeout=10) == "done"
        assert spent(stage, key) == [(1, 0, 0), (2, 1, 1)]


def headers(stage: Stage, result: AsyncResult[Any]) -> Attempts:
    """Give the header of the message of a task that is in the schedule."""
    _, entries = stage.schedule._keys
    messages = [json.loads(text)["headers"] for text in stage.record.hvals(entries)]
    return next(read_attempts(one[HEADER]) for one in messages if one["id"] == result.id)


def bring_forward(stage: Stage, result: AsyncResult[Any]) -> None:
    """Have the message of a task come due now."""
    due, entries = stage.schedule._keys
    member = next(
        m for m, text in stage.record.hgetall(entries).items() if json.loads(text)["headers"]["id"] == result.id
    )
    stage.record.zadd(due, {member: 0})


class TestSharedRate:
    def test_calls_are_spread_and_none_spends_an_attempt(self, stage: Stage) -> None:
        key = stage.key()
        results = [stage.send("rated", key, DONE) for _ in range(20)]
        for result in results:
            assert result.get(timeout=15) == "done"
        runs = stage.runs(key)
        moments = sorted(run["at"] for run in runs)

        assert {(run["attempt"], run["retries"]) for run in runs} == {(1, 0)}
        assert moments[-1] - moments[0] >= 1.8
        assert max(sum(1 for other in moments if one <= other < one + 1) for one in moments) <= 12
        assert {run["parks"] for run in runs} <= {0, 1}  # a reserved slot is not asked for again

    def test_a_function_gives_each_key_a_rate_of_its_own(self, stage: Stage) -> None:
        tenants = [stage.key() for _ in range(3)]
        results = [stage.send("by_tenant", tenant, tenant, DONE) for tenant in tenants for _ in range(4)]
        for result in results:
            assert result.get(timeout=15) == "done"

        for tenant in tenants:
            moments = sorted(run["at"] for run in stage.runs(tenant))
            assert 0.6 <= moments[-1] - moments[0] < 2.5


class TestBulkhead:
    @pytest.fixture
    def short(self, tmp_path: Path, redis_server: EmbeddedRedis) -> Iterator[Stage]:
        with open_gated(tmp_path, redis_server, LEASE_SECONDS="1", VISIBILITY_TIMEOUT="3") as stage:
            yield stage

    def most(self, stage: Stage, key: str) -> int:
        return max(int(inside) for inside in stage.record.lrange(f"most:{key}", 0, -1))

    def test_no_more_run_at_once_than_there_are_places(self, stage: Stage) -> None:
        key = stage.key()
        results = [stage.send("tight", key, 0.1) for _ in range(8)]
        for result in results:
            assert result.get(timeout=30) == "done"

        assert self.most(stage, key) == 2
        assert stage.attempts(key) == [1] * 8

    def test_messages_with_one_task_id_need_a_place_each(self, stage: Stage) -> None:
        key, task_id = stage.key(), stage.key()
        for _ in range(4):
            stage.send("tight", key, 0.3, task_id=task_id)
        stage.wait_runs(key, 4, 30)

        assert self.most(stage, key) == 2

    def test_leases_are_renewed_while_a_task_runs_and_freed_when_its_worker_is_killed(self, short: Stage) -> None:
        """Places outlast their lease thrice while held; those of a killed worker come free by themselves."""
        doomed = short.worker(concurrency=2)
        heir = short.worker(concurrency=2, wait=False)
        held, late = short.key(), short.key()
        for _ in range(2):
            short.send("tight", held, 600)
        short.wait_runs(held, 2)
        heir.wait_ready()
        waiting = short.send("tight", late, 0.01)
        over = SYSTEM_CLOCK.monotonic() + 3.0
        wait_until(lambda: SYSTEM_CLOCK.monotonic() >= over or short.runs(late), 5, "three leases")
        assert short.runs(late) == []
        pids = {run["worker"] for run in short.runs(held)}
        for worker in (doomed, heir):
            if any(worker.name in pid for pid in pids):
                worker.kill()
        killed_at = SYSTEM_CLOCK.time()
        if not heir.is_alive:
            short.worker(concurrency=2)
        short.wait_runs(late, 1, 15)

        assert waiting.get(timeout=10) == "done"
        assert short.runs(late)[0]["at"] - killed_at < 10

    def test_the_death_of_a_child_frees_its_place(self, short: Stage) -> None:
        short.worker(concurrency=3)
        held, late = short.key(), short.key()
        for _ in range(2):
            short.send("tight", held, 600)
        for starts in (2, 4, 6):  # then both are poison
            for run in short.wait_runs(held, starts)[-2:]:
                os.kill(run["pid"], signal.SIGKILL)
        waiting = short.send("tight", late, 0.01)

        assert waiting.get(timeout=15) == "done"


class TestBackpressure:
    @pytest.fixture
    def idle(self, tmp_path: Path, redis_server: EmbeddedRedis) -> Iterator[Stage]:
        """A stage without a worker: what is sent stays."""
        with open_gated(tmp_path, redis_server) as stage:
            yield stage

    def asked(self, stage: Stage) -> int:
        return int(stage.record.info("commandstats").get("cmdstat_llen", {}).get("calls", 0))

    def test_a_full_queue_takes_no_more_and_the_broker_is_asked_once_a_second(self, idle: Stage) -> None:
        for _ in range(5):
            idle.send("open_way", "k")
        before, sent, refused = self.asked(idle), 0, 0
        over = SYSTEM_CLOCK.monotonic() + 2.2
        while SYSTEM_CLOCK.monotonic() < over:
            try:
                idle.send("few", "k")
                sent += 1
            except QueueFullError:
                refused += 1
            SYSTEM_CLOCK.sleep(0.002)
        per_ask = 4  # kombu adds up one list for each of its four priority steps

        assert sent == 0
        assert refused > 100
        assert (self.asked(idle) - before) / per_ask <= 3

    def test_all_queues_are_asked_for_together_once_a_second(self, tmp_path: Path, redis_server: EmbeddedRedis) -> None:
        conf = {"resilience_max_queue_length": {"one": 3, "two": 3}}
        with open_gated(tmp_path, redis_server, conf=conf) as idle:
            for queue in ("one", "two"):
                idle.record.rpush(queue, "x", "x", "x")
            before, refused = self.asked(idle), {"one": 0, "two": 0}
            over = SYSTEM_CLOCK.monotonic() + 2.2
            while SYSTEM_CLOCK.monotonic() < over:
                for queue in refused:
                    with pytest.raises(QueueFullError):
                        idle.send("open_way", "k", queue=queue)
                    refused[queue] += 1
                SYSTEM_CLOCK.sleep(0.002)

            assert min(refused.values()) > 100
            assert (self.asked(idle) - before) / (4 * 2) <= 3

    def test_it_can_wait_for_room(self, tmp_path: Path, redis_server: EmbeddedRedis) -> None:
        with open_gated(tmp_path, redis_server, conf={"resilience_queue_full_wait_seconds": 10}) as idle:
            for _ in range(5):
                idle.send("open_way", "k")
            drain = threading.Timer(0.3, lambda: idle.record.delete("resilient"))
            drain.start()
            idle.send("few", "k")
            drain.join()

            assert idle.record.llen("resilient") == 1


class TestBackpressureInABody:
    @pytest.fixture
    def narrow(self, tmp_path: Path, redis_server: EmbeddedRedis) -> Iterator[Stage]:
        """A worker, and a queue that is full and that nobody consumes."""
        conf = {"resilience_max_queue_length": {"narrow": 3}}
        with open_gated(tmp_path, redis_server, conf=conf) as stage:
            stage.record.rpush("narrow", *"xxx")
            stage.worker(concurrency=2, queues=["resilient"])
            yield stage

    def test_what_a_body_sends_is_limited_and_the_task_is_tried_again(self, narrow: Stage) -> None:
        key = narrow.key()
        result = narrow.send("fan", key, "narrow", 2)
        narrow.wait_runs(key, 2)
        assert narrow.record.llen("narrow") == 3
        narrow.record.delete("narrow")

        assert result.get(timeout=20) == "sent"
        assert narrow.record.llen("narrow") == 2
        runtime_of(narrow.app).breaker("fan").flush()
        assert breaker(narrow, "fan").snapshot().failures == 0

    @pytest.mark.parametrize("kind", ["chain", "callback", "chord"])
    def test_what_celery_sends_on_after_a_body_passes(self, narrow: Stage, kind: str) -> None:
        key = narrow.key()
        task = narrow.app.tasks["resilient.open_way"]
        first, then = task.si(key), task.si(key).set(queue="narrow")
        if kind == "chain":
            (first | then).apply_async()
        elif kind == "callback":
            first.apply_async(link=then)
        else:
            chord([first, first], then, app=narrow.app).apply_async()

        wait_until(lambda: narrow.record.llen("narrow") == 4, 15, f"the {kind} in the full queue")
        assert len(narrow.runs(key)) == (2 if kind == "chord" else 1)


class TestDefaultBreaker:
    def test_each_task_has_a_breaker_of_its_own(self, tmp_path: Path, redis_server: EmbeddedRedis) -> None:
        conf = {"resilience_default_breaker": "task"}
        with open_gated(tmp_path, redis_server, conf=conf) as stage:
            stage.worker(pool="threads", concurrency=2)
            key, result = stage.script(DOWN, DOWN, DOWN, DONE, task="open_way")
            _, passed = stage.script(DONE, task="named")

            assert result.get(timeout=20) == "done"
            assert passed.get(timeout=10) == "done"
            assert stage.attempts(key) == [1, 2, 3, 4]
            assert stage.runs(key)[3]["parks"] >= 1
            assert set(runtime_of(stage.app).breakers.names()) == {"resilient.open_way", "named"}


class TestACrashBetweenParkAndAck:
    def test_the_message_runs_once(self, tmp_path: Path, redis_server: EmbeddedRedis) -> None:
        with open_gated(tmp_path, redis_server, VISIBILITY_TIMEOUT="1") as stage:
            one = force_open(stage, "crash", for_seconds=600)
            doomed = stage.worker(pool="solo", env={VARIABLE: "schedule.stored"})
            key = stage.key()
            result = stage.send("called", "crash", key, DONE)
            wait_until(lambda: not doomed.is_alive, 20, "the crash")
            heir = stage.worker(pool="solo")
            heir.wait_for_log("resilience-attempt-superseded")
            one.reset(who="test", why="over")

            assert result.get(timeout=10) == "done"
            stage.wait_idle()
            assert spent(stage, key) == [(1, 0, 0)]
