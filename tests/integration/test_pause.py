"""A paused queue is not consumed and a paused task is parked, by real workers, through restarts, for no attempt."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_resilience import BreakerPolicy, runtime_of
from celery_resilience.crashpoints import VARIABLE
from celery_resilience.pauses import Pauses
from celery_resilience.testing import EmbeddedRedis, embedded_redis
from celery_resilience.worker.pause import held_by_breakers
from tests.support.rabbitmq import RabbitMQ
from tests.support.stage import Stage, open_stage
from tests.support.waiting import wait_until
from tests.support.workers import ROOT, Pool

DONE = ["return", "done"]
PAUSED, OTHER = "resilient", "other"
BOTH = (PAUSED, OTHER)


@pytest.fixture
def stage(tmp_path: Path, redis_server: EmbeddedRedis) -> Iterator[Stage]:
    with open_stage(tmp_path, redis_server) as stage:
        yield stage


def pauses_of(stage: Stage) -> Pauses:
    pauses = runtime_of(stage.app).pauses
    assert pauses is not None
    return pauses


def pause(stage: Stage, kind: Any, name: str, **more: Any) -> None:
    pauses_of(stage).pause(kind, name, who="test", why="repair", **more)


def others_go_on(stage: Stage, queue: str = OTHER, task: str = "script") -> None:
    """Run ten tasks, one after the other, that are not paused: what would have started has had its time."""
    for _ in range(10):
        assert stage.script(DONE, task=task, queue=queue)[1].get(timeout=20) == "done"
    wait_until(lambda: not stage.unacked(), 10, "the last ack")


@pytest.mark.parametrize("pool", ["prefork", "solo", "threads", "gevent"])
def test_a_paused_queue_waits_through_a_restart_of_the_worker_and_completes_after_resume(
    stage: Stage, pool: Pool
) -> None:
    first = stage.worker(queues=BOTH, pool=pool)
    pause(stage, "queue", PAUSED)
    first.wait_for_log("resilience-queue-paused")
    sent = [stage.script(DONE) for _ in range(10)]
    others_go_on(stage)
    first.kill()
    second = stage.worker(queues=BOTH, pool=pool)
    others_go_on(stage)
    started = [key for key, _ in sent if stage.runs(key)]
    queued = stage.record.llen(PAUSED)
    pauses_of(stage).resume("queue", PAUSED)

    assert [result.get(timeout=20) for _, result in sent] == ["done"] * 10
    assert started == []
    assert queued == 10
    assert [stage.attempts(key) for key, _ in sent] == [[1]] * 10
    second.wait_for_log("resilience-queue-resumed")
    stage.wait_idle()


def test_a_worker_with_nothing_but_a_paused_queue_lives_through_a_restart_of_redis(tmp_path: Path) -> None:
    with embedded_redis(url="", appendonly=True) as server, open_stage(tmp_path, server) as stage:
        pause(stage, "queue", PAUSED)
        worker = stage.worker()
        key, result = stage.script(DONE)
        server.restart()
        worker.wait_for_log("Connection to broker lost")
        wait_until(lambda: worker.log().count("Connected to redis") >= 2, 30, worker.log)
        stage.app.control.inspect([f"{worker.name}@test"], timeout=5).ping()
        before = stage.runs(key)
        pauses_of(stage).resume("queue", PAUSED)

        assert result.get(timeout=20) == "done"
        assert before == []
        assert stage.attempts(key) == [1]


def test_a_pause_with_an_end_ends_by_itself(stage: Stage) -> None:
    pause(stage, "queue", PAUSED, for_seconds=3)
    began = time.time()
    stage.worker()
    key, result = stage.script(DONE)

    assert result.get(timeout=20) == "done"
    assert stage.runs(key)[0]["at"] - began > 2.5


def test_a_paused_task_is_parked_while_others_go_on(stage: Stage) -> None:
    pause(stage, "task", "resilient.script")
    first = stage.worker()
    sent = [stage.script(DONE) for _ in range(10)]
    others_go_on(stage, PAUSED, "thrice")
    wait_until(lambda: stage.schedule.count() == 10 and not stage.unacked(), 10, "ten parked messages")
    rows = stage.schedule.find()
    first.kill()
    stage.worker()
    others_go_on(stage, PAUSED, "thrice")
    started = [key for key, _ in sent if stage.runs(key)]
    pauses_of(stage).resume("task", "resilient.script")

    assert [result.get(timeout=20) for _, result in sent] == ["done"] * 10
    assert started == []
    assert {(row.kind, row.attempt, row.why) for row in rows} == {("park", 1, "waits for pause:task:resilient.script")}
    assert all(3500 < row.due_at - time.time() < 3700 for row in rows)
    assert [(run["attempt"], run["retries"]) for key, _ in sent for run in stage.runs(key)] == [(1, 0)] * 10
    stage.wait_idle()


def test_a_task_that_is_paused_while_it_runs_is_parked_and_comes_back_whoever_resumes_it_when(stage: Stage) -> None:
    stage.worker()
    stage.worker()
    pause(stage, "task", "resilient.script")
    sent = []
    while not stage.schedule.count():
        sent.append(stage.script(DONE))
        time.sleep(0.02)
    pauses_of(stage).resume("task", "resilient.script")
    over = time.time() + 2.5  # workers learn of it within two seconds and may park until then
    while time.time() < over:
        sent.append(stage.script(DONE))
        time.sleep(0.02)

    assert {result.get(timeout=20) for _, result in sent} == {"done"}
    assert all(stage.attempts(key) == [1] for key, _ in sent)
    stage.wait_idle()


def test_a_paused_task_keeps_its_eta(stage: Stage) -> None:
    pause(stage, "task", "resilient.script")
    stage.worker()
    began = time.time()
    key, result = stage.script(DONE, countdown=5)
    wait_until(lambda: stage.schedule.count() == 1, 10, "the parked message")
    pauses_of(stage).resume("task", "resilient.script")

    assert result.get(timeout=20) == "done"
    assert stage.runs(key)[0]["at"] - began >= 4.9


@pytest.mark.parametrize("is_resumed_first", [False, True])
def test_a_crash_between_parking_and_the_ack_leaves_one_message(
    tmp_path: Path, redis_server: EmbeddedRedis, is_resumed_first: bool
) -> None:
    with open_stage(tmp_path, redis_server, VISIBILITY_TIMEOUT="1") as stage:
        pause(stage, "task", "resilient.script")
        doomed = stage.worker(pool="solo", env={VARIABLE: "schedule.stored"})
        key, result = stage.script(DONE)
        wait_until(lambda: not doomed.is_alive, 20, doomed.log)
        if is_resumed_first:
            pauses_of(stage).resume("task", "resilient.script")
        stage.worker(pool="solo")
        wait_until(lambda: not stage.unacked(), 15, "the ack of the message that came back")
        before = (stage.schedule.count(), stage.runs(key))
        pauses_of(stage).resume("task", "resilient.script")

        assert result.get(timeout=20) == "done"
        assert is_resumed_first or before == (1, [])
        stage.wait_idle()
        assert stage.attempts(key) == [1]


def test_queues_and_tasks_are_paused_on_rabbitmq_too(
    tmp_path: Path, redis_server: EmbeddedRedis, rabbitmq: RabbitMQ
) -> None:
    one, two = (f"q{uuid.uuid4().hex[:8]}" for _ in range(2))
    queues = json.dumps([{"name": name, "exchange": name, "routing_key": name} for name in (one, two)])
    conf = {"task_default_queue": one, "task_default_exchange": one, "task_default_routing_key": one}
    with open_stage(tmp_path, redis_server, broker=rabbitmq.url, conf=conf, QUEUES=queues) as stage:
        pause(stage, "task", "resilient.thrice")
        worker = stage.worker(queues=(one, two))
        pause(stage, "queue", one)
        worker.wait_for_log("resilience-queue-paused")
        sent = [stage.script(DONE, queue=one) for _ in range(5)]
        sent += [stage.script(DONE, task="thrice", queue=two) for _ in range(5)]
        others_go_on(stage, two)
        wait_until(lambda: stage.schedule.count() == 5, 10, "five parked messages")
        started = [key for key, _ in sent if stage.runs(key)]
        pauses_of(stage).resume("queue", one)
        pauses_of(stage).resume("task", "resilient.thrice")
        worker.wait_for_log("resilience-queue-resumed")

        assert [result.get(timeout=20) for _, result in sent] == ["done"] * 10
        assert started == []
        assert [stage.attempts(key) for key, _ in sent] == [[1]] * 10


def celery(*words: str, env: dict[str, str], stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run `celery resilience …` of the resilient app."""
    command = [sys.executable, "-m", "celery", "-A", "tests.apps.resilient", "resilience", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    return subprocess.run(
        command, cwd=ROOT, env=environment, input=stdin, capture_output=True, text=True, check=False, timeout=60
    )


REASON = ("--reason", "repair")


def test_the_commands_pause_list_and_resume(stage: Stage) -> None:
    dry = celery("pause", "--queue", PAUSED, *REASON, "--dry-run", env=stage.env)
    refused = celery("pause", "--queue", PAUSED, *REASON, env=stage.env, stdin="n\n")
    none = celery("pauses", env=stage.env)
    asked = celery("pause", "--queue", PAUSED, *REASON, env=stage.env, stdin="y\n")
    task = celery("pause", "--task", "resilient.script", *REASON, "--for", "10m", "--yes", "--json", env=stage.env)
    table = celery("pauses", env=stage.env)
    listed = json.loads(celery("pauses", "--json", env=stage.env).stdout)
    resumed = celery("resume", "--queue", PAUSED, "--yes", env=stage.env)
    again = celery("resume", "--queue", PAUSED, "--yes", env=stage.env)

    assert [done.returncode for done in (dry, refused, none, asked, task, resumed, again)] == [0, 1, 0, 0, 0, 0, 1]
    assert dry.stdout.strip() == f"would pause queue {PAUSED}"
    assert none.stdout.strip() == "Nothing is paused."
    assert asked.stdout.strip() == f"queue {PAUSED}: paused until it is resumed"
    assert json.loads(task.stdout)["until"] - json.loads(task.stdout)["at"] == pytest.approx(600, abs=0.01)
    assert [line.split()[0] for line in table.stdout.splitlines()] == ["paused", "queue", "task"]
    assert [(one["kind"], one["name"], one["why"]) for one in listed] == [
        ("queue", PAUSED, "repair"),
        ("task", "resilient.script", "repair"),
    ]
    assert resumed.stdout.strip() == f"queue {PAUSED}: resumed"
    assert "is not paused" in again.stderr + again.stdout


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("pause", *REASON, "--yes"), 2, "exactly one of --queue and --task"),
        (("pause", "--queue", "a", "--task", "b", *REASON, "--yes"), 2, "exactly one"),
        (("pause", "--queue", "a", "--yes"), 2, "--reason"),
        (("pause", "--queue", "a", *REASON, "--for", "soon", "--yes"), 2, "10m"),
        (("pause", "--task", "resilient.scirpt", *REASON, "--yes"), 1, "Did you mean 'resilient.script'?"),
        (("pause", "--task", "resilient.plain", *REASON, "--yes"), 1, "pause its queue"),
        (("resume", "--task", "a", "--dry-run"), 1, "did not answer"),
        (("pauses",), 1, "did not answer"),
        (("pause", "--queue", "a", "--reason", "", "--yes"), 1, "why=''"),
        (("pause", "--queue", "q\udcff", *REASON, "--yes"), 2, "is not UTF-8"),
        (("pause", "--queue", "a", "--reason", "\udcff", "--yes"), 2, "is not UTF-8"),
        (("resume", "--queue", "q\udcff", "--yes"), 2, "is not UTF-8"),
    ],
)
def test_what_is_wrong_is_told_in_a_line(words: tuple[str, ...], code: int, told: str) -> None:
    done = celery(*words, env={"BROKER_URL": "redis://:hunter2@127.0.0.1:1/0"})

    assert done.returncode == code
    assert told in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "hunter2" not in done.stdout + done.stderr
    assert "resilience-" not in done.stdout + done.stderr  # what is logged says the same a second time


