"""pytest fixtures for users, found by pytest through the `pytest11` entry point.

Loaded at the start of every pytest run of everyone who installed the package: it must import next to nothing.

    def test_charge(resilience_redis):
        app.conf.update(broker_url=resilience_redis.url, result_backend=resilience_redis.url)
        ...

Set CELERY_RESILIENCE_REDIS_URL to use a server of your own; the database of that URL is emptied before each test.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from celery_resilience.testing.servers import EmbeddedRedis


@pytest.fixture(scope="session")
def resilience_redis_server() -> Iterator[EmbeddedRedis]:
    """One real Redis for the whole test run, on a private port; not emptied between tests."""
    from celery_resilience.testing.servers import embedded_redis

    with embedded_redis() as server:
        yield server


@pytest.fixture
def resilience_redis(resilience_redis_server: EmbeddedRedis) -> EmbeddedRedis:
    """The session's Redis, running and empty; `.url` is for Celery, `.client()` is a redis-py client."""
    if resilience_redis_server.is_ours:
        resilience_redis_server.start()  # a test may have killed it
    resilience_redis_server.flush()
    return resilience_redis_server
