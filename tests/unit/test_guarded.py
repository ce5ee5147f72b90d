"""Guarded calls without Redis: retries in place within a budget, local breakers, and who may retry what."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from celery import Celery
from celery.exceptions import Ignore, SoftTimeLimitExceeded

from celery_resilience import NO_RETRY, BreakerPolicy, FailureClass, ResilientTask, RetryPolicy, guarded
from celery_resilience.errors import BreakerOpenError, ConfigurationError, LimitReachedError, RetryableError
from celery_resilience.limits import Answer
from celery_resilience.runtime import Runtime, runtime_of, use_runtime
from celery_resilience.testing import FakeClock

QUICK = RetryPolicy(max_attempts=3, strategy="fixed", base_seconds=0.2, jitter="none")
TRIPS = BreakerPolicy(consecutive_failures=2, open_seconds=10)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(chance=0.0)


@pytest.fixture
def app(clock: FakeClock) -> Celery:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.resilience_breakers = {"payments": TRIPS}
    use_runtime(app, Runtime(app, clock))
    return app


class Service:
    """Gives or raises what it was told, call by call; the last for all further ones."""

    def __init__(self, *answers: Any) -> None:
        self.answers = answers
        self.calls = 0

    def __call__(self) -> Any:
        answer = self.answers[min(self.calls, len(self.answers) - 1)]
        self.calls += 1
        if isinstance(answer, BaseException):
            raise answer
        if callable(answer):
            return answer()
        return answer


class Rates:
    """Limits that answer as they were told, and note what they were asked."""

    def __init__(self, *answers: Answer, is_storm: bool = False) -> None:
        self.answers = list(answers)
        self.is_storm = is_storm
        self.asked: list[tuple[str, float]] = []
        self.held: list[tuple[str, float]] = []
        self.spent: list[str] = []

    def rate(self, name: str, rate: Any, longest_wait: float) -> Answer:
        self.asked.append((name, longest_wait))
        return self.answers.pop(0) if self.answers else Answer(True)

    def hold(self, name: str, rate: Any, seconds: float) -> None:
        self.held.append((name, seconds))

    def spend(self, name: str, *_: Any, **__: Any) -> Answer:
        self.spent.append(name)
        return Answer(not self.is_storm, 0.1 if self.is_storm else 0.0)


def with_limits(app: Celery, limits: Rates) -> Rates:
    runtime_of(app).__dict__["limits"] = limits
    return limits


def down() -> Exception:
    return ConnectionError("down")


class TestRetriesInPlace:
    def test_a_failure_that_heals_is_tried_again_here(self, app: Celery, clock: FakeClock) -> None:
        service = Service(down(), down(), "paid")

        assert guarded(retry_policy=QUICK, app=app)(service)() == "paid"
        assert clock.slept == [0.2, 0.2]

    def test_the_last_error_is_raised_after_the_last_attempt(self, app: Celery, clock: FakeClock) -> None:
        service = Service(down())

        with pytest.raises(ConnectionError, match="down"):
            guarded(retry_policy=QUICK, app=app)(service)()
        assert service.calls == 3
        assert clock.slept == [0.2, 0.2]

    def test_without_a_policy_nothing_is_tried_again(self, app: Celery) -> None:
        service = Service(down())

        with pytest.raises(ConnectionError):
            guarded(breaker="payments", app=app)(service)()
        assert service.calls == 1

    def test_a_class_that_is_not_retried_ends_at_once(self, app: Celery) -> None:
        service = Service(ValueError("not so"))

        with pytest.raises(ValueError, match="not so"):
            guarded(retry_policy=QUICK, app=app)(service)()
        assert service.calls == 1

    def test_a_policy_goes_over_the_defaults_of_the_class(self, app: Celery, clock: FakeClock) -> None:
        service = Service(ValueError("not so"), ValueError("not so"), "paid")
        policy = {FailureClass.VALIDATION: RetryPolicy(max_attempts=3, jitter="none")}

        assert guarded(retry_policy=policy, app=app)(service)() == "paid"
        assert clock.slept == [1.0, 2.0]

    def test_a_delay_that_would_cross_the_budget_is_not_waited_for(self, app: Celery, clock: FakeClock) -> None:
        service = Service(down())
        policy = RetryPolicy(max_attempts=100, strategy="fixed", base_seconds=0.4, jitter="none")

        with pytest.raises(ConnectionError):
            guarded(retry_policy=policy, budget_seconds=1.0, app=app)(service)()
        assert clock.slept == [0.4, 0.4]

    def test_the_time_of_the_call_itself_counts(self, app: Celery, clock: FakeClock) -> None:
        def slow() -> None:
            clock.move(0.9)
            raise down()

        service = Service(slow)
        with pytest.raises(ConnectionError):
            guarded(retry_policy=QUICK, budget_seconds=1.0, app=app)(service)()
        assert service.calls == 1

    def test_a_hint_beyond_the_budget_raises_at_once(self, app: Celery, clock: FakeClock) -> None:
        service = Service(RetryableError("later", retry_after=60))

        with pytest.raises(RetryableError):
            guarded(retry_policy=QUICK, app=app)(service)()
        assert clock.slept == []

    @pytest.mark.parametrize("error", [SoftTimeLimitExceeded(), Ignore(), KeyboardInterrupt(), SystemExit(1)], ids=repr)
    def test_what_ends_the_task_is_not_tried_again(self, app: Celery, error: BaseException) -> None:
        service = Service(error)

        with pytest.raises(type(error)):
            guarded(retry_policy=QUICK, app=app)(service)()
        assert service.calls == 1

    def test_a_wrapped_time_limit_is_not_tried_again(self, app: Celery) -> None:
        def wrap() -> None:
            try:
                raise SoftTimeLimitExceeded
            except SoftTimeLimitExceeded as error:
                raise ConnectionError("cut off") from error

        service = Service(wrap)
        with pytest.raises(ConnectionError):
            guarded(retry_policy=QUICK, app=app)(service)()
        assert service.calls == 1

    def test_a_storm_is_not_fed(self, app: Celery) -> None:
        limits = with_limits(app, Rates(is_storm=True))
        service = Service(down())

        with pytest.raises(ConnectionError):
            guarded(breaker="payments", retry_policy=QUICK, app=app)(service)()
        assert service.calls == 1
        assert limits.spent == ["payments"]


class TestNesting:
    def test_what_an_inner_call_gave_up_no_outer_one_repeats(self, app: Celery) -> None:
        service = Service(down())
        call: Callable[[], Any] = service
        for _ in range(4):
            call = guarded(retry_policy=QUICK, app=app)(call)

        with pytest.raises(ConnectionError):
            call()
        assert service.calls == 3

    @pytest.mark.parametrize("how", ["cause", "context", "hidden"])
    def test_wrapping_does_not_hide_it(self, app: Celery, how: str) -> None:
        service = Service(down())
        inner = guarded(retry_policy=QUICK, app=app)(service)

        @guarded(retry_policy=QUICK, app=app)
        def outer() -> None:
            try:
                inner()
            except ConnectionError as error:
                if how == "cause":
                    raise TimeoutError("wrapped") from error
                if how == "hidden":
                    raise TimeoutError("wrapped") from None
                raise TimeoutError("wrapped")  # noqa: B904  # the case

        with pytest.raises(TimeoutError):
            outer()
        assert service.calls == 3

    def test_a_cause_raised_later_is_seen_too(self, app: Celery) -> None:
        service = Service(down())
        inner = guarded(retry_policy=QUICK, app=app)(service)

        @guarded(retry_policy=QUICK, app=app)
        def outer() -> None:
            problems = []
            try:
                inner()
            except ConnectionError as error:
                problems.append(error)
            raise TimeoutError("wrapped") from problems[0]  # no longer its context

        with pytest.raises(TimeoutError):
            outer()
        assert service.calls == 3

    def test_an_inner_call_without_a_policy_leaves_the_retries_to_the_outer_one(self, app: Celery) -> None:
        service = Service(down(), "paid")
        inner = guarded(breaker="payments", app=app)(service)

        assert guarded(retry_policy=QUICK, app=app)(inner)() == "paid"

    def test_no_retry_inside_is_a_word_too(self, app: Celery) -> None:
        service = Service(down())
        inner = guarded(retry_policy=NO_RETRY, app=app)(service)

        with pytest.raises(ConnectionError):
            guarded(retry_policy=QUICK, app=app)(inner)()
        assert service.calls == 1

    def test_an_exception_object_that_is_raised_anew_is_a_new_failure(self, app: Celery) -> None:
        service = Mock(side_effect=down())
        call = guarded(retry_policy=QUICK, app=app, name="mock")(service)

        for _ in range(2):
            with pytest.raises(ConnectionError):
                call()

        assert service.call_count == 6

    def test_the_call_in_an_except_block_has_its_own_retries(self, app: Celery) -> None:
        primary, backup = Service(down()), Service(down(), down(), "paid")
        first, second = (guarded(retry_policy=QUICK, app=app)(one) for one in (primary, backup))

        try:
            first()
        except ConnectionError:
            assert second() == "paid"

    def test_the_tasks_classifier_sees_what_it_always_saw(self, app: Celery) -> None:
        with pytest.raises(ConnectionError) as caught:
            guarded(retry_policy=QUICK, app=app)(Service(down()))()

        classifier = runtime_of(app).classifier
        assert classifier.classify(caught.value).failure_class is classifier.classify(down()).failure_class
        assert str(pickle.loads(pickle.dumps(caught.value))) == "down"


class TestBreaker:
    def test_failures_trip_it_and_then_calls_are_refused(self, app: Celery) -> None:
        service = Service(down())
        call = guarded(breaker="payments", app=app)(service)
        for _ in range(2):
            with pytest.raises(ConnectionError):
                call()

        with pytest.raises(BreakerOpenError) as refused:
            call()
        assert refused.value.name == "payments"
        assert service.calls == 2

    def test_successes_close_it_again(self, app: Celery, clock: FakeClock) -> None:
        call = guarded(breaker="payments", app=app)(Service(down(), down(), "paid"))
        for _ in range(2):
            with pytest.raises(ConnectionError):
                call()
        clock.move(60)

        assert [call() for _ in range(TRIPS.successes_to_close)] == ["paid", "paid"]
        assert runtime_of(app).breaker("payments").snapshot().state == "closed"

    def test_successes_fill_the_retry_budget_that_tasks_share(self, app: Celery) -> None:
        call = guarded(breaker="payments", app=app)(Service("paid"))

        for _ in range(2):
            call()

        assert runtime_of(app).take_successes("payments") == 2

    def test_a_refusal_after_a_failed_try_raises_the_failure(self, app: Celery) -> None:
        """The attempt was made; a refusal would have the task parked as if it had not been."""
        service = Service(down())
        policy = RetryPolicy(max_attempts=5, strategy="fixed", base_seconds=0.1, jitter="none")

        with pytest.raises(ConnectionError) as caught:
            guarded(breaker="payments", retry_policy=policy, app=app)(service)()
        assert service.calls == 2
        assert caught.value.__context__ is None

    def test_a_refusal_that_ends_within_the_budget_is_waited_for_and_costs_no_attempt(
        self, app: Celery, clock: FakeClock
    ) -> None:
        runtime_of(app).breaker("payments").force_open(who="ann", why="test", for_seconds=3)
        service = Service("paid")

        assert guarded(breaker="payments", retry_policy=NO_RETRY, app=app)(service)() == "paid"
        assert sum(clock.slept) == pytest.approx(3, abs=0.2)

    def test_a_refusal_beyond_the_budget_is_raised_at_once(self, app: Celery, clock: FakeClock) -> None:
        runtime_of(app).breaker("payments").force_open(who="ann", why="test", for_seconds=30)
        service = Service("paid")

        with pytest.raises(BreakerOpenError):
            guarded(breaker="payments", retry_policy=QUICK, app=app)(service)()
        assert (service.calls, clock.slept) == (0, [])

    @pytest.mark.parametrize("refusal", [BreakerOpenError("other", 60), LimitReachedError("rate x", 60)], ids=repr)
    def test_a_refusal_inside_the_call_does_not_count_against_it(self, app: Celery, refusal: Exception) -> None:
        call = guarded(breaker="payments", app=app)(Service(refusal))

        for _ in range(5):
            with pytest.raises(type(refusal)):
                call()

        assert runtime_of(app).breaker("payments").snapshot().state == "closed"

    def test_failures_of_a_class_that_does_not_count_do_not_trip_it(self, app: Celery) -> None:
        call = guarded(breaker="payments", app=app)(Service(ValueError("not so")))

        for _ in range(5):
            with pytest.raises(ValueError, match="not so"):
                call()

    def test_a_function_may_name_the_breaker_by_the_arguments(self, app: Celery) -> None:
        @guarded(breaker=lambda host, **_: host, app=app)
        def fetch(host: str, *, path: str) -> str:
            return host + path

        assert fetch("a.example", path="/") == "a.example/"
        assert runtime_of(app).breakers.names() == ["a.example"]

    def test_a_server_that_asks_for_rest_gets_it_from_all_callers(self, app: Celery) -> None:
        error = RetryableError("slow down", retry_after=60)
        error.failure_class = "RATE_LIMITED"
        limits = with_limits(app, Rates())

        with pytest.raises(RetryableError):
            guarded(breaker="payments", rate="10/s", name="api", app=app)(Service(error))()

        with pytest.raises(BreakerOpenError), guarded(breaker="payments", app=app):
            pass
        assert limits.held == [("call:api", 60)]


class TestRate:
    def test_a_reserved_slot_is_waited_for_and_not_asked_for_again(self, app: Celery, clock: FakeClock) -> None:
        limits = with_limits(app, Rates(Answer(True, 0.7)))

        assert guarded(rate="10/s", name="api", app=app)(Service("paid"))() == "paid"
        assert clock.slept == [0.7]
        assert limits.asked == [("call:api", 5.0)]

    def test_a_slot_beyond_the_budget_is_refused(self, app: Celery, clock: FakeClock) -> None:
        with_limits(app, Rates(Answer(False, 9.0)))
        service = Service("paid")

        with pytest.raises(LimitReachedError) as refused:
            guarded(rate="10/s", name="api", retry_policy=QUICK, app=app)(service)()
        assert (refused.value.name, refused.value.retry_after) == ("rate call:api", 9.0)
        assert (service.calls, clock.slept) == (0, [])

    def test_every_try_takes_a_slot(self, app: Celery) -> None:
        limits = with_limits(app, Rates())

        guarded(rate="10/s", retry_policy=QUICK, name="api", app=app)(Service(down(), "paid"))()

        assert limits.asked == [("call:api", 5.0), ("call:api", pytest.approx(4.8))]

    def test_the_name_is_that_of_the_function_unless_given(self, app: Celery) -> None:
        limits = with_limits(app, Rates())

        @guarded(rate="10/s", app=app)
        def fetch() -> None: ...

        fetch()
        assert limits.asked[0][0] == f"call:{__name__}.{fetch.__qualname__}"

    def test_the_wait_for_a_slot_does_not_make_a_call_slow(self, app: Celery) -> None:
        policy = BreakerPolicy(slow_call_seconds=0.5, slow_call_rate=0.5, minimum_calls=1)
        with_limits(app, Rates(*[Answer(True, 0.7)] * 3))
        call = guarded(breaker=policy, rate="10/s", name="api", app=app)(Service("paid"))

        assert [call() for _ in range(3)] == ["paid"] * 3

    def test_without_redis_a_rate_admits(self, app: Celery, clock: FakeClock) -> None:
        call = guarded(rate="1/d", app=app)(Service("paid"))

        assert [call(), call()] == ["paid", "paid"]
        assert clock.slept == []


class TestCoroutines:
    def test_they_are_tried_again_too(self, app: Celery, clock: FakeClock) -> None:
        service = Service(down(), down(), "paid")

        @guarded(retry_policy=QUICK, app=app)
        async def pay() -> Any:
            return service()

        assert inspect.iscoroutinefunction(pay)
        assert asyncio.run(pay()) == "paid"
        assert clock.slept == [0.2, 0.2]

    def test_on_the_real_clock_the_loop_goes_on_meanwhile(self) -> None:
        app = Celery("shop", broker="memory://", set_as_current=False)
        service, order = Service(down(), "paid"), []

        @guarded(retry_policy=QUICK, app=app)
        async def pay() -> None:
            order.append(service())

        async def tick() -> None:
            for _ in range(3):
                await asyncio.sleep(0.001)
            order.append("meanwhile")

        async def both() -> None:
            await asyncio.gather(pay(), tick())

        asyncio.run(both())
        assert order == ["meanwhile", "paid"]

    def test_a_cancelled_one_is_neither_retried_nor_counted(self, app: Celery) -> None:
        @guarded(breaker="payments", retry_policy=QUICK, app=app)
        async def hang() -> None:
            await asyncio.sleep(30)

        async def cancel() -> None:
            running = asyncio.create_task(hang())
            await asyncio.sleep(0)
            running.cancel()
            await running

        for _ in range(3):
            with pytest.raises(asyncio.CancelledError):
                asyncio.run(cancel())
        assert runtime_of(app).breaker("payments").snapshot().state == "closed"

    def test_a_block_may_be_async(self, app: Celery, clock: FakeClock) -> None:
        with_limits(app, Rates(Answer(True, 0.7)))

        async def pay() -> None:
            async with guarded(breaker="payments", rate="10/s", name="api", app=app):
                raise down()

        for _ in range(2):
            with pytest.raises(ConnectionError):
                asyncio.run(pay())
        with pytest.raises(BreakerOpenError):
            asyncio.run(pay())
        assert clock.slept == [0.7]

    def test_a_plain_function_that_gives_a_coroutine_is_refused(self, app: Celery) -> None:
        async def pay() -> None: ...

        with pytest.raises(ConfigurationError, match="directly on the `async def`"):
            guarded(breaker="payments", app=app)(lambda: pay())()


class TestBlocks:
    def test_failures_trip_the_breaker_and_blocks_are_refused(self, app: Celery) -> None:
        guard = guarded(breaker="payments", app=app)
        for _ in range(2):
            with pytest.raises(ConnectionError), guard:
                raise down()

        with pytest.raises(BreakerOpenError), guard:
            raise AssertionError("admitted")

    def test_one_guard_may_be_entered_within_itself(self, app: Celery) -> None:
        guard = guarded(breaker="payments", app=app)

        with guard, guard:
            pass

        with pytest.raises(ConnectionError), guard:
            raise down()

    @pytest.mark.parametrize(
        ("options", "field"),
        [
            ({"retry_policy": QUICK}, "retry_policy"),
            ({"breaker": lambda: "payments"}, "breaker"),
            ({"rate": lambda: "10/s"}, "rate"),
            ({"rate": "10/s"}, "name"),
            ({"breaker": TRIPS}, "name"),
        ],
    )
    def test_what_only_a_function_can_have_is_refused(self, app: Celery, options: Any, field: str) -> None:
        with pytest.raises(ConfigurationError) as wrong, guarded(app=app, **options):
            pass

        assert wrong.value.field == f"guarded: {field}"


class TestOptions:
    @pytest.mark.parametrize(
        ("options", "field", "told"),
        [
            ({}, "breaker", "Give at least one of"),
            ({"breaker": ""}, "breaker", "Give a name"),
            ({"breaker": 5}, "breaker", "Give a name"),
            ({"rate": "ten"}, "rate", "is not a rate"),
            ({"retry_policy": 3}, "retry_policy", "RetryPolicy"),
            ({"breaker": "a", "budget_seconds": 61}, "budget_seconds", "0 to 60"),
            ({"breaker": "a", "budget_seconds": None}, "budget_seconds", "must be set"),
            ({"breaker": "a", "budget_seconds": "5"}, "budget_seconds", "is not a number"),
            ({"breaker": "a", "name": " "}, "name", "is not a text"),
            ({"breaker": "a", "app": "shop"}, "app", "is not a Celery app"),
        ],
    )
    def test_a_wrong_one_is_refused_before_anything_is_called(self, options: Any, field: str, told: str) -> None:
        with pytest.raises(ConfigurationError, match=told) as wrong:
            guarded(**options)

        assert wrong.value.field == f"guarded: {field}"

    def test_what_cannot_be_decorated_is_refused(self, app: Celery) -> None:
        guard = guarded(breaker="payments", app=app)

        @app.task(shared=False)
        def task() -> None: ...

        def generator() -> Any:
            yield

        async def async_generator() -> Any:
            yield

        for wrong in (task, generator, async_generator, classmethod(print), "text"):
            with pytest.raises(ConfigurationError, match="guarded: function"):
                guard(wrong)  # type: ignore[arg-type]  # the case

    def test_a_block_in_a_generator_counts_whatever_context_advances_it(self, app: Celery) -> None:
        def rows() -> Any:
            with guarded(breaker="payments", app=app):
                yield 1
                raise ConnectionError("down")

        for _ in range(2):
            stream = rows()
            contextvars.copy_context().run(next, stream)
            with pytest.raises(ConnectionError):
                contextvars.copy_context().run(next, stream)

        assert runtime_of(app).breaker("payments").snapshot().state == "open"

    def test_the_function_keeps_its_name_and_signature(self, app: Celery) -> None:
        @guarded(breaker="payments", app=app)
        def pay(order_id: int, *, currency: str = "EUR") -> str:
            """Pay."""
            return f"{order_id} {currency}"

        assert (pay.__name__, pay.__doc__) == ("pay", "Pay.")
        assert list(inspect.signature(pay).parameters) == ["order_id", "currency"]
        assert pay(1, currency="USD") == "1 USD"

    def test_a_method_is_guarded_for_its_object(self, app: Celery) -> None:
        class Shop:
            @guarded(breaker="payments", app=app)
            def me(self) -> Shop:
                return self

        shop = Shop()
        assert shop.me() is shop


class TestApp:
    def test_it_is_that_of_the_running_task(self, app: Celery) -> None:
        @guarded(breaker="of the task")
        def call() -> None: ...

        @app.task(shared=False)
        def task() -> None:
            call()

        task.apply().get()
        assert runtime_of(app).eager.breakers.names() == ["of the task"]

    def test_failures_are_classified_by_the_rules_of_the_running_task(self, app: Celery) -> None:
        service = Service(KeyError("replica"), "paid")
        seen: list[str] = []

        def rule(error: Exception, context: Any) -> str | None:
            seen.append(f"{context.task} {context.args}")
            return "TRANSIENT" if isinstance(error, KeyError) else None

        @app.task(base=ResilientTask, bind=True, name="shop.look", failure_rules=rule, shared=False)
        def look(self: Any, order: int) -> Any:
            return guarded(retry_policy=QUICK)(service)(), self.request.retries

        assert look.apply((7,)).get() == ("paid", 0)  # tried again in place, not by the task
        assert seen == ["shop.look (7,)"]

    def test_rules_of_the_running_task_decide_what_counts_at_a_breaker(self, app: Celery) -> None:
        @app.task(base=ResilientTask, failure_rules={ConnectionError: "VALIDATION"}, shared=False)
        def pay() -> Any:
            return guarded(breaker="payments")(Service(down()))()

        for _ in range(TRIPS.consecutive_failures or 0):
            pay.apply()

        assert runtime_of(app).eager.breaker("payments").snapshot().state == "closed"

    def test_a_guard_of_another_app_does_not_ask_the_task(self, app: Celery) -> None:
        other = Celery("other", broker="memory://", set_as_current=False)
        service = Service(KeyError("replica"), "paid")

        @app.task(base=ResilientTask, failure_rules={KeyError: "TRANSIENT"}, shared=False)
        def look() -> Any:
            with pytest.raises(KeyError):
                guarded(retry_policy={FailureClass.STRUCTURAL: NO_RETRY, FailureClass.UNKNOWN: NO_RETRY}, app=other)(
                    service
                )()

        assert look.apply().get() is None
        assert service.calls == 1

    def test_else_it_is_the_current_one_at_the_time_of_the_call(self, app: Celery) -> None:
        @guarded(breaker="current")
        def call() -> None: ...

        from celery import current_app

        before = current_app._get_current_object()
        app.set_current()
        try:
            call()
        finally:
            before.set_current()
        assert runtime_of(app).breakers.names() == ["current"]

    def test_the_front_door_gives_the_decorator_whatever_was_imported_first(self) -> None:
        import importlib

        module: Any = importlib.import_module("celery_resilience.guarded")

        assert module(breaker="payments").gates.breaker == "payments"


def test_the_page_runs() -> None:
    from celery import current_app

    before = current_app._get_current_object()
    page = Path(__file__).parents[2] / "docs" / "how-to" / "guard-calls.md"
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.S | re.M)
    try:
        exec(compile("\n".join(blocks), str(page), "exec"), {"__name__": "page"})
    finally:
        before.set_current()
