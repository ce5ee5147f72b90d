"""The breakers of an app: one per name, with the policy of the settings, without Redis too."""

from __future__ import annotations

import os
import pickle

import pytest
from celery import Celery

from celery_resilience import BreakerPolicy, CircuitBreaker, runtime_of
from celery_resilience.errors import BreakerOpenError, ConfigurationError
from tests.support.breakers import fail


def app(**settings: object) -> Celery:
    made = Celery("shop", broker="memory://", set_as_current=False)
    made.conf.update(settings)
    return made


def test_a_name_has_one_breaker() -> None:
    shop = app()

    assert runtime_of(shop).breaker("pay") is runtime_of(shop).breaker("pay")
    assert isinstance(runtime_of(shop).breaker("pay"), CircuitBreaker)


def test_its_policy_comes_from_the_call_the_name_or_the_default() -> None:
    by_name, by_default, by_call = (BreakerPolicy(minimum_calls=n) for n in (2, 3, 4))
    runtime = runtime_of(app(resilience_breakers={"pay": by_name}, resilience_breaker_policy=by_default))

    assert runtime.breaker("pay").policy is by_name
    assert runtime.breaker("mail").policy is by_default
    assert runtime.breaker("ship", by_call).policy is by_call


def test_without_redis_a_process_protects_itself() -> None:
    runtime = runtime_of(app())

    assert fail(runtime.breaker("pay"), 50) == 10
    assert [one.state for one in runtime.breakers.snapshots()] == ["open"]
    assert [one.event for one in runtime.breakers.history()] == ["opened"]


def test_a_forked_child_has_breakers_of_its_own() -> None:
    shop = app()
    fail(runtime_of(shop).breaker("pay"), 50)
    pid = os.fork()
    if pid == 0:
        os._exit(fail(runtime_of(shop).breaker("pay"), 50))
    _, status = os.waitpid(pid, 0)

    assert os.waitstatus_to_exitcode(status) == 10


@pytest.mark.parametrize("name", ["", " ", None, 3, "x" * 201, "\udc80", "a\nb"])
def test_a_name_is_a_short_text(name: str) -> None:
    with pytest.raises(ConfigurationError, match="name"):
        CircuitBreaker(name)


def test_a_policy_is_a_policy() -> None:
    with pytest.raises(ConfigurationError, match="BreakerPolicy"):
        CircuitBreaker("pay", {"failure_rate": 0.5})  # type: ignore[arg-type]  # the point


def test_a_refusal_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(BreakerOpenError("pay", 2.5, "down")))

    assert (error.name, error.retry_after, error.reason) == ("pay", 2.5, "down")
