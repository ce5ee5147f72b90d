"""Eager mode: the same decisions, without Redis, without waiting."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, chain
from celery.exceptions import MaxRetriesExceededError
from celery.signals import task_retry

from celery_resilience import NO_RETRY, BreakerPolicy, FailureClass, ResilientTask, RetryPolicy, guarded, runtime_of
from celery_resilience.attempts import HEADER, read_attempts
from celery_resilience.errors import BreakerOpenError, ConfigurationError, PermanentError, RetryableError
from celery_resilience.runtime import use_runtime
from celery_resilience.testing import EmbeddedRedis

NOWHERE = "redis://127.0.0.1:1/0"


@pytest.fixture
def app() -> Iterator[Celery]:
    """An app whose Redis does not exist."""
    app = Celery("eager", broker=NOWHERE, task_cls=ResilientTask, set_as_current=False)
    app.conf.update(task_always_eager=True, task_eager_propagates=True)
    yield app
    app.close()


class Body:
    """A body that raises what it was given, one after the other, and notes its attempts."""

    def __init__(self, *errors: BaseException | None) -> None:
        self.errors = list(errors)
        self.attempts: list[int] = []
        self.retries: list[int] = []

    def __call__(self, task: Any, value: Any = "done") -> Any:
        self.attempts.append(read_attempts(task.request.__dict__.get(HEADER)).attempt)
        self.retries.append(task.request.retries)
        error = self.errors[min(len(self.attempts), len(self.errors)) - 1]
        if error is not None:
            raise error
        return value


def define(app: Celery, body: Any, **options: Any) -> Any:
    def run(self: Any, *args: Any) -> Any:
        return body(self, *args)

    return app.task(run, name=f"eager.{len(app.tasks)}", bind=True, shared=False, **options)


def test_attempts_follow_each_other_at_once(app: Celery) -> None:
    body = Body(ConnectionError(), ConnectionError(), None)
    began = time.perf_counter()
    result = define(app, body).delay()

    assert result.get() == "done"
    assert (body.attempts, body.retries) == ([1, 2, 3], [0, 1, 2])
    assert time.perf_counter() - began < 1


def test_the_attempts_end_as_in_a_worker(app: Celery) -> None:
    body = Body(ConnectionError("down"))
    task = define(app, body)

    with pytest.raises(ConnectionError, match="down"):
        task.delay()
    assert body.attempts == [1, 2, 3, 4, 5]


def test_a_permanent_failure_ends_at_once(app: Celery) -> None:
    body = Body(PermanentError("no"))

    with pytest.raises(PermanentError):
        define(app, body).delay()
    assert body.attempts == [1]


def test_a_hint_of_a_day_is_not_waited_for(app: Celery) -> None:
    body = Body(RetryableError(retry_after=86400), None)
    began = time.perf_counter()

    assert define(app, body).delay().get() == "done"
    assert time.perf_counter() - began < 1


def test_task_and_call_options_count(app: Celery) -> None:
    of_task, of_call = Body(ConnectionError()), Body(ConnectionError())
    with pytest.raises(ConnectionError):
        define(app, of_task, retry_policy=RetryPolicy(max_attempts=2)).delay()
    with pytest.raises(ConnectionError):
        define(app, of_call, retry_policy=RetryPolicy(max_attempts=2)).apply_async(resilience={"max_attempts": 3})

    assert of_task.attempts == [1, 2]
    assert of_call.attempts == [1, 2, 3]


def test_rules_and_policies_by_class_count(app: Celery) -> None:
    body = Body(KeyError("x"), None)
    task = define(
        app,
        body,
        failure_rules={KeyError: "STRUCTURAL"},
        retry_policy={FailureClass.STRUCTURAL: RetryPolicy(max_attempts=2)},
    )

    assert task.delay().get() == "done"
    assert body.attempts == [1, 2]


def test_a_deadline_is_kept_in_what_would_have_been_waited(app: Celery) -> None:
    body = Body(RetryableError(retry_after=100))

    with pytest.raises(RetryableError):
        define(app, body, deadline_seconds=50).delay()
    assert body.attempts == [1]


def test_wrong_options_are_refused_at_the_call(app: Celery) -> None:
    with pytest.raises(ConfigurationError, match="max_attempts"):
        define(app, Body(None)).apply_async(resilience={"max_attempt": 3})


def test_apply_works_without_the_eager_setting(app: Celery) -> None:
    app.conf.task_always_eager = False
    body = Body(ConnectionError(), None)

    assert define(app, body).apply(resilience={"max_attempts": 2}).get() == "done"
    assert body.attempts == [1, 2]


def test_apply_gives_the_failure_as_a_result(app: Celery) -> None:
    app.conf.update(task_always_eager=False, task_eager_propagates=False)
    result = define(app, Body(PermanentError("no"))).apply()

    assert result.state == "FAILURE"
    assert isinstance(result.result, PermanentError)


def test_the_bodys_own_retry_works_where_celerys_does(app: Celery) -> None:
    app.conf.task_eager_propagates = False  # with it Celery itself lets Retry out
    seen: list[int] = []

    def body(task: Any) -> str:
        seen.append(task.request.retries)
        if len(seen) < 3:
            raise task.retry(countdown=1000)
        return "done"

    assert define(app, body).delay().get() == "done"
    assert seen == [0, 1, 2]


def test_the_bodys_own_retry_ends_at_its_limit(app: Celery) -> None:
    app.conf.task_eager_propagates = False
    seen: list[int] = []

    def body(task: Any) -> str:
        seen.append(1)
        raise task.retry(max_retries=1)

    with pytest.raises(MaxRetriesExceededError):
        define(app, body).delay().get()
    assert len(seen) == 2


@pytest.mark.parametrize(("max_retries", "runs"), [(2, 3), (0, 1)])
def test_the_exception_given_at_the_bodys_own_limit_is_not_retried_by_class(
    app: Celery, max_retries: int, runs: int
) -> None:
    app.conf.task_eager_propagates = False
    seen: list[int] = []

    def body(task: Any) -> str:
        seen.append(task.request.retries)
        raise task.retry(exc=ConnectionError("down"))

    result = define(app, body, max_retries=max_retries).delay()

    assert (result.state, type(result.result)) == ("FAILURE", ConnectionError)
    assert seen == list(range(runs))


def test_the_exception_given_at_a_limit_of_none_is_the_end_when_failures_propagate(app: Celery) -> None:
    seen: list[int] = []

    def body(task: Any) -> str:
        seen.append(task.request.retries)
        raise task.retry(exc=ConnectionError("down"), max_retries=0)

    with pytest.raises(ConnectionError, match="down"):
        define(app, body).delay()
    assert seen == [0]


def test_each_attempt_is_told_once(app: Celery) -> None:
    signals: list[Any] = []
    hooks: list[Any] = []

    class Noted(ResilientTask):
        abstract = True

        def on_retry(self, exc: Any, task_id: Any, args: Any, kwargs: Any, einfo: Any) -> None:
            hooks.append(type(exc))

    def note(reason: Any, **_: Any) -> None:
        signals.append(reason)

    task = define(app, Body(ConnectionError(), ConnectionError(), None), base=Noted)
    task_retry.connect(note)
    try:
        assert task.delay().get() == "done"
    finally:
        task_retry.disconnect(note)

    assert hooks == [ConnectionError, ConnectionError]
    assert len(signals) == 2


def test_a_chain_goes_through_its_retries(app: Celery) -> None:
    first, second = Body(ConnectionError(), None), Body(ConnectionError(), None)
    result = chain(define(app, first).si(), define(app, second).si("end")).apply()

    assert result.get() == "end"
    assert (first.attempts, second.attempts) == ([1, 2], [1, 2])


def test_a_task_that_calls_another_keeps_the_two_apart(app: Celery) -> None:
    inner = Body(ConnectionError(), None)
    inner_task = define(app, inner)

    def body(task: Any) -> Any:
        return inner_task.delay().get(disable_sync_subtasks=False)

    assert define(app, body).delay().get() == "done"
    assert inner.attempts == [1, 2]


def test_a_body_that_calls_its_own_task_directly_makes_a_plain_call(app: Celery) -> None:
    calls: list[int] = []

    @app.task(bind=True, shared=False)
    def countdown(self: Any, n: int) -> int:
        calls.append(n)
        return countdown(n - 1) if n else 0

    assert countdown.delay(2).get() == 0
    assert calls == [2, 1, 0]


class BusyError(Exception):
    """The other side asks for rest."""

    failure_class = "RATE_LIMITED"
    retry_after = 4.0


class TestGates:
    """Breakers of this process decide; what would park raises its reason at once."""

    @pytest.fixture
    def app(self, app: Celery) -> Celery:
        app.conf.resilience_breaker_policy = BreakerPolicy(consecutive_failures=2, open_seconds=60)
        app.conf.resilience_retry_policy = NO_RETRY
        return app

    def force_open(self, app: Celery, name: str) -> None:
        runtime_of(app).eager.breaker(name).force_open(who="test", why="a drill")

    def test_failures_open_a_breaker_of_the_process(self, app: Celery) -> None:
        body = Body(ConnectionError("down"))
        task = define(app, body, breaker="payments")
        for _ in range(2):
            with pytest.raises(ConnectionError):
                task.delay()
        began = time.perf_counter()

        with pytest.raises(BreakerOpenError, match="'payments' refuses calls"):
            task.delay()
        assert len(body.attempts) == 2
        assert time.perf_counter() - began < 1

    def test_a_trip_between_two_attempts_is_told_at_once(self, app: Celery) -> None:
        body = Body(ConnectionError("down"))
        task = define(app, body, breaker="payments", retry_policy=RetryPolicy(max_attempts=5))

        with pytest.raises(BreakerOpenError):
            task.delay()
        assert body.attempts == [1, 2]

    def test_a_refusal_is_never_an_attempt(self, app: Celery) -> None:
        """Before the body or in it: nothing is tried again, whatever the policy."""
        self.force_open(app, "payments")
        seen: list[int] = []

        def guarding(task: Any) -> None:
            seen.append(1)
            with task.guard("payments"):
                seen.append(2)

        body, policy = Body(None), RetryPolicy(max_attempts=5)
        for task in (
            define(app, body, breaker="payments", retry_policy=policy),
            define(app, body, breaker="payments", when_open="fail", retry_policy=policy),
            define(app, guarding, retry_policy=policy),
            define(app, guarding, when_open="fail", retry_policy=policy),
        ):
            with pytest.raises(BreakerOpenError):
                task.delay()

        assert (body.attempts, seen) == ([], [1, 1])

    def test_a_fallback_gives_the_result_instead(self, app: Celery) -> None:
        self.force_open(app, "payments")

        def guarding(task: Any, value: str) -> str:
            with task.guard("payments"):
                return value

        def instead(value: str) -> str:
            return f"instead of {value}"

        for task in (
            define(app, Body(None), breaker="payments", when_open=instead),
            define(app, guarding, when_open=instead),
        ):
            assert task.delay("x").get() == "instead of x"

    def test_limits_of_the_fleet_are_not_asked(self, app: Celery) -> None:
        task = define(app, Body(None), rate_limit_shared="1/d", max_concurrent=1, max_queue_length=1)

        assert [task.delay().get() for _ in range(3)] == ["done"] * 3

    def test_a_server_that_asks_for_rest_does_not_refuse_the_next_attempt(self, app: Celery) -> None:
        """The delay of the retry would have covered the rest; here nobody waits for either."""
        body = Body(BusyError(), None)
        policy = {FailureClass.RATE_LIMITED: RetryPolicy(max_attempts=2)}

        assert define(app, body, breaker="payments", retry_policy=policy).delay().get() == "done"

    def test_the_default_breaker_counts(self, app: Celery) -> None:
        app.conf.resilience_default_breaker = "task"
        use_runtime(app, None)
        task = define(app, Body(ConnectionError("down")))
        for error in (ConnectionError, ConnectionError, BreakerOpenError):
            with pytest.raises(error):
                task.delay()

    def test_a_new_runtime_has_forgotten_all(self, app: Celery) -> None:
        self.force_open(app, "payments")
        use_runtime(app, None)

        assert define(app, Body(None), breaker="payments").delay().get() == "done"

    def test_guarded_calls_retry_without_waiting_and_refuse_at_once(self, app: Celery) -> None:
        calls: list[int] = []

        @guarded(breaker="api", rate="1/d", retry_policy=RetryPolicy(max_attempts=2, strategy="fixed", base_seconds=4))
        def call() -> None:
            calls.append(1)
            raise BusyError

        task = define(app, lambda task: call())
        began = time.perf_counter()
        with pytest.raises(BusyError):
            task.delay()
        with pytest.raises(BreakerOpenError):
            task.delay()

        assert len(calls) == 2
        assert time.perf_counter() - began < 1

    def test_delays_that_are_not_waited_for_still_use_up_the_budget_of_a_guarded_call(self, app: Celery) -> None:
        calls: list[int] = []
        policy = RetryPolicy(max_attempts=100, strategy="fixed", base_seconds=2, jitter="none")

        @guarded(retry_policy=policy, budget_seconds=5)
        def call() -> None:
            calls.append(1)
            raise ConnectionError("down")

        with pytest.raises(ConnectionError):
            define(app, lambda task: call()).delay()
        assert len(calls) == 3

    def test_a_task_called_directly_within_an_eager_one_is_part_of_it(self, app: Celery) -> None:
        self.force_open(app, "mail")

        def guarding(task: Any) -> None:
            with task.guard("mail"):
                pass

        inner = define(app, guarding)
        by_guarded = define(app, lambda task: guarded(breaker="mail")(lambda: None)())

        for task in (inner, by_guarded):
            with pytest.raises(BreakerOpenError):
                define(app, lambda outer, task=task: task()).delay()

    def test_nothing_is_asked_of_redis(self, app: Celery, redis_server: EmbeddedRedis) -> None:
        app.conf.update(broker_url=redis_server.url, resilience_redis_url=redis_server.url)
        use_runtime(app, None)

        @guarded(breaker="api", rate="1/s")
        def call() -> None: ...

        def body(task: Any, is_down: bool) -> None:
            call()
            with task.guard("mail"):
                pass
            if is_down:
                raise ConnectionError("down")

        task = define(app, body, breaker=["a", "b"], rate_limit_shared="1/d", max_concurrent=1, max_queue_length=1)
        with redis_server.client() as client:
            before = client.info()["total_connections_received"]
            for is_down in (False, True, True, True):
                task.apply((is_down,))
                app.conf.task_eager_propagates = False
                task.delay(is_down)

            assert runtime_of(app).eager.breaker("a").snapshot().state == "open"
            assert client.info()["total_connections_received"] == before
