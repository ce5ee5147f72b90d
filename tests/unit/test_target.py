"""Which Redis holds the shared state is read from the configuration alone."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from celery_resilience import Settings
from celery_resilience.transport.target import broker_name, family_of, redis_target


def target(broker: Any, backend: str | None = None, settings: Settings | None = None, **conf: Any) -> Any:
    app = Celery("shop", broker=broker, backend=backend)
    app.conf.update(conf)
    return redis_target(app, settings or Settings())


def test_the_brokers_redis_serves_and_is_shared() -> None:
    found = target("redis://host:1/2", broker_transport_options={"global_keyprefix": "shop:"})

    assert (found.url, found.prefix, found.shared) == ("redis://host:1/2", "shop:resilience", True)


def test_a_redis_that_was_named_comes_first_and_is_not_shared() -> None:
    found = target("redis://host:1/2", settings=Settings(redis_url="redis://other/0", key_prefix="mine"))

    assert (found.url, found.prefix, found.shared) == ("redis://other/0", "mine", False)


def test_a_redis_that_was_named_and_is_the_broker_is_shared() -> None:
    assert target("redis://host/0", settings=Settings(redis_url="redis://host/0")).shared


def test_the_result_backends_redis_is_the_last_resort() -> None:
    found = target("amqp://", "redis://results/1")

    assert (found.url, found.shared) == ("redis://results/1", False)


@pytest.mark.parametrize("backend", [None, "rpc://", "db+sqlite:///x.db", "cache+memory://"])
def test_without_any_redis_there_is_none(backend: str | None) -> None:
    assert target("amqp://", backend) is None


def test_several_plain_brokers_are_alternatives_and_never_pushed_into() -> None:
    assert not target("redis://a/0;redis://b/0").shared
    assert not target(["redis://a/0", "redis://b/0"]).shared
    assert target("sentinel://a:26379;sentinel://b:26379", broker_transport_options={"master_name": "m"}).shared


def test_reading_here_and_writing_there_is_not_shared() -> None:
    assert not target(None, broker_read_url="redis://a/0", broker_write_url="redis://b/0").shared


@pytest.mark.parametrize(
    ("url", "family"),
    [
        ("redis://h", "redis"),
        ("rediss://h", "redis"),
        ("redis+socket:///tmp/s", "redis"),
        ("sentinel://h", "redis"),
        ("amqp://h", "amqp"),
        ("pyamqp://h", "amqp"),
        ("amqps://h", "amqp"),
        ("memory://", "memory"),
        ("sqs://", "sqs"),
        (None, "amqp"),
    ],
)
def test_the_kind_of_broker_is_known_by_its_url(url: str | None, family: str) -> None:
    assert family_of(Celery("shop", broker=url)) == family


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("redis://shop:hunter2@Cache.example:6380/2", "redis:cache.example:6380/2"),
        ("redis://127.0.0.1:6379/1", "redis:localhost:6379/1"),
        ("redis://localhost:6379/1", "redis:localhost:6379/1"),
        ("redis://[::1]:6379/1", "redis:localhost:6379/1"),
        ("rediss://:hunter2@h:6379/1?ssl_cert_reqs=none", "redis:h:6379/1"),
        ("redis+socket:///run/redis.sock", "redis:/run/redis.sock:0"),
        ("redis+socket:///run/redis.sock?virtual_host=3", "redis:/run/redis.sock:3"),
        ("redis://h:1", "redis:h:1/0"),
        ("amqp://guest:hunter2@rabbit:5672/shop", "amqp:rabbit:5672/shop"),
        ("amqp://guest:hunter2@rabbit:5672//", "amqp:rabbit:5672/"),
        ("redis://:hunter2@a:1/0;redis://:hunter2@b:1/0", "redis:a:1/0"),
        ("sqs://AKIA:hunter2@", "sqs:localhost:0/"),
    ],
)
def test_a_broker_is_named_by_kind_place_and_path_and_never_by_its_password(url: str, name: str) -> None:
    assert broker_name(Celery("shop", broker=url)) == name


def test_brokers_at_other_places_have_other_names() -> None:
    urls = ["redis://h:1/0", "redis://h:1/1", "redis://h:2/0", "redis://g:1/0", "amqp://h:1/0"]

    assert len({broker_name(Celery("shop", broker=url)) for url in urls}) == len(urls)


def test_tls_options_of_the_broker_travel_along() -> None:
    assert target("rediss://h", broker_use_ssl={"ssl_cert_reqs": "none"}).ssl == {"ssl_cert_reqs": "none"}
    assert target("rediss://h", broker_use_ssl=True).ssl == {}
