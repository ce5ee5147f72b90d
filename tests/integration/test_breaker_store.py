"""A breaker and its Redis: how little it asks, and what it does when Redis is away, full, frozen or read-only."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from celery_resilience import BreakerPolicy
from celery_resilience.breaker import Breakers, CircuitBreaker, Permit, Refusal, Snapshot
from celery_resilience.breaker.shared import breaker_keys, index_key, names, prune
from celery_resilience.clock import SYSTEM_CLOCK
from celery_resilience.errors import StoreUnavailableError
from celery_resilience.failure import Classifier
from celery_resilience.redis_store import RedisStore
from celery_resilience.testing import EmbeddedRedis, FakeClock
from tests.support.breakers import UnreliableStore, fail, move_with, succeed
from tests.support.proof import Figures
from tests.support.waiting import wait_until

COOLDOWN = 0.4


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(resilience_redis: EmbeddedRedis, clock: FakeClock) -> Iterator[UnreliableStore]:
    store = UnreliableStore(resilience_redis.url, timeout_seconds=2, clock=clock)
    yield store
    store.close()


@pytest.fixture
def breaker(store: UnreliableStore, clock: FakeClock) -> CircuitBreaker:
    return move_with(CircuitBreaker("pay", BreakerPolicy(minimum_calls=10), store=store, clock=clock))


@pytest.fixture
def troubled(redis_server: EmbeddedRedis) -> Iterator[CircuitBreaker]:
    """A breaker in real time, on a Redis that the test may harm."""
    store = RedisStore(redis_server.url, cooldown_seconds=COOLDOWN)
    yield CircuitBreaker("pay", BreakerPolicy(minimum_calls=10, open_seconds=0.5), store=store)
    store.close()


class TestTraffic:
    def test_successes_cost_one_command_per_quarter_second(
        self, breaker: CircuitBreaker, store: UnreliableStore, clock: FakeClock, figures: Figures
    ) -> None:
        for _ in range(2000):  # ten seconds at 200 calls/s
            breaker.call(int)
            clock.move(0.005)
        figures.add("breaker: commands per success at 200 calls/s", wanted="<= 0.025", measured=store.sent / 2000)

        assert store.sent <= 50
        breaker.flush()
        assert breaker.snapshot().calls == 2000

    def test_an_idle_breaker_sends_nothing(self, breaker: CircuitBreaker, store: UnreliableStore) -> None:
        succeed(breaker, 3)
        sent = store.sent
        before = threading.active_count()
        time.sleep(0.3)

        assert store.sent == sent
        assert threading.active_count() == before

    def test_an_open_breaker_asks_four_times_a_second(
        self, breaker: CircuitBreaker, store: UnreliableStore, clock: FakeClock
    ) -> None:
        fail(breaker, 10)
        sent = store.sent
        for _ in range(1000):
            breaker.admit()
            clock.move(0.005)

        assert store.sent - sent <= 21

    def test_a_failure_is_sent_at_once_with_the_successes_before_it(
        self, breaker: CircuitBreaker, store: UnreliableStore
    ) -> None:
        succeed(breaker, 5)
        sent = store.sent
        fail(breaker)

        assert store.sent == sent + 1
        assert (breaker.snapshot().calls, breaker.snapshot().failures) == (6, 1)


class TestUnreliableLine:
    def test_counts_are_sent_again_when_the_store_is_back(
        self, breaker: CircuitBreaker, store: UnreliableStore, clock: FakeClock
    ) -> None:
        succeed(breaker, 3)
        store.lost = "before"
        fail(breaker, 4)
        store.lost = ""
        clock.move(store.cooldown_seconds + 0.1)
        succeed(breaker)
        breaker.flush()

        assert (breaker.snapshot().calls, breaker.snapshot().failures) == (8, 4)

    def test_a_reply_that_was_lost_counts_twice_at_the_most(
        self, breaker: CircuitBreaker, store: UnreliableStore, clock: FakeClock
    ) -> None:
        succeed(breaker, 3)
        store.lost = "after"
        fail(breaker, 1)
        store.lost = ""
        clock.move(store.cooldown_seconds + 0.1)
        succeed(breaker, 1)
        breaker.flush()

        assert breaker.snapshot().failures in (1, 2)

    def test_the_local_breaker_trips_by_itself(self, breaker: CircuitBreaker, store: UnreliableStore) -> None:
        store.lost = "before"

        assert fail(breaker, 30) == 10
        assert isinstance(breaker.admit(), Refusal)

    def test_it_goes_on_from_what_was_known(
        self, breaker: CircuitBreaker, store: UnreliableStore, clock: FakeClock
    ) -> None:
        fail(breaker, 10)
        store.lost = "before"
        clock.move(1)

        refused = breaker.admit()
        assert isinstance(refused, Refusal)
        assert 8 < refused.retry_after < 10

    def test_a_probe_whose_store_was_lost_frees_its_permit_by_its_lease(
        self, breaker: CircuitBreaker, store: UnreliableStore, clock: FakeClock
    ) -> None:
        fail(breaker, 10)
        clock.move(11)
        permit = breaker.admit()
        assert isinstance(permit, Permit)
        store.lost = "before"
        permit.success()
        store.lost = ""
        clock.move(31)

        again = breaker.admit()
        assert isinstance(again, Permit)
        assert again.is_probe

    @pytest.mark.parametrize("lost", ["before", "after"])
    def test_no_error_of_ours_reaches_the_caller(
        self, breaker: CircuitBreaker, store: UnreliableStore, clock: FakeClock, lost: str
    ) -> None:
        for n in range(200):
            store.lost = lost if n % 3 else ""
            clock.move(1.7)
            answer = breaker.admit()
            if isinstance(answer, Permit):
                (answer.success, answer.cancel, lambda p=answer: p.failure(OSError()))[n % 3]()

    def test_a_store_that_refuses_is_asked_once_per_cool_down(
        self, breaker: CircuitBreaker, store: UnreliableStore, clock: FakeClock
    ) -> None:
        """A full or read-only Redis answers at once, so the store itself has no cool-down for it."""
        succeed(breaker)
        store.lost = "before"
        sent = store.sent
        for _ in range(1000):
            clock.move(0.01)
            succeed(breaker)

        assert 1 <= store.sent - sent <= 10 / store.cooldown_seconds + 1

    def test_operators_are_told(self, breaker: CircuitBreaker, store: UnreliableStore) -> None:
        store.lost = "before"
        with pytest.raises(StoreUnavailableError):
            breaker.force_open(who="ann", why="x")
        with pytest.raises(StoreUnavailableError):
            breaker.snapshot()


def worst_of(call: Callable[[], object], times: int) -> float:
    """Give the longest of several calls, in seconds."""
    worst = 0.0
    for _ in range(times):
        began = time.perf_counter()
        call()
        worst = max(worst, time.perf_counter() - began)
    return worst


def seen_in(server: EmbeddedRedis) -> Snapshot:
    """Look with a client of its own, which has no cool-down."""
    with contextlib.closing(RedisStore(server.url, timeout_seconds=2)) as store:
        return CircuitBreaker("pay", store=store).snapshot()


def failures_in(server: EmbeddedRedis) -> int:
    return seen_in(server).failures


def has_tripped(server: EmbeddedRedis) -> bool:
    return bool(CircuitBreaker("pay", redis_url=server.url).history())


class TestTroubledRedis:
    def test_a_frozen_redis_costs_a_quarter_second_once_per_cool_down(
        self, troubled: CircuitBreaker, redis_server: EmbeddedRedis, figures: Figures
    ) -> None:
        succeed(troubled)
        redis_server.pause()
        time.sleep(0.26)
        slow = [took for took in (worst_of(lambda: troubled.call(int), 1) for _ in range(2000)) if took > 0.02]
        redis_server.resume()
        figures.add("breaker: a call while Redis hangs, once per cool-down", wanted="<= 0.25 s", measured=max(slow))

        assert len(slow) == 1
        assert max(slow) <= 0.25

    def test_a_killed_redis_costs_next_to_nothing_and_counts_come_back(
        self, troubled: CircuitBreaker, redis_server: EmbeddedRedis, figures: Figures
    ) -> None:
        succeed(troubled)
        redis_server.kill()
        time.sleep(0.26)
        worst = worst_of(lambda: succeed(troubled), 50)
        fail(troubled, 3)
        redis_server.start()
        figures.add("breaker: a call while Redis is dead", wanted="<= 0.25 s", measured=worst)

        assert worst <= 0.25
        wait_until(lambda: succeed(troubled) and failures_in(redis_server) == 3, 5, "the counts in Redis")

    def test_a_restart_that_forgets_everything_is_a_new_beginning(
        self, troubled: CircuitBreaker, redis_server: EmbeddedRedis
    ) -> None:
        fail(troubled, 10)
        assert isinstance(troubled.admit(), Refusal)
        redis_server.restart()

        wait_until(lambda: succeed(troubled), 5, "a permit")
        assert fail(troubled, 30) <= 10

    def test_a_full_redis_leaves_the_decision_to_the_process(
        self, troubled: CircuitBreaker, redis_server: EmbeddedRedis
    ) -> None:
        succeed(troubled)
        with redis_server.client() as client:
            client.config_set("maxmemory", "1mb")
            assert fail(troubled, 30) == 9  # and a success before
            client.config_set("maxmemory", "0")

        wait_until(lambda: not succeed(troubled) and has_tripped(redis_server), 5, "the trip in Redis")

    def test_a_replica_that_takes_no_writes_does_too(
        self, troubled: CircuitBreaker, redis_server: EmbeddedRedis
    ) -> None:
        succeed(troubled)
        with redis_server.client() as client:
            client.replicaof("127.0.0.1", "1")
            assert fail(troubled, 30) == 9
            client.replicaof("NO", "ONE")

        wait_until(lambda: not succeed(troubled) and has_tripped(redis_server), 5, "the trip in Redis")

    def test_lost_scripts_are_no_trouble(self, breaker: CircuitBreaker, resilience_redis: EmbeddedRedis) -> None:
        fail(breaker, 5)
        with resilience_redis.client() as client:
            client.script_flush()

        assert fail(breaker, 20) == 5


class TestFork:
    def test_a_child_shares_neither_counts_nor_views(self, resilience_redis: EmbeddedRedis) -> None:
        breaker = CircuitBreaker("pay", BreakerPolicy(), redis_url=resilience_redis.url)
        succeed(breaker, 5)
        pid = os.fork()
        if pid == 0:
            succeed(breaker, 3)
            breaker.flush()
            os._exit(0)
        os.waitpid(pid, 0)
        breaker.flush()

        assert breaker.snapshot().calls == 8

    def test_a_child_is_protected_after_use_in_the_parent(self, resilience_redis: EmbeddedRedis) -> None:
        breaker = CircuitBreaker("pay", BreakerPolicy(), redis_url=resilience_redis.url)
        succeed(breaker)
        pid = os.fork()
        if pid == 0:
            os._exit(fail(breaker, 50))
        _, status = os.waitpid(pid, 0)

        assert os.waitstatus_to_exitcode(status) in (10, 11)
        wait_until(lambda: isinstance(breaker.admit(), Refusal), 1, "the trip in the parent")

    def test_a_fork_while_a_thread_holds_the_lock_is_no_deadlock(self, resilience_redis: EmbeddedRedis) -> None:
        breaker = CircuitBreaker("pay", BreakerPolicy(), redis_url=resilience_redis.url)
        with breaker._link._lock:
            pid = os.fork()
            if pid == 0:
                os._exit(succeed(breaker))
        _, status = os.waitpid(pid, 0)

        assert os.waitstatus_to_exitcode(status) == 1


class TestBounds:
    def test_the_least_recently_used_are_forgotten(self, store: UnreliableStore, clock: FakeClock) -> None:
        breakers = Breakers(store, clock, Classifier.default(), default=BreakerPolicy(), policies={}, max_breakers=20)
        move_with(breakers.get("kept")).force_open(who="ann", why="x")
        for n in range(50):
            clock.move(1)
            succeed(move_with(breakers.get(f"shop-{n}")))
        left = names(store)

        assert len(left) == 20
        assert "shop-49" in left
        assert "kept" in left
        assert "shop-0" not in left
        assert store.command("EXISTS", *breaker_keys(store, "shop-0")) == 0
        assert len(breakers._known) == 20

    def test_one_used_since_it_was_looked_at_is_kept(self, store: UnreliableStore) -> None:
        for name in ("a", "b"):
            succeed(CircuitBreaker(name, store=store, clock=SYSTEM_CLOCK))
        keys = [index_key(store), *breaker_keys(store, "a")]

        assert store.run("breaker_forget", keys, [1, "a", 5]) == 0
        assert prune(store, 1) == 1
        assert names(store) == ["b"]

    def test_every_key_ends_or_is_bounded(self, breaker: CircuitBreaker, resilience_redis: EmbeddedRedis) -> None:
        fail(breaker, 10)
        breaker.clock.move(11)  # type: ignore[attr-defined]  # a FakeClock
        breaker.admit()
        with resilience_redis.client(decode_responses=True) as client:
            endless = {key for key in client.keys("*") if client.ttl(key) < 0}

        assert endless == {"resilience:{breakers}:index", "resilience:{breakers}:events"}


def test_many_threads_on_one_breaker_lose_no_count(resilience_redis: EmbeddedRedis) -> None:
    breaker = CircuitBreaker("pay", BreakerPolicy(minimum_calls=1_000_000), redis_url=resilience_redis.url)

    def work() -> None:
        for n in range(2000):
            if n % 100 == 99:
                fail(breaker)
            else:
                breaker.call(int)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    breaker.flush()

    assert (breaker.snapshot().calls, breaker.snapshot().failures) == (16_000, 160)
