"""ResilientTask at bind time and at the call: wrong options stop there, right ones travel in the header."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery, Task, chain, group
from celery.signals import before_task_publish

from celery_resilience import FailureClass, ResilientTask, RetryPolicy, runtime_of
from celery_resilience.attempts import HEADER, Attempts, read_attempts
from celery_resilience.errors import ConfigurationError
from celery_resilience.runtime import Runtime, use_runtime
from celery_resilience.testing import FakeClock


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def app(clock: FakeClock) -> Celery:
    """An app that publishes into this process only."""
    app = Celery("shop", broker="memory://", task_cls=ResilientTask, set_as_current=False)
    use_runtime(app, Runtime(app, clock))
    return app


@pytest.fixture
def sent(app: Celery) -> Iterator[list[Any]]:
    """The headers of what was published."""
    published: list[Any] = []

    def collect(headers: Any, **_: Any) -> None:
        published.append(dict(headers))

    before_task_publish.connect(collect)
    yield published
    before_task_publish.disconnect(collect)


def resilience(headers: Any) -> Any:
    return read_attempts(headers.get(HEADER))


def define(app: Celery, **options: Any) -> Any:
    @app.task(name="shop.work", shared=False, **options)
    def work(*args: Any) -> None: ...

    work.name  # noqa: B018  # binds it
    return work


class TestBinding:
    @pytest.mark.parametrize(
        ("options", "words"),
        [
            ({"retry_polcy": 1}, ["shop.work", "retry_polcy=1", "Did you mean 'retry_policy'?"]),
            ({"deadline": 60}, ["shop.work", "deadline=60", "Did you mean 'deadline_seconds'?"]),
            ({"failure_rule": {}}, ["Did you mean 'failure_rules'?"]),
            ({"deadline_seconds": -1}, ["shop.work", "deadline_seconds=-1", "from 0.001 to"]),
            ({"deadline_seconds": "1h"}, ["deadline_seconds='1h'", "number"]),
            ({"retry_policy": 3}, ["shop.work", "retry_policy=3", "RetryPolicy(max_attempts=…)"]),
            ({"retry_policy": {"NETWROK": RetryPolicy()}}, ["NETWROK", "NETWORK"]),
            ({"failure_rules": 5}, ["5", "rule"]),
            ({"failure_rules": {"KeyError": "TRANSIENTLY"}}, ["TRANSIENTLY", "TRANSIENT"]),
            (
                {"autoretry_for": (ConnectionError,)},
                [
                    "shop.work",
                    "autoretry_for",
                    "retry_policy=RetryPolicy(",
                    "failure_rules={ConnectionError: 'TRANSIENT'}",
                ],
            ),
            (
                {"autoretry_for": KeyError},
                ["shop.work", "autoretry_for", "retry_policy=RetryPolicy(", "failure_rules={KeyError: 'TRANSIENT'}"],
            ),
            ({"max_attempts": 3}, ["shop.work", "max_attempts=3", "Write retry_policy=RetryPolicy(max_attempts=3)."]),
            ({"base_seconds": 0.5}, ["shop.work", "Write retry_policy=RetryPolicy(base_seconds=0.5)."]),
        ],
    )
    def test_a_wrong_option_stops_with_task_field_value_and_remedy(
        self, app: Celery, options: dict[str, Any], words: list[str]
    ) -> None:
        with pytest.raises(ConfigurationError) as caught:
            define(app, **options)

        assert all(word in str(caught.value) for word in words), str(caught.value)

    def test_the_rules_of_a_task_are_named_by_task_and_option_when_wrong(self, app: Celery) -> None:
        with pytest.raises(ConfigurationError) as caught:
            define(app, failure_rules=5)

        assert "shop.work" in str(caught.value)
        assert "failure_rules" in str(caught.value)

    def test_a_near_miss_on_a_base_class_is_caught_too(self, app: Celery) -> None:
        class Base(ResilientTask):
            abstract = True
            retry_policies = RetryPolicy()

        with pytest.raises(ConfigurationError, match="Did you mean 'retry_policy'"):
            define(app, base=Base)

    def test_other_attributes_are_the_users_own(self, app: Celery) -> None:
        task = define(
            app, database="main", rate_limit="10/m", max_retries=7, policy="mine", soft_time_limit=5, seconds=1
        )

        assert (task.database, task.rate_limit, task.max_retries, task.policy) == ("main", "10/m", 7, "mine")

    def test_messages_are_acked_late(self, app: Celery) -> None:
        assert define(app).acks_late is True

    def test_early_ack_can_still_be_asked_for(self, app: Celery) -> None:
        assert define(app, acks_late=False).acks_late is False

    def test_binding_twice_installs_our_steps_once(self, app: Celery) -> None:
        app.tasks[define(app).name].on_bound(app)
        steps = [step.__name__ for step in app.steps["consumer"]]

        assert steps.count("SchedulerStep") == 1
        assert steps.count("LeaseStep") == 1

    def test_one_task_may_be_resilient_in_a_plain_app(self) -> None:
        app = Celery("plain", broker="redis://", set_as_current=False)
        task = define(app, base=ResilientTask)

        assert isinstance(task, ResilientTask)
        assert type(app.tasks["celery.chord"]).__mro__[1] is Task or not isinstance(
            app.tasks["celery.chord"], ResilientTask
        )
        assert app.steps["consumer"]

    def test_a_rule_given_as_a_function_stays_a_function(self, app: Celery) -> None:
        task = define(app, failure_rules=lambda exc, context: "TRANSIENT")
        failure = task._plan_of(app).classifier.classify(KeyError("x"))

        assert failure.failure_class is FailureClass.TRANSIENT

    def test_built_ins_keep_celerys_ways(self, app: Celery) -> None:
        app.finalize()
        unlock = app.tasks["celery.chord_unlock"]

        assert isinstance(unlock, ResilientTask)
        assert unlock.Strategy == Task.Strategy
        assert unlock.acks_late == app.conf.task_acks_late

    def test_a_task_called_directly_is_a_plain_call(self, app: Celery) -> None:
        @app.task(bind=True)
        def fails(self: Any, n: int) -> int:
            if n < 0:
                raise ConnectionError("down")
            return n + 1

        assert fails(1) == 2
        with pytest.raises(ConnectionError):
            fails(-1)


class TestPrecedence:
    def plan(self, app: Celery, task: Any) -> Any:
        return task._plan_of(app).policies[FailureClass.NETWORK]

    def test_the_task_wins_over_the_app_and_both_over_the_class(self, app: Celery, clock: FakeClock) -> None:
        app.conf.resilience_retry_policy = RetryPolicy(max_attempts=9, base_seconds=7)
        use_runtime(app, Runtime(app, clock))
        policy = self.plan(app, define(app, retry_policy=RetryPolicy(max_attempts=2)))

        assert (policy.max_attempts, policy.base_seconds, policy.factor) == (2, 7, 2)

    def test_the_deadline_of_the_task_wins_over_the_apps(self, app: Celery, clock: FakeClock) -> None:
        app.conf.resilience_deadline_seconds = 100
        use_runtime(app, Runtime(app, clock))

        assert define(app)._plan_of(app).deadline_seconds == 100
        app2 = Celery("two", broker="redis://", task_cls=ResilientTask, set_as_current=False)
        app2.conf.resilience_deadline_seconds = 100
        assert define(app2, deadline_seconds=5)._plan_of(app2).deadline_seconds == 5


class TestCalls:
    def test_a_plain_call_carries_no_header(self, app: Celery, sent: list[Any]) -> None:
        define(app).delay()

        assert HEADER not in sent[0]

    def test_the_options_of_a_call_travel_in_the_header(self, app: Celery, sent: list[Any], clock: FakeClock) -> None:
        define(app).apply_async(resilience={"max_attempts": 3, "deadline_seconds": 60})
        state = resilience(sent[0])

        assert state.options == {"max_attempts": 3, "deadline_seconds": 60}
        assert state.deadline_at == clock.time() + 60
        assert state.attempt == 1

    def test_options_by_set_travel_too(self, app: Celery, sent: list[Any]) -> None:
        define(app).s(1).set(resilience={"max_attempts": 4}).apply_async()

        assert resilience(sent[0]).options == {"max_attempts": 4}

    def test_options_of_a_chains_members_travel_with_each(self, app: Celery, sent: list[Any]) -> None:
        task = define(app)
        chain(
            task.si(1).set(resilience={"max_attempts": 4}), task.si(2).set(resilience={"max_attempts": 6})
        ).apply_async()

        assert resilience(sent[0]).options == {"max_attempts": 4}

    def test_options_of_a_groups_members_travel_with_each(self, app: Celery, sent: list[Any]) -> None:
        task = define(app)
        group(task.si(n).set(resilience={"max_attempts": n}) for n in (2, 3)).apply_async()

        assert [resilience(headers).options for headers in sent] == [{"max_attempts": 2}, {"max_attempts": 3}]

    def test_a_tasks_own_deadline_counts_from_the_publish(self, app: Celery, sent: list[Any], clock: FakeClock) -> None:
        define(app, deadline_seconds=30).delay()

        assert resilience(sent[0]).deadline_at == clock.time() + 30

    def test_the_deadline_of_a_call_wins_over_the_tasks(self, app: Celery, sent: list[Any], clock: FakeClock) -> None:
        define(app, deadline_seconds=30).apply_async(resilience={"deadline_seconds": 5})

        assert resilience(sent[0]).deadline_at == clock.time() + 5

    def test_a_wanted_delay_is_not_taken_off_the_deadline(self, app: Celery, sent: list[Any], clock: FakeClock) -> None:
        task = define(app, deadline_seconds=30)
        eta = datetime.fromtimestamp(clock.time() + 100, tz=timezone.utc)
        task.apply_async(countdown=100)
        task.apply_async(eta=eta)
        task.apply_async(eta=eta - timedelta(days=9))

        deadlines = [resilience(headers).deadline_at - clock.time() for headers in sent]
        assert deadlines == [130, 130, 30]

    def test_other_headers_stay(self, app: Celery, sent: list[Any]) -> None:
        define(app).apply_async(headers={"mine": 1}, resilience={"max_attempts": 2})

        assert sent[0]["mine"] == 1
        assert resilience(sent[0]).options == {"max_attempts": 2}

    def test_a_header_handed_on_from_another_task_is_left_out(self, app: Celery, sent: list[Any]) -> None:
        handed_on = {HEADER: Attempts(attempt=3, task_id="parent", lineage="l").to_header(), "mine": 1}
        task = define(app)
        task.apply_async(headers=handed_on)
        task.apply_async(headers=handed_on, resilience={"max_attempts": 2}, task_id="child")

        assert HEADER not in sent[0]
        assert resilience(sent[1]) == Attempts(task_id="child", options={"max_attempts": 2})
        assert [headers["mine"] for headers in sent] == [1, 1]

    def test_a_header_of_the_tasks_own_stays(self, app: Celery, sent: list[Any]) -> None:
        own = Attempts(attempt=3, task_id="mine", lineage="l")
        define(app).apply_async(headers={HEADER: own.to_header()}, task_id="mine")

        assert resilience(sent[0]) == own

    def test_celerys_own_retry_policy_keeps_its_meaning(self, app: Celery, sent: list[Any]) -> None:
        define(app).apply_async(retry_policy={"max_retries": 0}, retry=False)

        assert HEADER not in sent[0]

    @pytest.mark.parametrize("options", [{"max_attempt": 1}, {"max_attempts": -1}, 5, {"strategy": print}])
    def test_wrong_options_are_refused_at_the_call_and_nothing_is_sent(
        self, app: Celery, sent: list[Any], options: Any
    ) -> None:
        task = define(app)
        with pytest.raises(ConfigurationError):
            task.apply_async(resilience=options)

        assert sent == []

    def test_the_header_is_json_of_its_own(self, app: Celery, sent: list[Any]) -> None:
        define(app).apply_async(resilience={"jitter": "none"})

        assert json.loads(sent[0][HEADER])["options"] == {"jitter": "none"}

    def test_the_callers_own_dictionary_of_headers_is_left_alone(self, app: Celery, sent: list[Any]) -> None:
        mine = {"mine": 1}
        define(app).apply_async(headers=mine, resilience={"max_attempts": 2})

        assert mine == {"mine": 1}


def test_the_runtime_is_reachable_from_a_task(app: Celery) -> None:
    assert runtime_of(define(app).app).settings.key_prefix == "resilience"
