"""The Redis store: the one client of the package, impatient by design.

A call takes at most the time limit, is never retried, and after a failure the store is left alone for a cool-down:
a Redis that is gone slows a task once per cool-down and never raises anything but `StoreUnavailableError`.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urlsplit

import redis
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.retry import Retry
from redis.sentinel import Sentinel

from . import lua
from .clock import SYSTEM_CLOCK, Clock
from .errors import ConfigurationError, StoreUnavailableError
from .events import Event, tell

logger = logging.getLogger(__name__)

SCHEMES = ("redis", "rediss", "unix", "redis+socket", "socket", "sentinel", "valkey", "valkeys")


class RedisStore:
    """Runs scripts and commands on one Redis, within the time limit.

    Args: `url` as Celery writes it; `options` as in `broker_transport_options` (for Sentinel); `ssl` as in
    `broker_use_ssl`.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "resilience",
        timeout_seconds: float = 0.15,
        cooldown_seconds: float = 5.0,
        options: Mapping[str, Any] | None = None,
        ssl: Mapping[str, Any] | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.url = url
        self.prefix = prefix
        self.clock = clock
        self.cooldown_seconds = cooldown_seconds
        self._away_until = 0.0
        self._client = connect(url, timeout_seconds, options or {}, ssl or {})

    def key(self, group: str, *parts: str) -> str:
        """Name a key; all keys of a group share a hash tag, so that one script may use them together."""
        return ":".join((self.prefix, f"{{{group}}}", *parts))

    def run(self, script: str, keys: Sequence[str], args: Sequence[Any] = ()) -> Any:
        """Run `lua/<script>.lua`; raises StoreUnavailableError and nothing else."""
        text = lua.source(script)
        sha = hashlib.sha1(text.encode()).hexdigest()
        return self._guarded(lambda: self._evaluate(sha, text, keys, args))

    def command(self, *words: Any) -> Any:
        """Run one command; raises StoreUnavailableError and nothing else."""
        execute: Callable[..., Any] = self._client.execute_command
        return self._guarded(lambda: execute(*words))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _evaluate(self, sha: str, text: str, keys: Sequence[str], args: Sequence[Any]) -> Any:
        try:
            return self._client.evalsha(sha, len(keys), *keys, *args)
        except NoScriptError:
            return self._client.eval(text, len(keys), *keys, *args)

    def _guarded(self, call: Callable[[], Any]) -> Any:
        if self._away_until and self.clock.monotonic() < self._away_until:
            raise StoreUnavailableError(f"Redis at {safe_url(self.url)} is left alone after a failure.")
        try:
            answer = call()
        except ResponseError as error:
            # It answered, so waiting is not the remedy: full, read-only, or a script refused.
            raise StoreUnavailableError(f"Redis at {safe_url(self.url)} refused: {error}") from error
        except (RedisError, OSError) as error:
            self._away_until = self.clock.monotonic() + self.cooldown_seconds
            tell(logger, logging.WARNING, Event.STORE_LOST, store=safe_url(self.url), error=error)
            raise StoreUnavailableError(f"Redis at {safe_url(self.url)} did not answer: {error}") from error
        self._away_until = 0.0
        return answer


def connect(url: str, timeout_seconds: float, options: Mapping[str, Any], ssl: Mapping[str, Any]) -> redis.Redis:
    """Build a client that gives up within 1.5 × the time limit, without any retry. Nothing is sent yet."""
    limits: dict[str, Any] = {
        "socket_timeout": timeout_seconds,
        "socket_connect_timeout": timeout_seconds / 2,
        "retry": Retry(NoBackoff(), 0),
        "health_check_interval": 0,
    }
    scheme = url.split(";")[0].partition("://")[0]
    if scheme == "sentinel":
        return _through_sentinel(url, limits, options)
    if scheme not in SCHEMES:
        raise ConfigurationError(
            "resilience_redis_url", safe_url(url), "is not a Redis URL", f"Use one of {', '.join(SCHEMES)}."
        )
    try:
        return redis.Redis.from_url(_plain_url(url, scheme), **{**limits, **_tls(scheme, ssl)})
    except ValueError as error:
        raise ConfigurationError(
            "resilience_redis_url", safe_url(url), f"cannot be read: {error}", "Write redis://host:6379/0."
        ) from None


def _plain_url(url: str, scheme: str) -> str:
    """Write kombu's spellings the way redis-py reads them."""
    rest = url.partition("://")[2]
    if scheme in ("redis+socket", "socket", "unix"):
        return "unix://" + unquote(rest).replace("virtual_host=", "db=")
    return {"valkey": "redis", "valkeys": "rediss"}.get(scheme, scheme) + "://" + rest


def _tls(scheme: str, ssl: Mapping[str, Any]) -> dict[str, Any]:
    return dict(ssl) if scheme in ("rediss", "valkeys") else {}


def _through_sentinel(url: str, limits: dict[str, Any], options: Mapping[str, Any]) -> redis.Redis:
    name = options.get("master_name")
    if not name:
        raise ConfigurationError(
            "broker_transport_options", dict(options), "has no master_name, which Sentinel needs",
            'Add {"master_name": "mymaster"}.',
        )  # fmt: skip
    parts = [urlsplit(part) for part in url.split(";") if part.strip()]
    nodes = [(part.hostname or "localhost", part.port or 26379) for part in parts]
    first = parts[0]
    sentinel_limits = {**limits, **(options.get("sentinel_kwargs") or {})}
    sentinel: Any = Sentinel(nodes, sentinel_kwargs=sentinel_limits, **limits)  # type: ignore[no-untyped-call]  # redis-py
    client: redis.Redis = sentinel.master_for(
        name,
        db=int(first.path.strip("/") or 0),
        username=unquote(first.username) if first.username else None,
        password=unquote(first.password) if first.password else None,
    )
    return client


def safe_url(url: str) -> str:
    """Give a URL for messages: without its password, and without its query, which may hold one."""
    scheme, separator, rest = url.split(";")[0].partition("?")[0].partition("://")
    user, at, place = rest.rpartition("@")
    return f"{scheme}{separator}{user.partition(':')[0]}{':***@' if at else ''}{place}"
