"""One runtime per app and process: built late, shared, and never carried over a fork."""

from __future__ import annotations

import gc
import os
import threading
import weakref

import pytest
from celery import Celery

from celery_resilience import ResilientTask, Settings, runtime_of
from celery_resilience.errors import ConfigurationError
from celery_resilience.runtime import Runtime, use_runtime
from celery_resilience.testing import FakeClock


def test_the_runtime_is_always_the_same() -> None:
    app = Celery("shop", broker="redis://")

    assert runtime_of(app) is runtime_of(app)
    assert runtime_of(app).schedule is runtime_of(app).schedule
    assert runtime_of(app).store is runtime_of(app).schedule.store  # type: ignore[union-attr]


def test_two_apps_have_two() -> None:
    assert runtime_of(Celery("a", broker="redis://")) is not runtime_of(Celery("b", broker="redis://"))


def test_nothing_connects_until_it_is_used() -> None:
    runtime = runtime_of(Celery("shop", broker="redis://127.0.0.1:1/0"))

    assert runtime.schedule is not None
    assert isinstance(runtime.settings, Settings)


def test_without_redis_there_is_no_schedule() -> None:
    runtime = runtime_of(Celery("shop", broker="amqp://"))

    assert runtime.store is None
    assert runtime.schedule is None


def test_the_schedule_is_shared_only_with_a_redis_broker() -> None:
    assert runtime_of(Celery("a", broker="redis://h/0")).schedule.shared  # type: ignore[union-attr]
    assert not runtime_of(Celery("b", broker="amqp://", backend="redis://h/0")).schedule.shared  # type: ignore[union-attr]


def schedule_keys(broker: str, **conf: object) -> list[str]:
    """Give the keys under which an app with this broker keeps its schedule."""
    app = Celery("shop", broker=broker, set_as_current=False)
    app.conf.update(conf)
    schedule = runtime_of(app).schedule
    assert schedule is not None
    return schedule._keys


def test_apps_that_share_a_redis_keep_the_messages_of_each_broker_apart() -> None:
    url = "redis://state/0"
    first = schedule_keys("redis://:hunter2@one/0", resilience_redis_url=url)
    second = schedule_keys("redis://two/0", resilience_redis_url=url)

    assert not set(first) & set(second)
    assert not any("hunter2" in key for key in first)


def test_a_broker_that_was_given_a_name_keeps_its_schedule_when_it_moves() -> None:
    conf = {"resilience_redis_url": "redis://state/0", "resilience_broker_name": "shop"}
    before, after = schedule_keys("redis://one/0", **conf), schedule_keys("amqp://two//", **conf)

    assert before == after
    assert before[0] == "resilience:{schedule:shop}:due"


def test_the_pause_before_a_message_goes_back_grows_to_the_cool_down_and_starts_short_again() -> None:
    app = Celery("shop", broker="redis://", set_as_current=False)
    app.conf.resilience_requeue_pause_seconds = 2
    runtime = runtime_of(app)
    pauses = [runtime.next_pause() for _ in range(8)]
    runtime.forget_pauses()

    assert pauses == [2, 4, 5, 5, 5, 5, 5, 5]
    assert runtime.next_pause() == 2


@pytest.mark.parametrize(
    "url",
    ["redis://:hunter2@h:notaport/0", "redis://:hunter2@h:99999/0", "redis://[::1", "redis://:hunter2@[::1/0"],
)
def test_a_redis_url_that_cannot_be_read_names_field_and_remedy_and_no_password(url: str) -> None:
    app = Celery("shop", broker="amqp://", set_as_current=False)
    app.conf.resilience_redis_url = url
    with pytest.raises(ConfigurationError) as caught:
        assert runtime_of(app).store

    assert all(word in str(caught.value) for word in ("resilience_redis_url", "Write redis://host:6379/0"))
    assert "hunter2" not in str(caught.value)


def test_wrong_settings_are_told_again_each_time() -> None:
    app = Celery("shop", broker="redis://")
    app.conf.resilience_dedline_seconds = 3

    for _ in range(2):
        with pytest.raises(ConfigurationError, match="Did you mean 'resilience_deadline_seconds'"):
            runtime_of(app)


def test_a_test_may_bring_its_own_clock() -> None:
    app = Celery("shop", broker="redis://")
    clock = FakeClock()
    use_runtime(app, Runtime(app, clock))

    assert runtime_of(app).clock is clock


def test_a_forked_child_starts_anew_after_use_in_the_parent() -> None:
    app = Celery("shop", broker="redis://", task_cls=ResilientTask)

    @app.task
    def work() -> None: ...

    parents = runtime_of(app)
    parents_plan = work._plan_of(app)
    pid = os.fork()
    if pid == 0:
        is_fresh = runtime_of(app) is not parents and runtime_of(app).store is not parents.store
        has_plan = work._plan_of(app) is not parents_plan
        os._exit(0 if is_fresh and has_plan else 1)
    _, status = os.waitpid(pid, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert runtime_of(app) is parents


def test_an_app_that_is_gone_takes_its_runtime_along() -> None:
    app = Celery("shop", broker="redis://", set_as_current=False)
    runtime = weakref.ref(runtime_of(app))
    app.close()
    del app
    gc.collect()

    assert runtime() is None


def test_threads_that_ask_at_once_can_all_use_what_they_get() -> None:
    app = Celery("shop", broker="redis://")
    got: list[Runtime] = []
    threads = [threading.Thread(target=lambda: got.append(runtime_of(app))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(got) == 8
    assert all(runtime.settings == Settings() for runtime in got)
