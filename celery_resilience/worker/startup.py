"""What is settled once, before a worker connects: settings are checked, the recommended broker options applied."""

from __future__ import annotations

import logging
from typing import Any

from celery import Celery, bootsteps

from ..errors import ConfigurationError, StoreUnavailableError
from ..events import Event, tell
from ..redis_store import RedisStore, safe_url
from ..runtime import Runtime, runtime_of

logger = logging.getLogger(__name__)


class StartupStep(bootsteps.Step):
    """Stops a worker whose settings cannot work, with a message that says what to write."""

    def __init__(self, worker: Any, **kwargs: Any) -> None:
        super().__init__(worker, **kwargs)
        runtime = runtime_of(worker.app)
        apply_transport_options(runtime)
        if runtime.store is None:
            remedy = "retries wait in workers' memory by ETA; set resilience_redis_url to have them wait in Redis"
            tell(logger, logging.WARNING, Event.REDIS_MISSED, remedy=remedy)
            refuse_what_needs_redis(runtime.app)
        else:
            warn_of_volatile(runtime.store)


def refuse_what_needs_redis(app: Celery) -> None:
    """Stop a worker without Redis whose tasks ask for what only Redis can give: limits of the fleet, and parking."""
    default = runtime_of(app).settings.default_breaker
    if default is not None:
        raise ConfigurationError(
            "resilience_default_breaker", default, "parks what breakers refuse, which needs a Redis",
            "Set resilience_redis_url, or leave the setting out.",
        )  # fmt: skip
    for task in app.tasks.values():
        for option in ("rate_limit_shared", "max_concurrent"):
            if getattr(task, option, None) is not None:
                _refuse(task.name, option, getattr(task, option), "is shared by the fleet")
        if getattr(task, "breaker", None) is not None and getattr(task, "when_open", None) == "park":
            _refuse(task.name, "when_open", "park", "sets messages aside")


def _refuse(task: str, option: str, value: object, what: str) -> None:
    remedy = 'Set resilience_redis_url, or write when_open="fail".' if option == "when_open" else ""
    raise ConfigurationError(
        f"task {task}: {option}", value, f"{what}, which needs a Redis", remedy or "Set resilience_redis_url."
    )


def apply_transport_options(runtime: Runtime) -> None:
    """Set the visibility timeout of a Redis broker to the one that was asked for."""
    seconds = runtime.settings.visibility_timeout_seconds
    if seconds is not None and runtime.family == "redis":
        conf = runtime.app.conf
        conf.broker_transport_options = {**(conf.broker_transport_options or {}), "visibility_timeout": seconds}


def warn_of_volatile(store: RedisStore) -> None:
    """Warn of a Redis that may forget what waits in it."""
    try:
        facts = {**_info(store, "persistence"), **_info(store, "memory")}
    except StoreUnavailableError as error:
        tell(logger, logging.WARNING, Event.STORE_LOST, error=error)
        return
    where = safe_url(store.url)
    if facts.get("aof_enabled") == "0":
        problem = "no AOF: a crash of Redis loses what waits there; set 'appendonly yes'"
        tell(logger, logging.WARNING, Event.SCHEDULE_ENDANGERED, store=where, problem=problem)
    policy = facts.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        problem = f"maxmemory-policy {policy} may evict what waits there; set 'maxmemory-policy noeviction'"
        tell(logger, logging.WARNING, Event.SCHEDULE_ENDANGERED, store=where, problem=problem)


def _info(store: RedisStore, section: str) -> dict[str, str]:
    answer = store.command("INFO", section)
    if isinstance(answer, dict):
        return {str(name): str(value) for name, value in answer.items()}
    lines = (answer.decode() if isinstance(answer, bytes) else str(answer)).splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)
