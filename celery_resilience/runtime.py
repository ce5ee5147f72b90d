"""One Runtime per app and process: it builds each service on first use.

A forked child starts with none: connections and caches of the parent are never shared.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from celery import Celery

from .clock import SYSTEM_CLOCK, Clock
from .failure import Classifier
from .policy import RetryPolicies
from .redis_store import RedisStore
from .schedule import KEEP_RECORD_SECONDS, Schedule
from .settings import PREFIX, Settings
from .transport.target import broker_name, family_of, redis_target

_ATTRIBUTE = "_resilience_runtime"
_apps: weakref.WeakSet[Celery] = weakref.WeakSet()


class Runtime:
    """The services of one app in this process; get it by `runtime_of(app)`."""

    def __init__(self, app: Celery, clock: Clock = SYSTEM_CLOCK) -> None:
        self._app = weakref.ref(app)
        self.clock = clock
        self.settings = Settings.from_mapping(given_settings(app))
        self.family = family_of(app)
        self._pauses = 0

    @cached_property
    def policies(self) -> RetryPolicies:
        """The app's retry policies per failure class."""
        return self.settings.policies

    @cached_property
    def classifier(self) -> Classifier:
        """The classifier with the app's rules."""
        rules = self.settings.failure_rules
        return Classifier(app_rules=rules) if rules else Classifier.default()

    @cached_property
    def store(self) -> RedisStore | None:
        """The Redis store, None if no Redis is configured anywhere."""
        target = redis_target(self.app, self.settings)
        if target is None:
            return None
        return RedisStore(
            target.url,
            prefix=target.prefix,
            timeout_seconds=self.settings.store_timeout_seconds,
            cooldown_seconds=self.settings.store_cooldown_seconds,
            options=target.options,
            ssl=target.ssl,
            clock=self.clock,
        )

    @cached_property
    def schedule(self) -> Schedule | None:
        """The schedule, None if no Redis is configured: retries then go by ETA."""
        target = redis_target(self.app, self.settings)
        if self.store is None or target is None:
            return None
        shared = target.shared and self.family == "redis"
        timeout = (self.app.conf.broker_transport_options or {}).get("visibility_timeout") or 0
        keep = max(KEEP_RECORD_SECONDS, 2.0 * float(timeout))
        name = self.family if shared else self.settings.broker_name or broker_name(self.app)
        return Schedule(self.store, self.clock, broker=name, shared=shared, keep_seconds=keep)

    def next_pause(self) -> float:
        """Give how long to hold a message before it goes back: longer each time, while nothing can be stored."""
        self._pauses = min(self._pauses + 1, 6)
        return min(30.0, self.settings.requeue_pause_seconds * 2.0 ** (self._pauses - 1))

    def forget_pauses(self) -> None:
        """Start with a short pause again: something was stored."""
        self._pauses = 0

    @property
    def app(self) -> Celery:
        """The app this runtime belongs to."""
        app = self._app()
        if app is None:
            raise ReferenceError("The app of this runtime is gone.")
        return app


def runtime_of(app: Celery) -> Runtime:
    """Give the runtime of an app in this process; cheap, and safe to call often."""
    runtime: Runtime | None = app.__dict__.get(_ATTRIBUTE)
    if runtime is None:
        runtime = Runtime(app)
        use_runtime(app, runtime)
    return runtime


def use_runtime(app: Celery, runtime: Runtime | None) -> None:
    """Set the runtime of an app, or have it built anew: for tests that bring their own clock or change settings."""
    app.__dict__[_ATTRIBUTE] = runtime
    _apps.add(app)


def given_settings(app: Celery) -> Mapping[str, Any]:
    """Collect the `resilience_*` names of an app's configuration, whatever its namespace and case."""
    conf = app.conf
    conf.finalize()
    namespace = getattr(app, "namespace", None)
    found: dict[str, Any] = {}
    for key in conf:
        name = str(key).lower()
        if namespace and not str(key).islower():  # in capitals and without the namespace it is somebody else's
            name = name.removeprefix(f"{namespace}_".lower()) if name.startswith(f"{namespace}_".lower()) else ""
        if name.startswith(PREFIX):
            found.setdefault(name, conf[key])
    return found


def _forget_after_fork() -> None:
    for app in list(_apps):
        app.__dict__[_ATTRIBUTE] = None


os.register_at_fork(after_in_child=_forget_after_fork)
