"""What a breaker promises, on Redis and in one process alike; time is moved, not waited for."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from celery_resilience import BreakerPolicy, Classifier, FailureClass
from celery_resilience.breaker import CircuitBreaker, Permit, Refusal
from celery_resilience.errors import BreakerOpenError, ConfigurationError, PermanentError, RetryableError
from celery_resilience.redis_store import RedisStore
from celery_resilience.testing import EmbeddedRedis, FakeClock
from tests.support.breakers import fail, move_with, succeed

Make = Callable[..., CircuitBreaker]
STALE = 0.26


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["redis", "local"])
def make(request: pytest.FixtureRequest, clock: FakeClock) -> Iterator[Make]:
    """Make breakers by policy; on Redis, each as if in a process of its own."""
    stores: list[RedisStore] = []

    def build(name: str = "pay", **policy: Any) -> CircuitBreaker:
        if request.param == "local":
            return CircuitBreaker(name, BreakerPolicy(**policy), clock=clock)
        server: EmbeddedRedis = request.getfixturevalue("resilience_redis")
        stores.append(RedisStore(server.url, timeout_seconds=2, clock=clock))
        return move_with(CircuitBreaker(name, BreakerPolicy(**policy), store=stores[-1], clock=clock))

    yield build
    for store in stores:
        store.close()


def states(breaker: CircuitBreaker) -> list[tuple[str, str]]:
    return [(one.event, one.to_state) for one in reversed(breaker.history())]


def probe(breaker: CircuitBreaker) -> Permit:
    answer = breaker.admit()
    assert isinstance(answer, Permit)
    assert answer.is_probe
    return answer


def refusal(breaker: CircuitBreaker) -> Refusal:
    answer = breaker.admit()
    assert isinstance(answer, Refusal)
    return answer


class TestTripping:
    def test_enough_failures_in_enough_calls_trip(self, make: Make) -> None:
        breaker = make(minimum_calls=10, failure_rate=0.5)

        assert succeed(breaker, 5) == 5
        assert fail(breaker, 20) == 5
        assert breaker.snapshot().state == "open"
        assert refusal(breaker).reason == "5 of 10 calls failed"

    def test_too_few_calls_do_not(self, make: Make) -> None:
        breaker = make(minimum_calls=10)
        fail(breaker, 9)

        assert breaker.snapshot().state == "closed"
        assert breaker.snapshot().failures == 9

    def test_failures_in_a_row_trip_and_a_success_breaks_the_row(self, make: Make) -> None:
        breaker = make(failure_rate=None, consecutive_failures=3)
        fail(breaker, 2)
        succeed(breaker)
        fail(breaker, 2)

        assert breaker.snapshot().state == "closed"
        assert fail(breaker, 5) == 1

    def test_failures_that_left_the_window_do_not_count(self, make: Make, clock: FakeClock) -> None:
        breaker = make(window_seconds=10, minimum_calls=4)
        fail(breaker, 3)
        clock.move(11)

        assert fail(breaker, 3) == 3
        assert breaker.snapshot().calls == 3

    def test_a_window_of_calls_forgets_the_oldest_call(self, make: Make, clock: FakeClock) -> None:
        breaker = make(window_calls=4, minimum_calls=4, failure_rate=0.75)
        fail(breaker, 2)
        clock.move(3600)
        succeed(breaker, 3)
        fail(breaker, 2)

        assert breaker.snapshot().state == "closed"
        assert breaker.snapshot().calls == 4
        assert fail(breaker, 9) == 1

    def test_slow_calls_trip(self, make: Make, clock: FakeClock) -> None:
        breaker = make(minimum_calls=4, slow_call_seconds=1, slow_call_rate=0.5)
        succeed(breaker, 2)
        for _ in range(2):
            breaker.call(clock.move, 2.0)
        refused = refusal(breaker)

        assert refused.reason == "2 of 4 calls were slow"

    def test_what_the_policy_leaves_out_counts_neither_way(self, make: Make) -> None:
        breaker = make(minimum_calls=2)
        fail(breaker, 5, PermanentError("gone"))
        fail(breaker, 5, KeyboardInterrupt())  # type: ignore[arg-type]  # what a body may raise
        fail(breaker, 5, BreakerOpenError("other", 1.0))

        assert breaker.snapshot().calls == 0

    def test_the_policy_says_which_classes_count(self, make: Make) -> None:
        breaker = make(minimum_calls=2, failure_classes={"PERMANENT"})
        fail(breaker, 5, ConnectionError())

        assert fail(breaker, 5, PermanentError("gone")) == 2

    def test_all_processes_share_one_window(self, make: Make, request: pytest.FixtureRequest) -> None:
        if "local" in request.node.callspec.id:
            pytest.skip("a local breaker is alone")
        fleet = [make(minimum_calls=10) for _ in range(16)]

        assert sum(fail(one) for _ in range(5) for one in fleet) <= 16
        assert all(isinstance(one.admit(), Refusal) for one in fleet)


class TestOpen:
    def test_the_open_time_doubles_up_to_the_cap(self, make: Make, clock: FakeClock) -> None:
        breaker = make(failure_rate=None, consecutive_failures=1, open_seconds=10, open_cap_seconds=35)
        waits = []
        for _ in range(4):
            fail(breaker)
            waits.append(refusal(breaker).retry_after)
            clock.move(waits[-1])

        assert waits == pytest.approx([10, 20, 35, 35], abs=0.01)

    def test_the_open_time_is_jittered(self, make: Make, clock: FakeClock) -> None:
        clock.chance = 1.0
        breaker = make(failure_rate=None, consecutive_failures=1, open_seconds=10)
        fail(breaker)

        assert refusal(breaker).retry_after == pytest.approx(11, abs=0.01)

    def test_it_follows_what_the_dependency_asked_for(self, make: Make) -> None:
        breaker = make(failure_rate=None, consecutive_failures=1, open_seconds=10)
        fail(breaker, 1, RetryableError(retry_after=42))

        assert refusal(breaker).retry_after == pytest.approx(42, abs=0.01)

    def test_closing_forgets_the_growth(self, make: Make, clock: FakeClock) -> None:
        breaker = make(failure_rate=None, consecutive_failures=1, open_seconds=10, successes_to_close=1)
        for _ in range(3):
            fail(breaker)
            clock.move(refusal(breaker).retry_after)
        probe(breaker).success()
        fail(breaker)

        assert refusal(breaker).retry_after == pytest.approx(10, abs=0.01)

    def test_a_refusal_is_an_error_the_classifier_honours(self, make: Make) -> None:
        breaker = make(failure_rate=None, consecutive_failures=1, open_seconds=10)
        fail(breaker)
        with pytest.raises(BreakerOpenError, match="'pay' refuses calls") as caught:
            breaker.call(print)
        failure = Classifier.default().classify(caught.value)

        assert failure.failure_class is FailureClass.TRANSIENT
        assert failure.retry_after == pytest.approx(10, abs=0.01)

    def test_results_of_an_older_generation_are_ignored(self, make: Make, clock: FakeClock) -> None:
        breaker = make(failure_rate=None, consecutive_failures=1, open_seconds=10, successes_to_close=1)
        late = [breaker.admit() for _ in range(3)]
        fail(breaker)
        clock.move(10)
        probe(breaker).success()
        for permit in late:
            assert isinstance(permit, Permit)
            permit.failure(ConnectionError())

        assert breaker.snapshot().state == "closed"
        assert breaker.snapshot().failures == 0


class TestHalfOpen:
    @pytest.fixture
    def breaker(self, make: Make, clock: FakeClock) -> CircuitBreaker:
        breaker = make(
            failure_rate=None, consecutive_failures=1, open_seconds=10, half_open_permits=2, probe_lease_seconds=30
        )
        fail(breaker)
        clock.move(10)
        return breaker

    def test_only_so_many_probes_pass(self, breaker: CircuitBreaker) -> None:
        answers = [breaker.admit() for _ in range(8)]

        assert sum(isinstance(one, Permit) for one in answers) == 2
        assert refusal(breaker).state == "half-open"

    def test_successes_close_it(self, breaker: CircuitBreaker) -> None:
        probe(breaker).success()
        assert breaker.snapshot().state == "half-open"
        probe(breaker).success()

        assert breaker.snapshot().state == "closed"
        assert states(breaker) == [("opened", "open"), ("half-opened", "half-open"), ("closed", "closed")]

    def test_one_failure_opens_it_again(self, breaker: CircuitBreaker) -> None:
        first, second = probe(breaker), probe(breaker)
        first.failure(ConnectionError())
        second.success()

        assert refusal(breaker).reason == "a probe failed"
        assert breaker.snapshot().times_opened == 2

    def test_a_probe_of_an_older_half_open_time_says_nothing_about_this_one(
        self, breaker: CircuitBreaker, clock: FakeClock
    ) -> None:
        old = probe(breaker)
        probe(breaker).failure(ConnectionError())
        clock.move(20)
        current = probe(breaker)
        old.failure(ConnectionError())

        assert breaker.snapshot().state == "half-open"
        current.success()
        probe(breaker).success()
        assert breaker.snapshot().state == "closed"

    def test_a_permit_that_is_cancelled_is_free_again(self, breaker: CircuitBreaker) -> None:
        first, _ = probe(breaker), probe(breaker)
        first.cancel()

        assert probe(breaker).is_probe

    def test_an_outcome_that_does_not_count_returns_the_permit(self, breaker: CircuitBreaker) -> None:
        first, _ = probe(breaker), probe(breaker)
        first.failure(PermanentError("no such order"))

        assert probe(breaker).is_probe
        assert breaker.snapshot().probe_successes == 0

    def test_a_lost_prober_frees_its_permit_and_denials_extend_nothing(
        self, breaker: CircuitBreaker, clock: FakeClock
    ) -> None:
        probe(breaker)
        probe(breaker)
        for _ in range(290):
            clock.move(0.1)
            assert isinstance(breaker.admit(), Refusal)
        clock.move(1.1)

        assert probe(breaker).is_probe

    def test_a_permit_counts_once(self, breaker: CircuitBreaker) -> None:
        permit = probe(breaker)
        permit.success()
        permit.success()
        permit.failure(ConnectionError())

        assert breaker.snapshot().probe_successes == 1
        assert breaker.snapshot().state == "half-open"

    def test_a_slow_probe_is_no_proof(self, make: Make, clock: FakeClock) -> None:
        breaker = make("slow", minimum_calls=1, slow_call_seconds=1, slow_call_rate=1.0, open_seconds=10)
        breaker.call(clock.move, 2.0)
        clock.move(refusal(breaker).retry_after)
        permit = probe(breaker)
        clock.move(2)
        permit.success()

        assert refusal(breaker).reason == "a probe was slow"

    def test_load_ramps_up_after_closing(self, make: Make, clock: FakeClock) -> None:
        breaker = make(
            "ramp", failure_rate=None, consecutive_failures=1, open_seconds=10, successes_to_close=1, ramp_seconds=10
        )
        fail(breaker)
        clock.move(10)
        probe(breaker).success()
        clock.chance = 0.5
        admitted = []
        for _ in range(10):
            admitted.append(sum(isinstance(breaker.admit(), Permit) for _ in range(10)))
            clock.move(1.01)

        assert admitted == [1] * 5 + [10] * 5
        clock.chance = 0.99
        assert isinstance(breaker.admit(), Permit)

    @pytest.mark.parametrize("pause", [1.0, 2.5, 30.0])
    def test_who_calls_once_a_second_or_less_meets_no_ramp(self, make: Make, clock: FakeClock, pause: float) -> None:
        breaker = make(
            "calm", failure_rate=None, consecutive_failures=1, open_seconds=10, successes_to_close=1, ramp_seconds=60
        )
        fail(breaker)
        clock.move(10)
        probe(breaker).success()
        clock.chance = 0.999  # the most unlucky of all

        for _ in range(20):
            assert isinstance(breaker.admit(), Permit)
            clock.move(pause)

    def test_by_default_load_ramps_up_within_ten_seconds(self, make: Make, clock: FakeClock) -> None:
        breaker = make("default", failure_rate=None, consecutive_failures=1, successes_to_close=1)
        fail(breaker)
        clock.move(refusal(breaker).retry_after)
        probe(breaker).success()
        clock.chance = 0.5
        admitted = [isinstance(breaker.admit(), Permit) for _ in range(10)]
        refused = refusal(breaker)
        clock.move(10)

        assert sum(admitted) == 1
        assert (refused.reason, refused.state) == ("load is ramping up", "closed")
        assert 0 < refused.retry_after <= 10
        assert all(isinstance(breaker.admit(), Permit) for _ in range(10))


class TestOverrides:
    def test_forced_open_refuses_until_its_time_is_over(self, make: Make, clock: FakeClock) -> None:
        breaker = make()
        breaker.force_open(who="ann", why="migration", for_seconds=60)
        refused = refusal(breaker)

        assert (refused.state, refused.reason) == ("forced open", "migration")
        assert refused.retry_after == pytest.approx(60, abs=0.01)
        assert (breaker.snapshot().override_who, breaker.snapshot().override_why) == ("ann", "migration")
        clock.move(60)
        assert succeed(breaker) == 1
        assert states(breaker) == [("forced", "forced open"), ("released", "closed")]

    @pytest.mark.parametrize(("method", "state"), [("force_closed", "forced closed"), ("disable", "disabled")])
    def test_forced_closed_and_disabled_let_all_pass_and_count(self, make: Make, method: str, state: str) -> None:
        breaker = make(minimum_calls=2)
        fail(breaker, 2)
        getattr(breaker, method)(who="ann", why="they say it works")

        assert fail(breaker, 50) == 50
        assert breaker.snapshot().state == state
        assert breaker.snapshot().failures == 50

    def test_reset_ends_it_and_starts_anew(self, make: Make) -> None:
        breaker = make(minimum_calls=2)
        fail(breaker, 2)
        breaker.force_open(who="ann", why="x")
        breaker.reset(who="bob", why="all is well")

        assert succeed(breaker) == 1
        assert breaker.snapshot().state == "closed"
        assert breaker.history()[0].who == "bob"

    def test_who_and_why_must_be_said(self, make: Make) -> None:
        with pytest.raises(ConfigurationError, match="why"):
            make().force_open(who="ann", why=" ")
        with pytest.raises(ConfigurationError, match="for_seconds"):
            make().force_open(who="ann", why="x", for_seconds=-1)

    def test_other_processes_see_it_within_a_quarter_second(
        self, make: Make, clock: FakeClock, request: pytest.FixtureRequest
    ) -> None:
        if "local" in request.node.callspec.id:
            pytest.skip("a local breaker is alone")
        one, other = make(), make()
        succeed(other)
        one.force_open(who="ann", why="x")
        clock.move(STALE)

        assert refusal(other).state == "forced open"
        one.reset(who="ann", why="x")
        clock.move(STALE)
        assert succeed(other) == 1


class TestWaysToCall:
    def test_a_call_gives_its_result_and_raises_its_error(self, make: Make) -> None:
        breaker = make()

        assert breaker.call(divmod, 7, 2) == (3, 1)
        with pytest.raises(ZeroDivisionError):
            breaker.call(divmod, 7, 0)

    def test_a_with_block_counts(self, make: Make) -> None:
        breaker = make(failure_rate=None, consecutive_failures=2)
        for _ in range(2):
            with pytest.raises(ConnectionError), breaker:
                raise ConnectionError
        with pytest.raises(BreakerOpenError), breaker:
            pytest.fail("was called")

    def test_blocks_of_two_breakers_nest(self, make: Make) -> None:
        outer, inner = make("outer", minimum_calls=1), make("inner", minimum_calls=1)

        def work() -> None:
            with outer:
                with inner:
                    pass
                raise ConnectionError

        with pytest.raises(ConnectionError):
            work()
        outer.flush()
        inner.flush()

        assert (outer.snapshot().state, inner.snapshot().state) == ("open", "closed")
        assert inner.snapshot().calls == 1

    def test_a_decorated_function_keeps_its_name(self, make: Make) -> None:
        breaker = make(failure_rate=None, consecutive_failures=1)

        @breaker
        def charge(amount: int) -> int:
            """Charge."""
            return 10 // amount

        assert charge(5) == 2
        assert (charge.__name__, charge.__doc__) == ("charge", "Charge.")

    def test_coroutines_are_judged_when_they_end(self, make: Make) -> None:
        breaker = make(failure_rate=None, consecutive_failures=2)

        @breaker
        async def charge(is_down: bool) -> str:
            await asyncio.sleep(0)
            if is_down:
                raise ConnectionError
            return "done"

        async def story() -> list[Any]:
            calls = (charge(False), charge(True), charge(True))
            return await asyncio.gather(*calls, return_exceptions=True)

        assert asyncio.run(story())[0] == "done"
        with pytest.raises(BreakerOpenError):
            asyncio.run(charge(False))

    def test_async_with_works_and_interleaves(self, make: Make) -> None:
        breaker = make(failure_rate=None, consecutive_failures=3)

        async def one(error: Exception | None) -> None:
            async with breaker:
                await asyncio.sleep(0)
                if error:
                    raise error

        async def story() -> None:
            await asyncio.gather(*(one(ConnectionError() if n % 2 else None) for n in range(6)), return_exceptions=True)

        asyncio.run(story())
        assert breaker.snapshot().failures == 3 or breaker.snapshot().state == "open"

    def test_a_cancelled_coroutine_is_no_failure(self, make: Make) -> None:
        breaker = make(failure_rate=None, consecutive_failures=1)

        async def story() -> None:
            task = asyncio.create_task(breaker.call(asyncio.sleep, 60))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        asyncio.run(story())
        assert breaker.snapshot().state == "closed"

    def test_a_generator_cannot_be_decorated(self, make: Make) -> None:
        def rows() -> Iterator[int]:
            yield 1

        with pytest.raises(ConfigurationError, match="with breaker"):
            make()(rows)


def test_each_transition_is_one_log_line(make: Make, clock: FakeClock, caplog: pytest.LogCaptureFixture) -> None:
    breaker = make(failure_rate=None, consecutive_failures=1, open_seconds=10, successes_to_close=1)
    with caplog.at_level(logging.INFO, "celery_resilience.breaker"):
        fail(breaker)
        clock.move(10)
        probe(breaker).success()

    told = [record.resilience["event"] for record in caplog.records]  # type: ignore[attr-defined]
    assert told == ["resilience-breaker-opened", "resilience-breaker-half-opened", "resilience-breaker-closed"]
