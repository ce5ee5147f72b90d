"""Eager mode: the same decisions, without Redis, without waiting."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery, chain
from celery.exceptions import MaxRetriesExceededError
from celery.signals import task_retry

from celery_resilience import FailureClass, ResilientTask, RetryPolicy
from celery_resilience.attempts import HEADER, read_attempts
from celery_resilience.errors import ConfigurationError, PermanentError, RetryableError

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
