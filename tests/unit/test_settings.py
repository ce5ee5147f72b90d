"""Settings are read once, checked and frozen; a wrong one says what to write instead."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from celery_resilience import FailureClass, ResilientTask, RetryPolicy, Settings, runtime_of
from celery_resilience.errors import ConfigurationError
from celery_resilience.policy import CLASS_DEFAULTS
from celery_resilience.settings import check_call_options, policy_of_call


def test_without_settings_the_defaults_hold() -> None:
    settings = Settings()

    assert settings.policies == CLASS_DEFAULTS
    assert settings.deadline_seconds is None
    assert settings.store_timeout_seconds * 1.5 <= 0.25


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"resilience_retry_polcy": None}, ["resilience_retry_polcy", "Did you mean 'resilience_retry_policy'?"]),
        ({"resilience_deadline_seconds": -5}, ["resilience_deadline_seconds=-5", "from 0.001 to"]),
        ({"resilience_schedule_poll_seconds": 0}, ["resilience_schedule_poll_seconds=0", "from 0.05 to 10"]),
        ({"resilience_schedule_poll_seconds": None}, ["resilience_schedule_poll_seconds=None", "must be set"]),
        ({"resilience_store_timeout_seconds": 60}, ["resilience_store_timeout_seconds=60", "0.01 to"]),
        ({"resilience_requeue_pause_seconds": -1}, ["resilience_requeue_pause_seconds=-1", "0 to 60"]),
        ({"resilience_visibility_timeout_seconds": 0}, ["resilience_visibility_timeout_seconds=0", "1 to 86400"]),
        ({"resilience_key_prefix": ""}, ["resilience_key_prefix=''", "'resilience'"]),
        ({"resilience_key_prefix": None}, ["resilience_key_prefix=None"]),
        ({"resilience_redis_url": 5}, ["resilience_redis_url=5", "redis://"]),
        ({"resilience_retry_policy": 3}, ["resilience_retry_policy=3", "RetryPolicy(max_attempts=…)"]),
        ({"resilience_failure_rules": 3}, ["rules=3", "function"]),
    ],
)
def test_a_wrong_setting_names_field_value_bound_and_remedy(given: dict[str, object], words: list[str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Settings.from_mapping(given)

    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_the_rules_of_the_app_are_named_by_their_setting_when_wrong() -> None:
    with pytest.raises(ConfigurationError) as caught:
        Settings.from_mapping({"resilience_failure_rules": 3})

    assert "resilience_failure_rules" in str(caught.value)


def test_settings_come_from_the_apps_configuration() -> None:
    app = Celery("shop", broker="redis://")
    app.conf.resilience_deadline_seconds = 30
    app.conf.update(resilience_retry_policy=RetryPolicy(max_attempts=9))

    assert runtime_of(app).settings.deadline_seconds == 30
    assert runtime_of(app).policies[FailureClass.NETWORK].max_attempts == 9


def test_settings_of_djangos_namespace_are_found() -> None:
    class Source:
        CELERY_BROKER_URL = "redis://"
        CELERY_RESILIENCE_DEADLINE_SECONDS = 40
        RESILIENCE_OF_SOMEBODY_ELSE = "not ours"

    app = Celery("shop")
    app.config_from_object(Source(), namespace="CELERY")

    assert runtime_of(app).settings.deadline_seconds == 40


def test_an_unknown_name_of_djangos_namespace_is_refused() -> None:
    class Source:
        CELERY_BROKER_URL = "redis://"
        CELERY_RESILIENCE_DEADLINE = 40

    app = Celery("shop")
    app.config_from_object(Source(), namespace="CELERY")

    with pytest.raises(ConfigurationError, match="deadline_seconds"):
        runtime_of(app)


def test_settings_in_capitals_without_a_namespace_are_found() -> None:
    class Source:
        BROKER_URL = "redis://"
        RESILIENCE_DEADLINE_SECONDS = 40

    app = Celery("shop")
    app.config_from_object(Source())

    assert runtime_of(app).settings.deadline_seconds == 40


def test_settings_given_late_before_the_first_use_count() -> None:
    app = Celery("shop", broker="redis://", task_cls=ResilientTask)

    @app.task
    def work() -> None: ...

    work.name  # noqa: B018  # finalizes the app
    app.conf.resilience_deadline_seconds = 30

    assert runtime_of(app).settings.deadline_seconds == 30


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_attempt": 3}, ["resilience['max_attempt']=3", "Did you mean 'max_attempts'?"]),
        ({"max_attempts": 0}, ["max_attempts=0", "from 1 to"]),
        ({"max_attempts": None}, ["max_attempts", "JSON"]),
        ({"deadline_seconds": -1}, ["deadline_seconds", "-1", "from 0.001 to"]),
        ({"deadline_seconds": "soon"}, ["deadline_seconds", "'soon'", "number"]),
        ({"strategy": lambda *_: 1}, ["strategy", "JSON"]),
        ({"base_seconds": 9, "cap_seconds": 3}, ["cap_seconds=3", "base_seconds=9"]),
        ({1: 3}, ["resilience[1]"]),
        (5, ["resilience=5", "mapping"]),
        ([("max_attempts", 3)], ["mapping"]),
    ],
)
def test_a_wrong_option_of_a_call_is_refused_at_the_call(options: object, words: list[str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        check_call_options(options)

    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_the_options_of_a_call_are_a_policy_and_a_deadline() -> None:
    options = check_call_options({"max_attempts": 3, "deadline_seconds": 60, "jitter": "none"})

    assert policy_of_call(options) == RetryPolicy(max_attempts=3, jitter="none")
    assert policy_of_call({"deadline_seconds": 60}) is None


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"dlq_enabled": "no"}, ["resilience_dlq_enabled", "'no'"]),
        ({"dlq_queue": "{task}.dlq"}, ["resilience_dlq_queue", "{queue}.dlq"]),
        ({"dlq_queue": "{queue}"}, ["resilience_dlq_queue"]),
        ({"dlq_queue": None}, ["resilience_dlq_queue", "must be set"]),
        ({"dlq_retention_days": 0}, ["resilience_dlq_retention_days", "0.01"]),
        ({"database_url": ""}, ["resilience_database_url"]),
    ],
)
def test_wrong_settings_of_dead_letters_are_refused(given: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Settings(**given)

    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_settings_cannot_change() -> None:
    with pytest.raises(AttributeError):
        Settings().deadline_seconds = 3  # type: ignore[misc]
