"""Crashes on purpose, between two writes: nothing is lost, and no second line of attempts begins."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_resilience.crashpoints import VARIABLE
from celery_resilience.testing import EmbeddedRedis
from tests.support.load import Load
from tests.support.proof import Figures, size
from tests.support.rabbitmq import RabbitMQ
from tests.support.stage import Stage, open_stage
from tests.support.waiting import wait_until
from tests.support.workers import Pool, WorkerProcess

DOWN, DONE = ["raise", "network"], ["return", "done"]
STORED = {VARIABLE: "schedule.stored"}
PUBLISHED = {VARIABLE: "scheduler.published"}


def wait_for_death(worker: WorkerProcess) -> None:
    wait_until(lambda: not worker.is_alive, 20, lambda: f"the crash of {worker.name}:\n{worker.log()[-2000:]}")


@pytest.fixture
def stage(tmp_path: Path, redis_server: EmbeddedRedis) -> Iterator[Stage]:
    with open_stage(tmp_path, redis_server, VISIBILITY_TIMEOUT="1") as stage:
        yield stage


@pytest.fixture
def on_rabbitmq(tmp_path: Path, redis_server: EmbeddedRedis, rabbitmq: RabbitMQ) -> Iterator[Stage]:
    conf = {"task_default_queue": f"crash{uuid.uuid4().hex[:8]}"}
    with open_stage(tmp_path, redis_server, broker=rabbitmq.url, conf=conf) as stage:
        yield stage


class TestBetweenStoringAndTheAck:
    @pytest.mark.parametrize("pool", ["threads", "solo"])
    def test_the_message_that_comes_back_is_behind_and_is_acked_unrun(self, stage: Stage, pool: Pool) -> None:
        doomed = stage.worker(pool=pool, env=STORED)
        key, result = stage.script(DOWN, DONE)
        wait_for_death(doomed)
        heir = stage.worker(pool=pool)
        heir.wait_for_log("resilience-attempt-superseded")
        stage.wait_idle()

        assert result.get(timeout=15) == "done"
        assert stage.attempts(key) == [1, 2]

    def test_it_is_acked_unrun_though_the_next_attempt_is_hours_away(self, stage: Stage) -> None:
        doomed = stage.worker(pool="solo", env=STORED)
        key, _ = stage.script(["self.retry", {"countdown": 7200}])
        wait_for_death(doomed)
        heir = stage.worker(pool="solo")
        heir.wait_for_log("resilience-attempt-superseded")
        wait_until(lambda: not stage.unacked(), 10, "the ack")

        assert stage.attempts(key) == [1]
        assert stage.schedule.count() == 1

    def test_the_lineage_holds_over_several_crashes(self, stage: Stage) -> None:
        key, result = stage.script(DOWN, DOWN, DOWN, DONE)
        for _ in range(3):
            wait_for_death(stage.worker(pool="solo", env=STORED))
        stage.worker(pool="solo")
        stage.wait_idle(30)

        assert result.get(timeout=15) == "done"
        assert stage.attempts(key) == [1, 2, 3, 4]

    def test_a_prefork_child_that_dies_there_leaves_its_task_to_the_next_attempt(self, stage: Stage) -> None:
        stage.worker(pool="prefork", concurrency=1, env={VARIABLE: "schedule.stored"})
        key, result = stage.script(DOWN, DONE)
        stage.wait_runs(key, 2)

        stage.wait_state(result, "SUCCESS")
        assert stage.attempts(key) == [1, 2]

    def test_on_rabbitmq_it_is_acked_unrun_too(self, on_rabbitmq: Stage) -> None:
        stage = on_rabbitmq
        doomed = stage.worker(pool="solo", env=STORED)
        key, result = stage.script(DOWN, DONE)
        wait_for_death(doomed)
        heir = stage.worker(pool="solo")
        heir.wait_for_log("resilience-attempt-superseded")

        assert result.get(timeout=15) == "done"
        assert stage.attempts(key) == [1, 2]

    def test_a_worker_that_dies_in_the_body_costs_no_attempt(self, stage: Stage) -> None:
        doomed = stage.worker(pool="threads")
        key, result = stage.script(["sleep, raise", [1.0, "network"]], DONE)
        stage.wait_runs(key, 1)
        doomed.kill()
        stage.worker(pool="threads")

        assert result.get(timeout=20) == "done"
        assert stage.attempts(key) == [1, 1, 2]


class TestWhileAFarEtaIsMoved:
    """The crash comes after the message was stored and before it was acked."""

    def run_once(self, stage: Stage, countdown: float) -> list[int]:
        doomed = stage.worker(pool="solo", env=STORED)
        key, result = stage.script(DONE, countdown=countdown)
        wait_for_death(doomed)
        stage.worker(pool="solo")
        assert result.get(timeout=20) == "done"
        self.wait_quiet(stage)
        return stage.attempts(key)

    def wait_quiet(self, stage: Stage) -> None:
        if stage.env["BROKER_URL"].startswith("redis"):
            stage.wait_idle(20)
        else:
            wait_until(lambda: stage.schedule.count() == 0, 20, "an empty schedule")
            # A sentinel behind a second copy: once it has run, the copy had its turn.
            assert stage.script(DONE)[1].get(timeout=20) == "done"

    def test_it_runs_once_when_it_comes_back_before_its_time(self, tmp_path: Path, redis_server: EmbeddedRedis) -> None:
        with open_stage(tmp_path, redis_server, app="tests.apps.impatient", VISIBILITY_TIMEOUT="1") as stage:
            assert self.run_once(stage, countdown=5) == [1]

    def test_it_runs_once_when_it_comes_back_after_its_time(self, tmp_path: Path, redis_server: EmbeddedRedis) -> None:
        with open_stage(tmp_path, redis_server, app="tests.apps.impatient", VISIBILITY_TIMEOUT="4") as stage:
            assert self.run_once(stage, countdown=2) == [1]

    def test_it_runs_once_on_rabbitmq(self, tmp_path: Path, redis_server: EmbeddedRedis, rabbitmq: RabbitMQ) -> None:
        conf = {"task_default_queue": f"crash{uuid.uuid4().hex[:8]}"}
        with open_stage(tmp_path, redis_server, app="tests.apps.impatient", broker=rabbitmq.url, conf=conf) as stage:
            assert self.run_once(stage, countdown=4) == [1]


class TestBetweenPublishingAndRemoving:
    def lease_ends(self, stage: Stage) -> None:
        """Let the dead worker's lease run out."""
        due, _ = stage.schedule._keys
        for member in stage.record.zrange(due, 0, -1):
            stage.record.zadd(due, {member: 0}, xx=True)

    def test_it_is_published_again_and_nothing_is_lost(self, on_rabbitmq: Stage) -> None:
        stage = on_rabbitmq
        doomed = stage.worker(pool="solo", env=PUBLISHED)
        key, result = stage.script(DOWN, DONE)
        wait_for_death(doomed)
        assert stage.schedule.count() == 1
        stage.worker(pool="solo")
        assert result.get(timeout=15) == "done"
        self.lease_ends(stage)
        stage.wait_runs(key, 3)

        assert stage.attempts(key)[0] == 1
        assert set(stage.attempts(key)[1:]) == {2}
        wait_until(lambda: stage.schedule.count() == 0, 10, "an empty schedule")

    def test_the_two_copies_do_not_become_two_lines_of_attempts(self, on_rabbitmq: Stage) -> None:
        stage = on_rabbitmq
        doomed = stage.worker(pool="solo", env=PUBLISHED)
        key, result = stage.script(DOWN, DOWN, DOWN, DONE)
        wait_for_death(doomed)
        self.lease_ends(stage)
        stage.worker(pool="solo")
        assert result.get(timeout=20) == "done"
        wait_until(lambda: stage.schedule.count() == 0, 10, "an empty schedule")
        assert stage.script(DONE)[1].get(timeout=20) == "done"

        attempts = stage.attempts(key)
        assert set(attempts) == {1, 2, 3, 4}
        # The copies share attempt 2, which the dying worker may have begun as well; from there on there is one line.
        assert [attempts.count(n) for n in (1, 3, 4)] == [1, 1, 1]


class TestKillsAtRandom:
    @pytest.mark.parametrize("pool", ["prefork", "threads"])
    def test_workers_that_die_again_and_again_lose_nothing(self, stage: Stage, pool: Pool, figures: Figures) -> None:
        wanted, kills, held = size(40, 400), size(4, 40), 0
        load = Load(stage, wanted, lambda n: (n % 4, 0.1 + (n % 7) / 5))
        for n in range(kills):
            worker = stage.worker(pool=pool, concurrency=2)
            load.wait_done((n + 1) * wanted // (kills + 1), 30)
            held += stage.kill(worker)
        stage.worker(pool=pool, concurrency=2)
        load.wait_done(wanted, 60)
        stage.wait_idle(30)

        figures.add(f"tasks lost in {kills} kills ({pool})", wanted="0", measured=len(load.wrong()))
        assert load.wrong() == {}
        assert load.repeated() <= held  # only what was held at a kill may repeat its number
