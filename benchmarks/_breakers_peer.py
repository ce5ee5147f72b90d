"""One library in one scenario, in a process of its own: `_breakers_peer.py LIBRARY SCENARIO URL`; prints JSON.

All libraries get the same task: trip at 10 failures (by rate where they can), open for 3 seconds, one probe at a time.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

FORK = multiprocessing.get_context("fork")
Call = Callable[[Callable[[], Any]], Any]
OPEN_SECONDS = 3.0
LEASE_SECONDS = 3.0
HEARD_SECONDS = 1.5  # by then every library's processes have heard of a trip


class DownError(ConnectionError):
    """The dependency is down."""


def ours(url: str, name: str) -> Call:
    from celery_resilience.breaker import CircuitBreaker
    from celery_resilience.breaker_policy import BreakerPolicy
    from celery_resilience.errors import BreakerOpenError

    policy = BreakerPolicy(minimum_calls=10, open_seconds=OPEN_SECONDS, probe_lease_seconds=LEASE_SECONDS)
    return translated(CircuitBreaker(name, policy, redis_url=url).call, BreakerOpenError)


def pybreaker(url: str, name: str) -> Call:
    import pybreaker as library
    import redis

    storage = library.CircuitRedisStorage(library.STATE_CLOSED, redis.StrictRedis.from_url(url), namespace=name)
    breaker = library.CircuitBreaker(
        fail_max=10, reset_timeout=OPEN_SECONDS, state_storage=storage, throw_new_error_on_trip=False
    )
    return translated(breaker.call, library.CircuitBreakerError)


def interlock(url: str, name: str) -> Call:
    import interlock as library
    import redis
    from interlock.integrations.redis import RedisStorage

    config = library.Config(
        minimum_number_of_calls=10, wait_duration_in_open=OPEN_SECONDS, permitted_calls_in_half_open=1
    )
    breaker = library.CircuitBreaker(name=name, config=config, storage=RedisStorage(redis.Redis.from_url(url)))
    return translated(breaker.call, library.CircuitOpenError)


def circuitbreaker(url: str, name: str) -> Call:
    import circuitbreaker as library

    breaker = library.CircuitBreaker(failure_threshold=10, recovery_timeout=OPEN_SECONDS, name=name)
    return translated(breaker(lambda function: function()), library.CircuitBreakerError)


def purgatory(url: str, name: str) -> Call:
    import purgatory as library
    import redis
    from purgatory.domain.model import OpenedState

    uow = library.SyncRedisUnitOfWork(url)
    uow.contexts.redis = redis.Redis.from_url(url)  # 3.0.1 puts an asyncio client there, which its sync code cannot use
    factory = library.SyncCircuitBreakerFactory(default_threshold=10, default_ttl=OPEN_SECONDS, uow=uow)

    def call(function: Callable[[], Any]) -> Any:
        with factory.get_breaker(name):
            return function()

    return translated(call, OpenedState)


LIBRARIES = {one.__name__: one for one in (ours, pybreaker, interlock, circuitbreaker, purgatory)}


def translated(call: Call, refusal: type[BaseException]) -> Call:
    """Leave the fast path alone; scenarios catch the refusal by this attribute."""
    SCENARIO_REFUSAL.append(refusal)
    return call


SCENARIO_REFUSAL: list[type[BaseException]] = []


def attempt(call: Call, function: Callable[[], Any]) -> bool:
    """Call once; says whether it was admitted."""
    try:
        call(function)
    except SCENARIO_REFUSAL[-1]:
        return False
    except DownError:
        pass
    return True


def fine() -> None:
    """Succeed."""


def down() -> None:
    """Fail."""
    raise DownError


def slowly_down() -> None:
    """Fail after a millisecond, as a refused connection does."""
    time.sleep(0.001)
    raise DownError


def calls_per_second(make: Callable[[str], Call]) -> dict[str, float]:
    """Calls that succeed, in one thread and in four."""
    call = make("speed")
    call(fine)
    found = {}
    for threads in (1, 4):
        counts = [0] * threads
        over = time.perf_counter() + 0.7

        def work(number: int, over: float = over, counts: list[int] = counts) -> None:
            while time.perf_counter() < over:
                for _ in range(50):
                    call(fine)
                counts[number] += 50

        began = time.perf_counter()
        workers = [threading.Thread(target=work, args=(n,)) for n in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        found[str(threads)] = sum(counts) / (time.perf_counter() - began)
    return found


def at_200_per_second(make: Callable[[str], Call]) -> int:
    """Two seconds at 200 calls/s, for whoever counts commands meanwhile; gives the calls."""
    call = make("traffic")
    began = time.perf_counter()
    for n in range(400):
        call(fine)
        time.sleep(max(0.0, began + (n + 1) / 200 - time.perf_counter()))
    return 400


def together(make: Callable[[str], Call], processes: int, job: Callable[[Call, int], Any], name: str) -> list[Any]:
    """Do a job in several processes at the same moment; gives what each says."""
    gate, answers = FORK.Barrier(processes), FORK.Queue()

    def work(number: int) -> None:
        call = make(name)
        gate.wait(20)
        answers.put(job(call, number))

    workers = [FORK.Process(target=work, args=(n,)) for n in range(processes)]
    for worker in workers:
        worker.start()
    found = [answers.get(timeout=40) for _ in workers]
    for worker in workers:
        worker.join(5)
    return found


def overshoot(make: Callable[[str], Call]) -> list[int]:
    """Four processes call what is down until refused; gives calls above 10 in five runs."""

    def job(call: Call, _: int) -> int:
        return next((n for n in range(200) if not attempt(call, slowly_down)), 200)

    return [sum(together(make, 4, job, f"overshoot-{run}")) - 10 for run in range(5)]


def sparse(make: Callable[[str], Call]) -> int:
    """Sixteen processes make five calls each that fail, spread over two seconds; gives calls made."""

    def job(call: Call, number: int) -> int:
        chance, made = random.Random(number), 0
        for _ in range(5):
            time.sleep(chance.uniform(0, 0.4))
            made += attempt(call, down)
        return made

    return sum(together(make, 16, job, "sparse"))


def outage(make: Callable[[str], Call]) -> list[int]:
    """Sixty percent fail; gives the calls until refused in 100 seeded runs, 1000 at the most."""
    found = []
    for seed in range(100):
        call, chance = make(f"outage-{seed}"), random.Random(seed)
        found.append(next((n for n in range(1000) if not attempt(call, down if chance.random() < 0.6 else fine)), 1000))
    return found


def probes(make: Callable[[str], Call]) -> list[int]:
    """Eight processes that lived through the trip keep calling; gives probes in two runs, with one permit each.

    Counted is what begins from a while before the end of the open time to a while after; a call takes longer than that.
    """
    tripped_at = FORK.Value("d", 0.0)
    rest = FORK.Barrier(8)

    def job(call: Call, number: int) -> int:
        call(fine)
        rest.wait(20)
        if number == 0:
            while attempt(call, down):
                pass
            tripped_at.value = time.time()
        rest.wait(20)
        begins: list[float] = []

        def slowly() -> None:
            begins.append(time.time() - tripped_at.value)
            time.sleep(4.2 - begins[-1] if begins[-1] > HEARD_SECONDS else 0.01)
            if begins[-1] < HEARD_SECONDS:
                raise DownError

        while time.time() - tripped_at.value < 3.9:
            attempt(call, slowly)
            time.sleep(0.02)
        return sum(begin > HEARD_SECONDS for begin in begins)

    found = []
    for run in range(2):
        found.append(sum(together(make, 8, job, f"probes-{run}")))
    return found


def killed_prober(make: Callable[[str], Call]) -> float:
    """A prober is killed while it probes; gives seconds until a call of another passes, 8 at the most."""
    tripped = FORK.Event()

    def prober() -> None:
        call = make("killed")
        call(fine)
        tripped.wait(20)
        began = time.monotonic()

        def die_late() -> None:
            if time.monotonic() - began > HEARD_SECONDS:
                os.kill(os.getpid(), signal.SIGKILL)
            raise DownError

        while True:
            attempt(call, die_late)
            time.sleep(0.02)

    doomed = FORK.Process(target=prober)
    doomed.start()
    time.sleep(0.5)
    call = make("killed")
    while attempt(call, down):
        pass
    tripped.set()
    doomed.join(10)
    began = time.monotonic()
    while time.monotonic() - began < 8:
        if attempt(call, fine):
            return time.monotonic() - began
        time.sleep(0.02)
    return 8.0


def forked(make: Callable[[str], Call]) -> list[int]:
    """A child forked after use calls what is down; gives calls it made of 60, and 1 if its parent then is refused."""
    call = make("forked")
    call(fine)
    pid = os.fork()
    if pid == 0:
        os._exit(sum(attempt(call, down) for _ in range(60)))
    _, status = os.waitpid(pid, 0)
    over, is_refused = time.monotonic() + 2, False
    while time.monotonic() < over and not is_refused:
        is_refused = not attempt(call, fine)
        time.sleep(0.02)
    return [os.waitstatus_to_exitcode(status), int(is_refused)]


def lost_redis(make: Callable[[str], Call]) -> dict[str, float]:
    """Redis goes when we say so on stdout; gives the worst and the number of slow calls of three seconds."""
    call = make("lost")
    call(fine)
    print("now", flush=True)
    sys.stdin.readline()
    began, worst, slow, errors = time.monotonic(), 0.0, 0, 0
    while time.monotonic() - began < 3:
        at = time.monotonic()
        try:
            call(fine)
        except Exception:
            errors += 1
        took = time.monotonic() - at
        worst, slow = max(worst, took), slow + (took > 0.02)
        time.sleep(0.01)
    return {"worst": worst, "slow": slow, "errors": errors}


SCENARIOS = {
    one.__name__: one
    for one in (
        calls_per_second, at_200_per_second, overshoot, sparse, outage, probes, killed_prober, forked, lost_redis
    )
}  # fmt: skip


def main() -> None:
    """Run one scenario."""
    library, scenario, url = sys.argv[1:4]
    try:
        LIBRARIES[library](url, "probe-of-the-library")
    except ImportError as error:
        print(json.dumps({"missing": str(error)}))
        return
    print(json.dumps({"found": SCENARIOS[scenario](lambda name: LIBRARIES[library](url, name))}), flush=True)
    os._exit(0)  # a library's threads must not keep the process


if __name__ == "__main__":
    main()
