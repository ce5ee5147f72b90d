"""Long tasks on a Redis broker: delivered once while their worker lives, again soon after it died.

The four pools go through each story side by side, each with a Redis of its own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import get_args

import pytest
from celery.result import AsyncResult

from celery_resilience.clock import SYSTEM_CLOCK
from celery_resilience.testing import embedded_redis
from tests.support.proof import Figures, size
from tests.support.stage import Stage, open_stage
from tests.support.waiting import wait_until
from tests.support.workers import Pool, WorkerProcess

POOLS: tuple[Pool, ...] = get_args(Pool)
TIMEOUT = size(2.0, 10.0)
LONG = size(7.0, 60.0)
ORPHAN_TIMEOUT = size(3.0, 10.0)
PATIENCE = pytest.mark.timeout(size(120, 400))


@dataclass
class Story:
    """One pool's stage and what happened on it."""

    pool: Pool
    stage: Stage
    key: str = ""
    result: AsyncResult | None = None
    workers: list[WorkerProcess] = field(default_factory=list)
    killed_at: float = 0.0

    def start_worker(self) -> None:
        """Start one more worker, without waiting."""
        self.workers.append(self.stage.worker(pool=self.pool, concurrency=1, wait=False))

    def send(self, *seconds: float) -> None:
        """Send a task that takes these seconds at its first, second, … run."""
        self.key = self.stage.key()
        self.result = self.stage.send("paced", self.key, *seconds)

    def ends(self) -> list[str]:
        """Give the workers in which a run came to its end."""
        return list(self.stage.record.lrange(f"end:{self.key}", 0, -1))

    def wait_ends(self, count: int, seconds: float) -> None:
        """Wait until that many runs came to their end."""
        wait_until(lambda: len(self.ends()) >= count, seconds, lambda: f"end {count} ({self.pool}): {self.ends()}")


@contextlib.contextmanager
def stories(tmp_path_factory: pytest.TempPathFactory, timeout: float) -> Iterator[dict[Pool, Story]]:
    """Open a stage for each pool, with one worker that is ready."""
    with contextlib.ExitStack() as stack:
        told: dict[Pool, Story] = {}
        for pool in POOLS:
            server = stack.enter_context(embedded_redis(url=""))
            stage = open_stage(tmp_path_factory.mktemp(pool), server, VISIBILITY_TIMEOUT=str(timeout))
            told[pool] = Story(pool, stack.enter_context(stage))
            told[pool].start_worker()
        for story in told.values():
            story.workers[0].wait_ready()
        yield told


def start_another(told: dict[Pool, Story]) -> None:
    """Start one more worker of each pool and wait for all."""
    for story in told.values():
        story.start_worker()
    for story in told.values():
        story.workers[-1].wait_ready()


@pytest.fixture(scope="module")
def long_tasks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Pool, Story]]:
    """A long task of each pool, with a second worker that is idle all the time."""
    with stories(tmp_path_factory, TIMEOUT) as told:
        for story in told.values():
            story.send(LONG)
        start_another(told)
        for story in told.values():
            story.wait_ends(1, LONG + 30)
        for story in told.values():
            story.stage.wait_idle()
        yield told


@PATIENCE
@pytest.mark.parametrize("pool", POOLS)
def test_a_task_far_longer_than_the_timeout_runs_once(
    long_tasks: dict[Pool, Story], pool: Pool, figures: Figures
) -> None:
    story = long_tasks[pool]
    runs = story.stage.runs(story.key)
    figures.add(f"runs of a {LONG:g} s task, timeout {TIMEOUT:g} s ({pool})", wanted="1", measured=len(runs))

    assert len(runs) == len(story.ends()) == 1
    assert story.result is not None
    assert story.result.get(timeout=10) == "done"


@pytest.fixture(scope="module")
def orphans(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Pool, Story]]:
    """The worker that runs a task is killed while another one is idle."""
    with stories(tmp_path_factory, ORPHAN_TIMEOUT) as told:
        for story in told.values():
            story.send(600, 0.1)
            story.stage.wait_runs(story.key, 1)
        start_another(told)
        for story in told.values():
            story.workers[0].kill()
            story.killed_at = SYSTEM_CLOCK.time()
        for story in told.values():
            story.wait_ends(1, 3 * ORPHAN_TIMEOUT)
            story.stage.wait_idle()
        yield told


@PATIENCE
@pytest.mark.parametrize("pool", POOLS)
def test_the_orphan_of_a_killed_worker_starts_again_within_one_and_a_half_timeouts(
    orphans: dict[Pool, Story], pool: Pool, figures: Figures
) -> None:
    story = orphans[pool]
    runs = story.stage.runs(story.key)
    waited = (runs[1]["at"] - story.killed_at) / ORPHAN_TIMEOUT
    figures.add(f"orphan started again after, in timeouts ({pool})", wanted="<= 1.5", measured=waited)

    assert [run["attempt"] for run in runs] == [1, 1]
    assert runs[1]["redelivered"]
    assert waited <= 1.5


@pytest.fixture(scope="module")
def thawed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Pool, Story]]:
    """Freeze a worker, let a twin start, thaw, let the stale run end, kill the twin, start a third."""
    with stories(tmp_path_factory, TIMEOUT) as told:
        for story in told.values():
            story.send(1.0, 600, 0.1)
            story.stage.wait_runs(story.key, 1)
            story.workers[0].freeze()
        start_another(told)
        for story in told.values():
            story.stage.wait_runs(story.key, 2, 4 * TIMEOUT + 10)  # the twin has begun
        for story in told.values():
            story.workers[0].thaw()
        for story in told.values():
            story.wait_ends(1, 15)  # the stale run has ended
            story.workers[0].terminate()  # and whatever it wanted to ack is acked by now
            assert story.stage.unacked() == 1, f"the twin's safety net is gone ({story.pool})"
        for story in told.values():
            story.workers[1].kill()
        start_another(told)
        for story in told.values():
            story.wait_ends(2, 4 * TIMEOUT + 10)
            story.stage.wait_idle()
        yield told


@PATIENCE
@pytest.mark.parametrize("pool", POOLS)
def test_a_stale_run_does_not_take_the_live_ones_safety_net(
    thawed: dict[Pool, Story], pool: Pool, figures: Figures
) -> None:
    story = thawed[pool]
    runs = story.stage.runs(story.key)
    by_whom = [f"{worker.name}@test" for worker in story.workers]
    finished = story.ends() == [by_whom[0], by_whom[2]]
    figures.add(
        f"frozen, twin, thawed, twin killed: finished ({pool})", wanted="yes", measured="yes" if finished else "no"
    )

    assert [run["worker"] for run in runs] == by_whom
    assert [run["attempt"] for run in runs] == [1, 1, 1]
    assert finished
