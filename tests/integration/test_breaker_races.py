"""A fleet on one breaker, in real processes: who is admitted, how far it overshoots, what a killed prober leaves."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

import pytest

from celery_resilience import BreakerPolicy
from celery_resilience.breaker import CircuitBreaker, Permit, Refusal
from celery_resilience.redis_store import RedisStore
from celery_resilience.testing import EmbeddedRedis
from tests.support.breakers import fail
from tests.support.proof import Figures, size

FORK = multiprocessing.get_context("fork")
Job = Callable[[str, str, Any], Any]


class Fleet:
    """Processes that do the same job at the same moment, again and again."""

    def __init__(self, url: str, processes: int, job: Job) -> None:
        self._gate = FORK.Barrier(processes)
        self._lines: list[Connection] = []
        self._processes = []
        for number in range(processes):
            ours, theirs = FORK.Pipe()
            process = FORK.Process(target=self._work, args=(url, theirs, job, number), daemon=True)
            process.start()
            theirs.close()
            self._lines.append(ours)
            self._processes.append(process)

    def run(self, name: str) -> list[Any]:
        """Have all of them do the job on a breaker; gives what each says."""
        for line in self._lines:
            line.send(name)
        return [line.recv() for line in self._lines]

    def close(self) -> None:
        """End them."""
        for line, process in zip(self._lines, self._processes, strict=True):
            line.send(None)
            process.join(5)
            line.close()

    def _work(self, url: str, line: Connection, job: Job, number: int) -> None:
        while (name := line.recv()) is not None:
            line.send(job(url, name, (self._gate, number)))
        os._exit(0)


@contextlib.contextmanager
def fleet(url: str, processes: int, job: Job) -> Iterator[Fleet]:
    with contextlib.closing(Fleet(url, processes, job)) as one:
        yield one


def breaker_at(url: str, name: str, **policy: Any) -> CircuitBreaker:
    return CircuitBreaker(name, BreakerPolicy(**policy), store=RedisStore(url, timeout_seconds=2))


PROBING: dict[str, Any] = {
    "failure_rate": None,
    "consecutive_failures": 1,
    "open_seconds": 0.05,
    "half_open_permits": 3,
}


def ask_for_a_probe(url: str, name: str, stage: Any) -> bool:
    """Ask at the same moment as all others, and hold what was given until all have asked."""
    gate, _ = stage
    breaker = breaker_at(url, name, **PROBING)
    gate.wait(10)
    answer = breaker.admit()
    gate.wait(10)
    return isinstance(answer, Permit)


def test_as_many_probes_pass_as_there_are_permits(resilience_redis: EmbeddedRedis, figures: Figures) -> None:
    runs = size(20, 100)
    right = 0
    with fleet(resilience_redis.url, 8, ask_for_a_probe) as workers:
        for n in range(runs):
            opened = breaker_at(resilience_redis.url, f"run-{n}", **PROBING)
            fail(opened)
            time.sleep(0.06)
            right += sum(workers.run(f"run-{n}")) == 3
    figures.add("breaker: probes == permits, 8 processes", wanted=f"{runs} of {runs}", measured=f"{right} of {runs}")

    assert right == runs


THRESHOLDS: list[dict[str, Any]] = [{"failure_rate": None, "consecutive_failures": 10}, {"minimum_calls": 10}]


def fail_until_refused(url: str, name: str, stage: Any) -> int:
    """Call a dependency that is down, as fast as it says so, from a warm start."""
    gate, _ = stage
    breaker = breaker_at(url, name, **THRESHOLDS[int(name[-1])])
    warm = breaker.admit()
    assert isinstance(warm, Permit)
    warm.cancel()
    gate.wait(10)
    calls = 0
    for _ in range(200):
        answer = breaker.admit()
        if isinstance(answer, Refusal):
            break
        calls += 1
        time.sleep(0.001)
        answer.failure(ConnectionError())
    return calls


@pytest.mark.parametrize("threshold", [0, 1])
def test_the_fleet_overshoots_by_less_than_its_processes(
    resilience_redis: EmbeddedRedis, figures: Figures, threshold: int
) -> None:
    with fleet(resilience_redis.url, 4, fail_until_refused) as workers:
        totals = [sum(workers.run(f"run-{n}-{threshold}")) for n in range(size(10, 100))]
    words = "in a row" if threshold == 0 else "by rate"
    figures.add(f"breaker: overshoot over 10, 4 processes, {words}", wanted="<= 3", measured=max(totals) - 10)

    assert min(totals) >= 10
    assert max(totals) <= 13


def fail_now_and_then(url: str, name: str, stage: Any) -> int:
    """Make five calls that fail, spread over some time."""
    gate, number = stage
    chance = random.Random(number)
    breaker = breaker_at(url, name)
    gate.wait(10)
    admitted = 0
    for _ in range(5):
        time.sleep(chance.uniform(0, 0.4))
        admitted += fail(breaker)
    return admitted


def test_a_sparse_fleet_trips(resilience_redis: EmbeddedRedis, figures: Figures) -> None:
    with fleet(resilience_redis.url, 16, fail_now_and_then) as workers:
        worst = max(sum(workers.run(f"run-{n}")) for n in range(size(1, 5)))
    figures.add("breaker: sparse fleet of 16 x 5 failures, calls made", wanted="<= 16 of 80", measured=worst)

    assert worst <= 16


def test_an_outage_of_60_percent_trips_soon(resilience_redis: EmbeddedRedis, figures: Figures) -> None:
    within = 0
    for seed in range(100):
        chance = random.Random(seed)
        breaker = CircuitBreaker(f"run-{seed}", redis_url=resilience_redis.url)
        for _ in range(25):
            answer = breaker.admit()
            if isinstance(answer, Refusal):
                within += 1
                break
            answer.failure(ConnectionError()) if chance.random() < 0.6 else answer.success()
    figures.add("breaker: a 60 % outage trips within 25 calls", wanted=">= 90 of 100", measured=within)

    assert within >= 90


def test_a_killed_prober_frees_its_permit(resilience_redis: EmbeddedRedis, figures: Figures) -> None:
    lease = 0.5
    policy = {**PROBING, "half_open_permits": 1, "probe_lease_seconds": lease}
    breaker = breaker_at(resilience_redis.url, "pay", **policy)
    fail(breaker)
    time.sleep(0.06)
    pid = os.fork()
    if pid == 0:
        breaker.admit()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    began = time.monotonic()
    denied = 0
    while isinstance(breaker.admit(), Refusal):
        denied += 1
        assert time.monotonic() - began < 5
        time.sleep(0.005)
    took = time.monotonic() - began
    figures.add("breaker: permit of a killed prober, after its lease", wanted="<= 0.5 s", measured=took - lease)

    assert denied > 10
    assert took <= lease + 0.5
