"""Shared limits on a real Redis: rates, bulkheads and retry budgets hold whatever the order of those who ask."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from celery_resilience import limits as limits_module
from celery_resilience.clock import SYSTEM_CLOCK
from celery_resilience.limits import ADMITTED, Answer, Limits
from celery_resilience.rate import Rate, read_rate
from celery_resilience.redis_store import RedisStore
from celery_resilience.schedule import Schedule
from celery_resilience.testing import EmbeddedRedis
from celery_resilience.transport.envelope import Envelope
from tests.support.breakers import UnreliableStore
from tests.support.proof import size
from tests.support.waiting import wait_until

ON_ONE_SERVER = settings(
    max_examples=size(40, 400), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
_names = (f"n{number}" for number in range(10**9))


@pytest.fixture
def store(resilience_redis: EmbeddedRedis) -> Iterator[RedisStore]:
    store = RedisStore(resilience_redis.url, timeout_seconds=2)
    yield store
    store.close()


@pytest.fixture
def limits(store: RedisStore) -> Limits:
    return Limits(store)


@pytest.fixture
def client(resilience_redis: EmbeddedRedis) -> Iterator[redis.Redis]:
    with resilience_redis.client() as client:
        yield client


@pytest.fixture
def short_lease(monkeypatch: pytest.MonkeyPatch) -> float:
    monkeypatch.setattr(limits_module, "LEASE_SECONDS", 0.3)
    return 0.3


class Server:
    """The time of Redis, which decides; waits are counted from the moment at which an answer was given."""

    def __init__(self, client: redis.Redis) -> None:
        self.client = client

    def now(self) -> float:
        seconds, micros = self.client.time()
        return float(seconds) + float(micros) / 1e6


def most_in_a_window(moments: list[float], seconds: float) -> int:
    """Give the largest number of moments in any window of that length."""
    ordered, most, first = sorted(moments), 0, 0
    for last, moment in enumerate(ordered):
        while moment - ordered[first] >= seconds:
            first += 1
        most = max(most, last - first + 1)
    return most


class TestRate:
    def test_the_first_call_passes_and_the_others_get_slots_in_order(self, limits: Limits) -> None:
        answers = [limits.rate("r", read_rate("rate", "1/s")) for _ in range(5)]

        assert all(answer.is_admitted for answer in answers)
        assert [answer.wait for answer in answers] == pytest.approx([0, 1, 2, 3, 4], abs=0.1)

    def test_a_burst_comes_at_once(self, limits: Limits) -> None:
        answers = [limits.rate("r", Rate(calls=1, seconds=1, burst=3)) for _ in range(5)]

        assert [answer.wait for answer in answers] == pytest.approx([0, 0, 0, 1, 2], abs=0.1)

    @ON_ONE_SERVER
    @given(calls=st.integers(1, 1000), burst=st.integers(1, 20), asks=st.integers(1, 60))
    def test_no_window_ever_holds_more_than_rate_and_burst(
        self, limits: Limits, client: redis.Redis, calls: int, burst: int, asks: int
    ) -> None:
        rate, name, server = Rate(calls=calls, seconds=1, burst=burst), next(_names), Server(client)
        bounds = []
        for _ in range(asks):
            before = server.now()
            wait = limits.rate(name, rate).wait
            bounds.append((before + wait, server.now() + wait))  # the slot lies between the two

        # the k-th slot after another is at least k - burst intervals later, so no window holds more than its share
        for i, (earliest, _) in enumerate(bounds):
            for k in range(burst, asks - i):
                assert bounds[i + k][1] - earliest >= (k - burst + 1) * rate.interval_seconds - 0.001
        waits = [answer for answer, _ in bounds]
        assert all(later >= sooner - 0.05 for sooner, later in itertools.pairwise(waits))

    def test_many_who_ask_at_once_get_slots_of_their_own(self, limits: Limits, client: redis.Redis) -> None:
        rate, server = read_rate("rate", "100/s"), Server(client)

        def ask(_: int) -> float:
            before = server.now()
            return before + limits.rate("r", rate).wait

        with ThreadPoolExecutor(8) as pool:
            slots = sorted(pool.map(ask, range(300)))

        assert most_in_a_window(slots, 1.0) <= 105
        assert slots[-1] - slots[0] >= 2.9

    def test_a_slot_beyond_the_longest_wait_is_neither_given_nor_reserved(self, limits: Limits) -> None:
        rate = read_rate("rate", "1/m")
        limits.rate("r", rate)
        refused = [limits.rate("r", rate, longest_wait=10) for _ in range(3)]

        assert [answer.is_admitted for answer in refused] == [False] * 3
        assert all(answer.wait == pytest.approx(60, abs=0.5) for answer in refused)  # nothing was added by asking

    @pytest.mark.parametrize("burst", [1, 10])
    def test_a_hold_lets_nobody_through_whatever_the_burst(self, limits: Limits, burst: int) -> None:
        rate = Rate(calls=1, seconds=1, burst=burst)
        limits.hold("r", rate, 5.0)

        assert limits.rate("r", rate).wait == pytest.approx(5.0, abs=0.1)

    def test_a_shorter_hold_does_not_end_a_longer_one(self, limits: Limits) -> None:
        rate = read_rate("rate", "100/s")
        limits.hold("r", rate, 60.0)
        limits.hold("r", rate, 1.0)

        assert limits.rate("r", rate).wait == pytest.approx(60.0, abs=0.1)

    def test_names_do_not_see_each_other(self, limits: Limits) -> None:
        limits.hold("a", read_rate("rate", "1/s"), 60.0)

        assert limits.rate("b", read_rate("rate", "1/s")) == ADMITTED

    def test_a_rate_is_forgotten_when_it_lies_in_the_past(self, limits: Limits, client: redis.Redis) -> None:
        limits.rate("r", read_rate("rate", "1/m"))

        assert 60_000 < client.pttl("resilience:{limits}:rate:r") <= 61_100


class TestBulkhead:
    def test_it_has_so_many_places_and_no_more(self, limits: Limits) -> None:
        answers = [limits.enter("b", 3, f"t{n}") for n in range(5)]

        assert [answer.is_admitted for answer in answers] == [True, True, True, False, False]
        assert 29 < answers[3].wait <= 30

    def test_a_place_given_back_is_free(self, limits: Limits) -> None:
        limits.enter("b", 1, "first")
        assert not limits.enter("b", 1, "second").is_admitted
        limits.leave("b", "first")

        assert limits.enter("b", 1, "second").is_admitted

    def test_who_has_a_place_may_ask_again(self, limits: Limits) -> None:
        assert limits.enter("b", 1, "t").is_admitted
        assert limits.enter("b", 1, "t").is_admitted
        limits.leave("b", "t")

        assert limits.enter("b", 1, "other").is_admitted

    def test_leaving_what_one_never_had_frees_nothing(self, limits: Limits) -> None:
        limits.enter("b", 1, "t")
        limits.leave("b", "stranger")

        assert not limits.enter("b", 1, "other").is_admitted

    def test_a_lease_that_nobody_renews_frees_its_place(self, limits: Limits, short_lease: float) -> None:
        limits.enter("b", 1, "dead")
        began = SYSTEM_CLOCK.monotonic()
        wait_until(lambda: limits.enter("b", 1, "next").is_admitted, 5, "the place of the dead")

        assert SYSTEM_CLOCK.monotonic() - began >= short_lease - 0.05

    def test_a_renewed_lease_keeps_its_place(self, limits: Limits, short_lease: float) -> None:
        limits.enter("b", 2, "alive")
        limits.enter("b", 2, "dead")
        over = SYSTEM_CLOCK.monotonic() + 4 * short_lease
        kept = []
        while SYSTEM_CLOCK.monotonic() < over:
            kept.append(limits.renew("b", ["alive"]))
            SYSTEM_CLOCK.sleep(short_lease / 6)

        assert set(kept) == {1}
        assert limits.enter("b", 2, "next").is_admitted  # that of the dead
        assert not limits.enter("b", 2, "another").is_admitted

    def test_a_lost_place_is_not_taken_back_by_renewing(self, limits: Limits) -> None:
        limits.enter("b", 1, "t")

        assert limits.renew("b", ["t", "stranger"]) == 1
        assert limits.enter("b", 1, "stranger").is_admitted is False

    def test_a_place_that_was_left_is_not_taken_back_by_renewing_though_it_was_the_last(self, limits: Limits) -> None:
        limits.enter("b", 1, "t")
        limits.leave("b", "t")

        assert limits.renew("b", ["t"]) == 0  # its parent has not heard yet that the body has ended
        assert limits.enter("b", 1, "next").is_admitted

    def test_who_runs_has_his_place_again_after_redis_lost_its_data(self, limits: Limits, client: redis.Redis) -> None:
        limits.enter("b", 1, "t")
        client.flushdb()

        assert limits.renew("b", ["t"]) == 1
        assert not limits.enter("b", 1, "next").is_admitted

    def test_places_that_were_left_after_a_loss_stay_free(self, limits: Limits, client: redis.Redis) -> None:
        limits.enter("b", 1, "t")
        client.flushdb()
        limits.renew("b", ["t"])
        limits.leave("b", "t")

        assert limits.renew("b", ["t"]) == 0
        assert limits.enter("b", 1, "next").is_admitted

    def test_threads_that_race_never_hold_more_places_than_there_are(self, limits: Limits) -> None:
        lock, inside, most, done = threading.Lock(), 0, 0, 0

        def is_in(token: str) -> bool:
            return limits.enter("b", 3, token).is_admitted

        def work(worker: int) -> None:
            nonlocal inside, most, done
            for n in range(size(20, 200)):
                token = f"{worker}-{n}"
                wait_until(partial(is_in, token), 20, "a place")
                with lock:
                    inside += 1
                    most = max(most, inside)
                    inside_now = inside
                assert inside_now <= 3
                with lock:
                    inside -= 1
                    done += 1
                limits.leave("b", token)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))

        assert most <= 3
        assert done == 8 * size(20, 200)

    def test_its_key_ends_a_minute_after_the_last_lease(self, limits: Limits, client: redis.Redis) -> None:
        limits.enter("b", 1, "t")

        assert 30 < client.ttl("resilience:{limits}:bulkhead:b") <= 90


class TestBudget:
    def spend(self, limits: Limits, times: int = 1, cost: float = 1.0, successes: int = 0) -> list[Answer]:
        return [limits.spend("p", cost, successes) for _ in range(times)]

    def test_it_begins_with_ten_seconds_worth(self, limits: Limits) -> None:
        answers = self.spend(limits, 120)

        assert 100 <= answers.count(ADMITTED) <= 105

    def test_a_storm_stands_in_line(self, limits: Limits) -> None:
        """Each retry beyond the budget has a turn of its own, a tenth of a second after the last one."""
        self.spend(limits, 100)
        answers = self.spend(limits, 100)
        waits = [answer.wait for answer in answers if answer.wait]

        assert all(answer.is_admitted for answer in answers)
        assert len(waits) >= 90
        assert waits == sorted(waits)
        assert 8.5 < waits[-1] <= 10.1

    def test_it_refills_by_time(self, limits: Limits) -> None:
        self.spend(limits, 100)
        self.spend(limits, 5)
        wait_until(lambda: client_tokens(limits) >= 1.0, 5, "tokens by time")

        assert self.spend(limits) == [ADMITTED]

    def test_a_line_that_is_full_takes_nothing(self, limits: Limits) -> None:
        """No two retries ever have the same turn: who finds a minute's worth in line asks again, and is not counted."""
        self.spend(limits, 1, cost=690)
        answers = self.spend(limits, 200)
        turns = [answer.wait for answer in answers if answer.is_admitted]

        assert 8 <= len(turns) <= 20
        assert turns == sorted(turns)
        assert turns[-1] <= 60.0
        assert {answer.wait > 0 for answer in answers if not answer.is_admitted} == {True}

    def test_who_cannot_wait_spends_nothing_in_advance(self, limits: Limits) -> None:
        self.spend(limits, 100)
        for _ in range(50):
            limits.spend("p", 1.0, 0, longest_wait=0.0)

        assert client_tokens(limits) > -2

    def test_it_refills_by_successes(self, limits: Limits) -> None:
        def spend(cost: float, successes: int) -> bool:
            return limits.spend("p", cost, successes, share=0.2, per_second=0.001, longest_wait=1e9) == ADMITTED

        assert spend(10, 0)
        assert not spend(1, 4)  # 0.8 of a token
        assert spend(1, 11)  # 2.2 more, of which 0.2 were spent in advance
        assert spend(1, 0)
        assert not spend(1, 0)

    def test_it_never_holds_more_than_ten_seconds_worth(self, limits: Limits) -> None:
        self.spend(limits, 1, successes=1_000_000)

        assert 100 <= 1 + self.spend(limits, 120).count(ADMITTED) <= 105

    def test_a_dear_retry_takes_more(self, limits: Limits) -> None:
        assert 50 <= self.spend(limits, 60, cost=2.0).count(ADMITTED) <= 53


