"""Blocks and calls of one breaker within each other, and blocks whose ends lie in different threads or contexts."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import pytest

from celery_resilience import BreakerPolicy
from celery_resilience.breaker import CircuitBreaker, Refusal
from celery_resilience.errors import BreakerOpenError, PermanentError
from celery_resilience.redis_store import RedisStore
from celery_resilience.testing import EmbeddedRedis, FakeClock
from tests.support.breakers import fail, move_with

Make = Callable[..., CircuitBreaker]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["redis", "local"])
def make(request: pytest.FixtureRequest, clock: FakeClock) -> Iterator[Make]:
    stores: list[RedisStore] = []

    def build(**policy: Any) -> CircuitBreaker:
        rules = BreakerPolicy(
            **{"failure_rate": None, "consecutive_failures": 1, "successes_to_close": 1, "ramp_seconds": 0, **policy}
        )
        if request.param == "local":
            return CircuitBreaker("pay", rules, clock=clock)
        server: EmbeddedRedis = request.getfixturevalue("resilience_redis")
        stores.append(RedisStore(server.url, timeout_seconds=2, clock=clock))
        return move_with(CircuitBreaker("pay", rules, store=stores[-1], clock=clock))

    yield build
    for store in stores:
        store.close()


@pytest.fixture
def half_open(make: Make, clock: FakeClock) -> CircuitBreaker:
    """A breaker whose next call is its only probe."""
    breaker = make(open_seconds=10)
    fail(breaker)
    clock.move(11)
    return breaker


def state(breaker: CircuitBreaker) -> str:
    return breaker.snapshot().state


class TestWithin:
    def test_a_block_within_a_probe_is_part_of_it(self, half_open: CircuitBreaker) -> None:
        with half_open as outer, half_open as inner, half_open:
            assert (outer.is_probe, inner.is_probe) == (True, True)
            assert half_open.snapshot().probes == 1

        assert state(half_open) == "closed"

    def test_a_call_within_a_probe_is_part_of_it(self, half_open: CircuitBreaker) -> None:
        assert half_open.call(lambda: half_open.call(half_open(lambda: "paid"))) == "paid"
        assert state(half_open) == "closed"

    def test_so_is_a_coroutine(self, half_open: CircuitBreaker) -> None:
        @half_open
        async def pay() -> str:
            async with half_open:
                return "paid"

        async def body() -> list[str]:
            return await asyncio.gather(half_open.call(pay), asyncio.sleep(0, "slept"))

        assert asyncio.run(body()) == ["paid", "slept"]
        assert state(half_open) == "closed"

    def test_coroutines_beside_each_other_are_not(self, half_open: CircuitBreaker) -> None:
        async def pay() -> None:
            await asyncio.sleep(0)

        async def body() -> list[Any]:
            calls = []
            for _ in range(4):
                with contextlib.suppress(BreakerOpenError):
                    calls.append(asyncio.ensure_future(half_open.call(pay)))
            return await asyncio.gather(*calls)

        assert len(asyncio.run(body())) == 1

    def test_nor_are_calls_of_another_thread(self, half_open: CircuitBreaker) -> None:
        with half_open, ThreadPoolExecutor(1) as pool:
            refused = pool.submit(half_open.enter).result(timeout=10)

        assert isinstance(refused, Refusal)

    def test_a_denial_elsewhere_does_not_shut_it_out(self, half_open: CircuitBreaker) -> None:
        with half_open:
            assert isinstance(half_open.admit(), Refusal)
            with half_open:
                pass

        assert state(half_open) == "closed"

    def test_a_failure_within_is_the_probes_though_somebody_catches_it(self, half_open: CircuitBreaker) -> None:
        with half_open:
            with contextlib.suppress(ConnectionError), half_open:
                raise ConnectionError("down")
            with pytest.raises(BreakerOpenError), half_open:
                pass

        assert state(half_open) == "open"

    def test_what_does_not_count_within_leaves_it_to_the_probe(self, half_open: CircuitBreaker) -> None:
        with half_open, contextlib.suppress(PermanentError), half_open:
            raise PermanentError("no such order")

        assert state(half_open) == "closed"

    def test_after_the_probe_calls_ask_for_themselves(self, half_open: CircuitBreaker) -> None:
        with contextlib.suppress(PermanentError), half_open:
            raise PermanentError("gives the permit back")
        first, second = half_open.enter(), copy_context().run(half_open.admit)

        assert not isinstance(first, Refusal)
        assert isinstance(second, Refusal)

    def test_a_probe_whose_lease_is_over_serves_nobody(self, make: Make, clock: FakeClock) -> None:
        breaker = make(open_seconds=10, probe_lease_seconds=5)
        fail(breaker)
        clock.move(11)
        with breaker:
            clock.move(6)
            other = breaker.admit()
            with pytest.raises(BreakerOpenError), breaker:
                pass

        assert not isinstance(other, Refusal)

    def test_who_was_let_through_by_the_ramp_is_let_through_within(self, make: Make, clock: FakeClock) -> None:
        breaker = make(open_seconds=10, ramp_seconds=100)
        fail(breaker)
        clock.move(11)
        breaker.call(int)
        clock.move(1.1)  # who called so long ago is let through
        with breaker:
            for _ in range(20):
                with breaker:
                    pass

        assert isinstance(next(one for one in iter(breaker.admit, None) if isinstance(one, Refusal)), Refusal)

    def test_an_override_ends_it(self, half_open: CircuitBreaker) -> None:
        with half_open:
            half_open.force_open(who="ann", why="enough")
            with pytest.raises(BreakerOpenError), half_open:
                pass

        assert state(half_open) == "forced open"


class TestAcrossContexts:
    def rows(self, breaker: CircuitBreaker, error: Exception | None = None) -> Iterator[int]:
        with breaker:
            yield 1
            if error is not None:
                raise error
            yield 2

    def test_failures_of_generators_count_whatever_context_advances_them(self, make: Make) -> None:
        breaker = make(consecutive_failures=3)
        for _ in range(2):
            stream = self.rows(breaker, ConnectionError("down"))
            copy_context().run(next, stream)
            with pytest.raises(ConnectionError):
                copy_context().run(next, stream)

        assert breaker.snapshot().failures == 2

    def test_a_probe_ends_in_another_thread(self, half_open: CircuitBreaker) -> None:
        stream = self.rows(half_open)
        next(stream)
        with ThreadPoolExecutor(1) as pool:
            assert pool.submit(list, stream).result(timeout=10) == [2]

        assert state(half_open) == "closed"

    def test_so_it_does_in_an_exit_stack(self, half_open: CircuitBreaker) -> None:
        def rows() -> Iterator[int]:
            with contextlib.ExitStack() as stack:
                stack.enter_context(half_open)
                yield 1

        stream = rows()
        next(stream)
        assert list(copy_context().run(list, stream)) == []
        assert state(half_open) == "closed"

    def test_a_generator_that_is_dropped_gives_its_probe_back(self, half_open: CircuitBreaker) -> None:
        stream = self.rows(half_open)
        copy_context().run(next, stream)
        del stream
        gc.collect()

        assert half_open.snapshot().probes == 0

    def test_nothing_of_a_block_is_kept_after_it(self, make: Make) -> None:
        class Row:
            pass

        def rows(row: Row) -> Iterator[int]:
            with breaker:
                yield id(row)

        breaker, row = make(), Row()
        gone = weakref.ref(row)
        stream = rows(row)
        next(stream)
        copy_context().run(list, stream)
        del stream, row
        gc.collect()

        assert gone() is None

    def test_blocks_that_end_out_of_order_keep_their_outcomes(self, make: Make) -> None:
        breaker = make(consecutive_failures=9)
        good, bad = self.rows(breaker), self.rows(breaker, ConnectionError("down"))
        next(good)
        next(bad)
        assert list(good) == [2]
        with pytest.raises(ConnectionError):
            next(bad)
        breaker.flush()

        assert (breaker.snapshot().calls, breaker.snapshot().failures) == (2, 1)

    def test_a_class_may_begin_in_one_method_and_end_in_another(self, half_open: CircuitBreaker) -> None:
        class Client:
            def __enter__(self) -> None:
                half_open.__enter__()

            def __exit__(self, *error: Any) -> None:
                half_open.__exit__(*error)

        with Client(), Client():
            pass

        assert state(half_open) == "closed"

    def test_an_end_without_a_beginning_does_nothing(self, half_open: CircuitBreaker) -> None:
        half_open.__exit__(None, None, None)

        assert state(half_open) == "open"
