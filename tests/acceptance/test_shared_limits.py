"""Limits of a whole fleet: a rate over four processes, and a bulkhead through the death of a worker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_resilience.clock import SYSTEM_CLOCK
from celery_resilience.testing import EmbeddedRedis
from tests.apps import fleet
from tests.support.proof import Figures, size
from tests.support.stage import Stage, open_stage
from tests.support.waiting import wait_until

RATE_SECONDS = size(3, 10)
LEASE_SECONDS = 2.0
Run = tuple[float, float]


@pytest.fixture
def stage(tmp_path: Path, redis_server: EmbeddedRedis) -> Iterator[Stage]:
    with open_stage(
        tmp_path,
        redis_server,
        app="tests.apps.fleet",
        make=lambda env: fleet.build(env, set_as_current=False),
        LEASE_SECONDS=str(LEASE_SECONDS),
        VISIBILITY_TIMEOUT="3",
    ) as stage:
        yield stage


def most_in_a_second(moments: list[float]) -> int:
    most = first = 0
    for last, moment in enumerate(moments):
        while moment - moments[first] >= 1.0:
            first += 1
        most = max(most, last - first + 1)
    return most


def test_a_rate_of_100_a_second_over_four_processes_is_kept_and_used(stage: Stage, figures: Figures) -> None:
    wanted = 100 * RATE_SECONDS + 100
    workers = [stage.worker(concurrency=2, wait=False) for _ in range(2)]
    for worker in workers:
        worker.wait_ready()
    for _ in range(wanted):
        stage.send("hundred")
    wait_until(lambda: stage.record.llen("hundred") >= wanted, RATE_SECONDS + 30, "all calls")
    runs = [json.loads(text) for text in stage.record.lrange("hundred", 0, -1)]
    moments = sorted(at for at, _, _ in runs)
    used = sum(moment < moments[0] + RATE_SECONDS for moment in moments)
    most = most_in_a_second(moments)
    figures.add("rate 100/s, 4 processes: most in any second", wanted="<= 105", measured=most)
    figures.add(f"rate 100/s, 4 processes: in {RATE_SECONDS} s", wanted=f">= {95 * RATE_SECONDS}", measured=used)

    assert most <= 105
    assert used >= 95 * RATE_SECONDS
    assert len(runs) == wanted
    assert {(attempt, parks <= 1) for _, attempt, parks in runs} == {(1, True)}


def overlap(runs: list[Run]) -> int:
    """Give how many ran at once, at the most."""
    edges = sorted([(begin, 1) for begin, _ in runs] + [(end, -1) for _, end in runs], key=lambda edge: edge)
    most = now = 0
    for _, step in edges:
        now += step
        most = max(most, now)
    return most


def runs_of(stage: Stage, killed: str, killed_at: float) -> list[tuple[str, Run]]:
    """Give begin and end of each run; those of the killed worker ended with it."""
    ends = {run: end for run, _, end in (str(text).rpartition(" ") for text in stage.record.lrange("ended", 0, -1))}
    found: list[tuple[str, Run]] = []
    for text in stage.record.lrange("began", 0, -1):
        run, _, began = str(text).rpartition(" ")
        end = ends.get(run, killed_at if killed in run else SYSTEM_CLOCK.time())
        found.append((run, (float(began), float(end))))
    return found


def test_a_bulkhead_of_three_holds_and_recovers_after_a_kill(stage: Stage, figures: Figures) -> None:
    wanted = size(24, 120)
    doomed, heir = (stage.worker(concurrency=4, wait=False) for _ in range(2))
    for worker in (doomed, heir):
        worker.wait_ready()
    results: list[Any] = [stage.send("three", number, 0.3) for number in range(wanted)]

    def is_held_by_the_doomed() -> bool:
        return sum(doomed.name in run and end - begin < 0.2 for run, (begin, end) in runs_of(stage, "", 0)) > 0

    wait_until(lambda: stage.record.llen("ended") >= wanted // 4 and is_held_by_the_doomed(), 30, "a good moment")
    doomed.kill()
    killed_at = SYSTEM_CLOCK.time()
    lost = [run for run, (_, end) in runs_of(stage, doomed.name, killed_at) if end == killed_at]
    for result in results:
        result.get(timeout=60)
    runs = runs_of(stage, doomed.name, killed_at)
    after = [run for _, run in runs if run[0] > killed_at]
    full_at = next((begin for begin, _ in after if sum(b <= begin < e for b, e in after) == 3), None)
    most = overlap([run for _, run in runs])
    figures.add("bulkhead of 3, 8 processes: most at once", wanted="<= 3", measured=most)
    assert full_at is not None, "the places of the dead were never used again"
    promise = f"bulkhead: seconds until all 3 places are used after kill -9 of {len(lost)} runs"
    figures.add(promise, wanted=f"< {LEASE_SECONDS + 5:g}", measured=full_at - killed_at)

    assert most <= 3
    assert full_at - killed_at < LEASE_SECONDS + 5
    assert {run.split()[-1] for run, _ in runs} == {str(number) for number in range(wanted)}