def client_tokens(limits: Limits) -> float:
    """Work out what a budget holds by now."""
    tokens, at = limits._store.command("HMGET", limits._key("budget", "p"), "tokens", "at")
    return float(tokens) + (SYSTEM_CLOCK.time() - float(at) / 1000) * 10.0


class TestParked:
    """What is parked for one thing, and woken by it."""

    @pytest.fixture
    def schedule(self, store: RedisStore) -> Schedule:
        return Schedule(store, SYSTEM_CLOCK, broker="test", shared=True)

    def park(self, schedule: Schedule, name: str, delay: float = 3600.0, waits_for: str = "payments") -> None:
        envelope = Envelope(b"x", "application/json", "utf-8", {"id": name}, {"priority": 0}, "", "q")
        assert schedule.add_park(envelope, "q", name, 2, delay, waits_for)

    def test_they_are_due_within_a_second_of_being_woken(self, schedule: Schedule) -> None:
        for n in range(20):
            self.park(schedule, f"l{n}")
        self.park(schedule, "other", waits_for="mail")

        assert schedule.wake("payments") == 20
        wait_until(lambda: len(schedule.due(100).places) == 20, 3, "all that were woken")
        assert schedule.wake("payments") == 0

    def test_more_than_one_batch_is_woken(self, schedule: Schedule, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("celery_resilience.schedule.WAKE_AT_ONCE", 10)
        for n in range(35):
            self.park(schedule, f"l{n}")

        assert schedule.wake("payments") == 35

    def test_waking_never_makes_one_later(self, schedule: Schedule) -> None:
        self.park(schedule, "soon", delay=0.05)
        schedule.wake("payments", spread_seconds=3600)

        wait_until(lambda: schedule.due(10).places, 2, "the one that was due anyway")

    def test_what_comes_due_by_itself_does_not_pile_up(self, schedule: Schedule, client: redis.Redis) -> None:
        for n in range(50):
            self.park(schedule, f"l{n}", delay=0.0, waits_for="rate pay")
            SYSTEM_CLOCK.sleep(0.001)

        assert client.zcard("resilience:{schedule:test}:parked:rate pay") <= 5

    def test_parked_messages_come_to_the_front_and_retries_to_the_end(
        self, schedule: Schedule, client: redis.Redis
    ) -> None:
        client.lpush("q", "waiting")
        self.park(schedule, "parked", delay=0)
        envelope = Envelope(b"x", "application/json", "utf-8", {"id": "retried"}, {"priority": 0}, "", "q")
        schedule.add_attempt(envelope, "q", "retried", 2, 0)
        schedule.release("q", schedule.due(10).places)
        order = [client.rpop("q") or b"" for _ in range(3)]

        assert [b"parked" in order[0], order[1], b"retried" in order[2]] == [True, b"waiting", True]


class TestWithoutTheStore:
    """A limit that cannot be asked admits: it must not stop the work."""

    @pytest.fixture
    def lost(self, resilience_redis: EmbeddedRedis) -> Iterator[Limits]:
        store = UnreliableStore(resilience_redis.url)
        store.lost = "before"
        yield Limits(store)
        store.close()

    def test_everything_is_admitted_and_told(self, lost: Limits, caplog: pytest.LogCaptureFixture) -> None:
        rate = read_rate("rate", "1/d")
        lost.hold("r", rate, 60)

        assert lost.rate("r", rate) == lost.rate("r", rate) == ADMITTED
        assert lost.enter("b", 1, "a") == lost.enter("b", 1, "b") == ADMITTED
        assert lost.spend("p", 1e6, 0) == ADMITTED
        assert "resilience-limit-unasked" in caplog.text
