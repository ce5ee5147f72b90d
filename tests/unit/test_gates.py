"""The gates of a task, as its options say: names and rates of one call, and what is refused when a task is bound."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from celery_resilience import BreakerPolicy, ResilientTask
from celery_resilience.errors import ConfigurationError
from celery_resilience.gates import Gates, check_gates
from celery_resilience.rate import Rate
from celery_resilience.task import gates_of
from celery_resilience.worker.startup import refuse_what_needs_redis

POLICY = BreakerPolicy(open_seconds=3)


def body() -> None: ...


def new_app() -> Any:
    return Celery("shop", broker="memory://", task_cls=ResilientTask, set_as_current=False)


def gates(**options: Any) -> Gates:
    return Gates(task="shop.pay", **options)


class TestBreakersOfACall:
    @pytest.mark.parametrize(
        ("option", "named"),
        [
            (None, []),
            ("payments", [("payments", None)]),
            (["payments", "mail"], [("payments", None), ("mail", None)]),
            (POLICY, [("shop.pay", POLICY)]),
            (lambda url: url.split("/")[2], [("a.example", None)]),
            (lambda url: [url[:5], "all"], [("http:", None), ("all", None)]),
            (lambda url: POLICY, [("shop.pay", POLICY)]),
            (lambda url: None, []),
        ],
    )
    def test_an_option_names_them(self, option: Any, named: list[Any]) -> None:
        assert gates(breaker=option).breakers(("http://a.example/x",), {}) == named

    def test_a_function_sees_keywords_too(self) -> None:
        assert gates(breaker=lambda *, tenant: tenant).breakers((), {"tenant": "t1"}) == [("t1", None)]


class TestRateOfACall:
    @pytest.mark.parametrize(
        ("option", "name", "interval"),
        [
            ("10/s", "shop.pay", 0.1),
            (Rate(calls=1, seconds=2, burst=3), "shop.pay", 2.0),
            (lambda tenant: "5/s", "shop.pay", 0.2),
            (lambda tenant: ("5/s", tenant), "shop.pay:t1", 0.2),
        ],
    )
    def test_an_option_says_it(self, option: Any, name: str, interval: float) -> None:
        answer = gates(rate=option).rate_of(("t1",), {})

        assert answer is not None
        assert (answer[0], answer[1].interval_seconds) == (name, pytest.approx(interval))

    @pytest.mark.parametrize("option", [None, lambda tenant: None])
    def test_none_is_no_limit(self, option: Any) -> None:
        assert gates(rate=option).rate_of(("t1",), {}) is None

    def test_a_function_that_gives_nonsense_is_told_by_name(self) -> None:
        with pytest.raises(ConfigurationError, match="rate_limit_shared='often'"):
            gates(rate=lambda: "often").rate_of((), {})


class TestBinding:
    @pytest.mark.parametrize(
        ("option", "value", "says"),
        [
            ("breaker", "", "is no breaker"),
            ("breaker", [], "is no breaker"),
            ("breaker", ["a", 1], "is no breaker"),
            ("breaker", 5, "is no breaker"),
            ("when_open", "parked", "is not known"),
            ("rate", "fast", "is not a rate"),
            ("rate", 100, "is not a rate"),
            ("places", 0, "max_concurrent"),
            ("places", 2.5, "max_concurrent"),
        ],
    )
    def test_what_cannot_work_is_refused_under_the_name_of_the_option(self, option: str, value: Any, says: str) -> None:
        with pytest.raises(ConfigurationError, match=f"task shop.pay: .*{says}"):
            check_gates("task shop.pay: ", gates(**{option: value}))

    def test_celerys_own_rate_limit_is_not_taken_for_a_slip_of_ours(self) -> None:
        app = new_app()
        app.task(body, name="shop.pay", shared=False, rate_limit="10/m")

        assert app.tasks["shop.pay"].rate_limit == "10/m"

    def test_a_task_without_options_has_no_gate(self) -> None:
        assert gates().is_open_way
        assert not gates(places=1).is_open_way

    def test_functions_given_as_options_are_no_methods_of_the_task(self) -> None:
        app = new_app()

        @app.task(
            name="shop.pay",
            shared=False,
            breaker=lambda url: url,
            when_open=lambda url: "later",
            rate_limit_shared=lambda url: ("1/s", url),
        )
        def pay(url: str) -> None: ...

        found = gates_of(type(app.tasks["shop.pay"]))
        assert found.breakers(("u",), {}) == [("u", None)]
        assert found.rate_of(("u",), {}) == ("shop.pay:u", Rate(calls=1, seconds=1))
        assert callable(found.when_open)
        assert found.when_open("u") == "later"


class TestWithoutRedis:
    """A worker that has no Redis is stopped if a task needs one."""

    @pytest.mark.parametrize(
        ("options", "says"),
        [
            ({"rate_limit_shared": "1/s"}, "rate_limit_shared='1/s': is shared by the fleet"),
            ({"max_concurrent": 3}, "max_concurrent=3: is shared by the fleet"),
            ({"breaker": "payments"}, "when_open='park': sets messages aside.*or write when_open=.fail"),
        ],
    )
    def test_what_needs_one_is_refused_by_task_and_option(self, options: dict[str, Any], says: str) -> None:
        app = new_app()
        app.task(body, name="shop.pay", shared=False, **options)

        with pytest.raises(ConfigurationError, match=f"task shop.pay: {says}"):
            refuse_what_needs_redis(app)

    @pytest.mark.parametrize("when_open", ["fail", lambda: "instead"])
    def test_a_breaker_that_never_parks_may_be_local(self, when_open: Any) -> None:
        app = new_app()
        app.task(body, name="shop.pay", shared=False, breaker="payments", when_open=when_open)

        refuse_what_needs_redis(app)
