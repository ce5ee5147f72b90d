"""Which Redis holds the shared state of an app, read from its configuration without connecting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlsplit

from celery import Celery

from ..redis_store import SCHEMES
from ..settings import Settings

AMQP_SCHEMES = ("amqp", "amqps", "pyamqp", "librabbitmq")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A Redis and its relation to the broker; `shared` means that both are one server and database."""

    url: str
    prefix: str
    shared: bool
    options: Mapping[str, Any]
    ssl: Mapping[str, Any]


def broker_url(app: Celery) -> str:
    """Give the URL that workers consume from."""
    url: Any = app.conf.broker_read_url or "amqp://"
    return ";".join(url) if isinstance(url, (list, tuple)) else str(url)


def family_of(app: Celery) -> str:
    """Name the kind of broker: redis, amqp, or the URL's own scheme."""
    scheme = urlsplit(broker_url(app)).scheme or "amqp"
    if scheme in SCHEMES:
        return "redis"
    return "amqp" if scheme in AMQP_SCHEMES else scheme


def broker_name(app: Celery) -> str:
    """Name the broker by its first URL, without user and password; what is the same place has one name only."""
    parts, family = urlsplit(broker_url(app).split(";")[0]), family_of(app)
    if "socket" in parts.scheme or parts.scheme == "unix":
        query = parse_qs(parts.query)
        database = (query.get("virtual_host") or query.get("db") or ["0"])[0]
        return f"{family}:{parts.path}:{database.strip('/')}"
    host = (parts.hostname or "localhost").lower()
    host = "localhost" if host in ("127.0.0.1", "::1") else host
    port = parts.port or {"redis": 6379, "amqp": 5672}.get(family, 0)
    place = parts.path.strip("/") or ("0" if family == "redis" else "")
    return f"{family}:{host}:{port}/{place}"


def redis_target(app: Celery, settings: Settings) -> Target | None:
    """Choose the Redis: the one that was named, else the broker's, else the result backend's, else none."""
    broker, conf = broker_url(app), app.conf
    options = dict(conf.broker_transport_options or {})
    if settings.redis_url and settings.redis_url != broker:
        return Target(url=settings.redis_url, prefix=settings.key_prefix, shared=False, options=options, ssl={})
    if family_of(app) == "redis":
        return _of_broker(app, settings)
    backend = str(conf.result_backend or "")
    if urlsplit(backend).scheme in SCHEMES:
        backend_ssl = conf.redis_backend_use_ssl or {}
        backend_options = dict(conf.result_backend_transport_options or {})
        return Target(url=backend, prefix=settings.key_prefix, shared=False, options=backend_options, ssl=backend_ssl)
    return None


def broker_target(app: Celery, settings: Settings) -> Target | None:
    """Give the broker's own Redis if it is one and only one, whichever Redis holds the shared state."""
    target = _of_broker(app, settings) if family_of(app) == "redis" else None
    return target if target is not None and target.shared else None


def _of_broker(app: Celery, settings: Settings) -> Target:
    broker, conf = broker_url(app), app.conf
    options = dict(conf.broker_transport_options or {})
    return Target(
        url=broker,
        prefix=f"{options.get('global_keyprefix', '')}{settings.key_prefix}",
        shared=_one_server(conf, broker),
        options=options,
        ssl=conf.broker_use_ssl if isinstance(conf.broker_use_ssl, Mapping) else {},
    )


def _one_server(conf: Any, broker: str) -> bool:
    """Several plain URLs are alternatives, of which the worker may use any: then nothing may be pushed directly."""
    several = ";" in broker and not broker.startswith("sentinel")
    return not several and conf.broker_read_url == conf.broker_write_url