def test_without_redis_the_remedy_is_named() -> None:
    env = {"BROKER_URL": "amqp://127.0.0.1:1//", "RESULT_URL": "rpc://"}
    done = [
        celery("pause", "--queue", "a", *REASON, "--yes", env=env),
        celery("resume", "--queue", "a", "--yes", env=env),
        celery("pauses", env=env),
    ]

    assert [one.returncode for one in done] == [1, 1, 1]
    assert all("resilience_redis_url" in one.stdout + one.stderr for one in done)
    assert all("Traceback" not in one.stdout + one.stderr for one in done)


class TestAQueueThatWaitsForABreaker:
    @pytest.fixture
    def stage(self, tmp_path: Path, redis_server: EmbeddedRedis) -> Iterator[Stage]:
        with open_stage(tmp_path, redis_server, conf={"resilience_queue_breakers": {PAUSED: "bank"}}) as stage:
            yield stage

    @pytest.mark.parametrize("for_seconds", [None, 600.0])
    def test_is_not_consumed_while_it_is_open_and_nothing_is_parked(
        self, stage: Stage, for_seconds: float | None
    ) -> None:
        worker = stage.worker(queues=BOTH)
        bank = runtime_of(stage.app).breaker("bank")
        bank.force_open(who="ann", why="the bank is closed", for_seconds=for_seconds)
        worker.wait_for_log("resilience-queue-paused queue=resilient who=breaker bank why=the bank is closed")
        sent = [stage.script(DONE) for _ in range(5)]
        others_go_on(stage)
        queued, waiting = stage.record.llen(PAUSED), stage.schedule.count()
        bank.reset(who="ann", why="open again")

        assert [result.get(timeout=20) for _, result in sent] == ["done"] * 5
        assert (queued, waiting) == (5, 0)
        worker.wait_for_log("resilience-queue-resumed queue=resilient")

    def test_is_consumed_as_soon_as_the_open_time_is_over(self, stage: Stage) -> None:
        worker = stage.worker(queues=BOTH)
        bank = runtime_of(stage.app).breaker("bank", BreakerPolicy(consecutive_failures=1, open_seconds=5))
        with pytest.raises(ConnectionError), bank:
            raise ConnectionError("down")
        worker.wait_for_log("resilience-queue-paused")
        key, result = stage.script(DONE)
        over = bank.snapshot().open_until

        assert result.get(timeout=20) == "done"
        assert -0.3 < stage.runs(key)[0]["at"] - over < 1.5

    def test_an_operators_pause_outlasts_the_breaker(self, stage: Stage) -> None:
        worker = stage.worker(queues=BOTH)
        bank = runtime_of(stage.app).breaker("bank")
        pause(stage, "queue", PAUSED)
        bank.force_open(who="ann", why="closed")
        worker.wait_for_log("resilience-queue-paused")
        key, result = stage.script(DONE)
        bank.reset(who="ann", why="open")
        others_go_on(stage)
        over = time.monotonic() + 2.5
        wait_until(lambda: time.monotonic() > over or stage.runs(key), 5, "a look of the worker")
        assert stage.runs(key) == []
        pauses_of(stage).resume("queue", PAUSED)

        assert result.get(timeout=20) == "done"

    def test_is_consumed_when_redis_does_not_say(self, stage: Stage) -> None:
        runtime = runtime_of(stage.app)
        runtime.breaker("bank").force_open(who="ann", why="closed")
        assert list(held_by_breakers(runtime)) == [PAUSED]
        stage.server.pause()
        try:
            assert held_by_breakers(runtime) == {}
        finally:
            stage.server.resume()
