"""Every pool: tasks that fail one to three times end exactly once each, and a killed worker loses none of them.

The four pools work side by side, each with a Redis and an app of its own; the tests only look at the outcome.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

import pytest

from celery_resilience.testing import embedded_redis
from tests.support.load import Load
from tests.support.proof import Figures, size
from tests.support.stage import Stage, open_stage
from tests.support.workers import Pool

POOLS: tuple[Pool, ...] = get_args(Pool)
TASKS = size(60, 1000)
LONGEST_DELAY = size(3.0, 20.0)
CONCURRENCY = {"prefork": 2, "threads": 8, "gevent": 50, "solo": 1}
LIMIT = size(60, 400)
PATIENCE = pytest.mark.timeout(size(120, 900))


@dataclass
class Outcome:
    """What became of the tasks of one pool."""

    stage: Stage
    load: Load
    held_at_kill: int = 0


def plan(n: int) -> tuple[int, float]:
    """Fail 1–3 times, with delays from 0.1 s to the longest."""
    share = (n * 37 % TASKS) / (TASKS - 1)
    return 1 + n % 3, 0.1 + (LONGEST_DELAY - 0.1) * share**2


@contextlib.contextmanager
def all_pools(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Pool, Outcome]]:
    """Start a worker of each pool and send it its tasks."""
    with contextlib.ExitStack() as stack:
        outcomes: dict[Pool, Outcome] = {}
        for pool in POOLS:
            server = stack.enter_context(embedded_redis(url=""))
            stage = stack.enter_context(
                open_stage(
                    tmp_path_factory.mktemp(pool), server, VISIBILITY_TIMEOUT="5", conf={"task_ignore_result": True}
                )
            )
            outcomes[pool] = Outcome(stage, Load(stage, TASKS, plan))
        yield outcomes


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Pool, Outcome]]:
    with all_pools(tmp_path_factory) as outcomes:
        workers = [
            outcome.stage.worker(pool=pool, concurrency=CONCURRENCY[pool], wait=False)
            for pool, outcome in outcomes.items()
        ]
        for worker in workers:
            worker.wait_ready()
        for outcome in outcomes.values():
            outcome.load.wait_done(TASKS, LIMIT)
            outcome.stage.wait_idle()
        yield outcomes


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Pool, Outcome]]:
    with all_pools(tmp_path_factory) as outcomes:
        first = {
            pool: outcome.stage.worker(pool=pool, concurrency=CONCURRENCY[pool], wait=False)
            for pool, outcome in outcomes.items()
        }
        for pool, outcome in outcomes.items():
            first[pool].wait_ready()
            outcome.load.wait_done(TASKS // 4, LIMIT)
            outcome.held_at_kill = outcome.stage.kill(first[pool])
        second = [
            outcome.stage.worker(pool=pool, concurrency=CONCURRENCY[pool], wait=False)
            for pool, outcome in outcomes.items()
        ]
        for worker in second:
            worker.wait_ready()
        for outcome in outcomes.values():
            outcome.load.wait_done(TASKS, LIMIT)
            outcome.stage.wait_idle(30)
        yield outcomes


@PATIENCE
@pytest.mark.parametrize("pool", POOLS)
def test_each_task_ends_exactly_once_with_the_right_attempts(
    undisturbed: dict[Pool, Outcome], pool: Pool, figures: Figures
) -> None:
    load = undisturbed[pool].load
    attempts, failures = load.attempts(), load.failures
    exact = sum(made == list(range(1, failures[key] + 2)) for key, made in attempts.items())
    figures.add(f"{TASKS} tasks failing 1–3 times, right ({pool})", wanted=str(TASKS), measured=exact)

    assert exact == TASKS
    assert undisturbed[pool].stage.schedule.count() == 0


@PATIENCE
@pytest.mark.parametrize("pool", POOLS)
def test_a_worker_killed_midway_loses_none(killed: dict[Pool, Outcome], pool: Pool, figures: Figures) -> None:
    load = killed[pool].load
    figures.add(f"{TASKS} tasks, killed midway, lost ({pool})", wanted="0", measured=len(load.wrong()))

    assert load.wrong() == {}
    assert load.repeated() <= killed[pool].held_at_kill
