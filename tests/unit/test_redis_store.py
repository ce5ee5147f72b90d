"""The store's client gives up soon, never tries again, and says what it wants in one kind of error."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from celery_resilience.clock import SystemClock
from celery_resilience.errors import ConfigurationError, StoreUnavailableError
from celery_resilience.redis_store import RedisStore, safe_url
from celery_resilience.testing import EmbeddedRedis

LIMIT_SECONDS = 0.25


class MovedClock(SystemClock):
    """The real clock, some seconds ahead."""

    ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


@pytest.fixture
def silent_url() -> Iterator[str]:
    """A server that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=50) as server:
        yield f"redis://127.0.0.1:{server.getsockname()[1]}/0"


@pytest.fixture
def closed_url() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return f"redis://127.0.0.1:{port}/0"


def timed_failure(store: RedisStore) -> float:
    began = time.perf_counter()
    with pytest.raises(StoreUnavailableError):
        store.command("PING")
    return time.perf_counter() - began


def test_a_silent_server_costs_at_most_250_ms_once_per_cool_down(silent_url: str) -> None:
    clock = MovedClock()
    store = RedisStore(silent_url, cooldown_seconds=5, clock=clock)
    first, second = timed_failure(store), timed_failure(store)
    clock.ahead = 5.1
    third = timed_failure(store)
    store.close()

    assert 0.1 < first < LIMIT_SECONDS
    assert second < 0.01
    assert 0.1 < third < LIMIT_SECONDS


def test_a_closed_port_costs_nearly_nothing(closed_url: str) -> None:
    assert timed_failure(RedisStore(closed_url)) < LIMIT_SECONDS


def test_an_unknown_host_is_one_kind_of_error_too() -> None:
    with pytest.raises(StoreUnavailableError, match=r"no-such-host\.invalid"):
        RedisStore("redis://no-such-host.invalid/0").command("PING")


def test_the_store_comes_back_after_the_cool_down(redis_server: EmbeddedRedis) -> None:
    clock = MovedClock()
    store = RedisStore(redis_server.url, clock=clock)
    store.command("PING")
    redis_server.kill()
    timed_failure(store)
    redis_server.start()
    timed_failure(store)
    clock.ahead = 5.1

    assert store.command("PING")
    store.close()


def test_a_refusal_is_told_and_does_not_start_a_cool_down(resilience_redis: EmbeddedRedis) -> None:
    store = RedisStore(resilience_redis.url)
    with pytest.raises(StoreUnavailableError, match="refused"):
        store.command("NO-SUCH-COMMAND")

    assert store.command("PING")
    store.close()


def test_a_script_that_was_flushed_is_sent_again(resilience_redis: EmbeddedRedis) -> None:
    store = RedisStore(resilience_redis.url)
    key = store.key("schedule:test", "due")
    store.run("schedule_due", [key], [1])
    resilience_redis.client().script_flush()

    assert len(store.run("schedule_due", [key], [1])) == 2
    store.close()


def test_keys_of_a_group_share_a_hash_tag() -> None:
    store = RedisStore("redis://", prefix="shop:resilience")

    assert store.key("schedule:redis", "due") == "shop:resilience:{schedule:redis}:due"


@pytest.mark.parametrize("scheme", ["unix", "redis+socket", "socket"])
def test_a_unix_socket_is_spoken_to_in_every_spelling(resilience_redis: EmbeddedRedis, scheme: str) -> None:
    if not resilience_redis.is_ours:
        pytest.skip("a server that was given by URL has no socket we know of")
    path = resilience_redis.socket_url.removeprefix("unix://").partition("?")[0]
    database = "db=3" if scheme == "unix" else "virtual_host=3"
    store = RedisStore(f"{scheme}://{path}?{database}")
    store.command("SET", "here", "1")
    with resilience_redis.client() as client:
        client.select(3)

        assert client.get("here") == b"1"
    store.close()


def test_the_database_of_the_url_is_used(resilience_redis: EmbeddedRedis) -> None:
    store = RedisStore(resilience_redis.url.rpartition("/")[0] + "/2")
    store.command("SET", "here", "1")

    assert resilience_redis.client().exists("here") == 0
    store.close()


def test_what_is_no_redis_url_is_refused_with_what_is() -> None:
    with pytest.raises(ConfigurationError, match="resilience_redis_url") as caught:
        RedisStore("http://host")

    assert "redis" in caught.value.remedy


def test_sentinel_needs_the_name_of_its_master() -> None:
    with pytest.raises(ConfigurationError, match="master_name"):
        RedisStore("sentinel://a:26379")

    RedisStore("sentinel://:pw@a:26379;sentinel://b:26379", options={"master_name": "mymaster"}).close()


@pytest.mark.parametrize(
    "url", ["redis://:secret@host:1/0", "redis://user:secret@host/0", "sentinel://:secret@a;sentinel://:secret@b"]
)
def test_a_password_never_shows(url: str) -> None:
    assert "secret" not in safe_url(url)


@pytest.mark.parametrize("url", ["redis://host/0?password=secret", "unix:///tmp/s?password=secret&db=1"])
def test_a_password_in_the_query_never_shows(url: str) -> None:
    assert "secret" not in safe_url(url)


def test_a_wrong_password_is_unavailability_and_does_not_show_it(redis_server: EmbeddedRedis) -> None:
    redis_server.client().config_set("requirepass", "right")
    url = redis_server.url.replace("redis://", "redis://:hunter2@")
    with pytest.raises(StoreUnavailableError) as caught:
        RedisStore(url).command("PING")

    assert "hunter2" not in str(caught.value)
