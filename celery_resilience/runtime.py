"""One Runtime per app and process: it builds each service on first use.

A forked child starts with none: connections and caches of the parent are never shared.
"""

from __future__ import annotations

import contextlib
import functools
import os
import weakref
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from celery import Celery
from celery._state import _task_stack  # type: ignore[attr-defined]  # not in the stubs

from .backpressure import Backpressure
from .breaker import Breakers, CircuitBreaker, Transition
from .breaker_policy import BreakerPolicy
from .clock import SYSTEM_CLOCK, Clock
from .deadletter.queue import LIMIT_SECONDS, DeadLetterQueue
from .deliveries import Deliveries
from .errors import StoreUnavailableError
from .failure import Classifier
from .limits import Limits
from .pauses import Pauses
from .policy import RetryPolicies
from .redis_store import RedisStore
from .schedule import KEEP_RECORD_SECONDS, Schedule
from .settings import PREFIX, Settings
from .signals import breaker_changed
from .transport.announce import announce
from .transport.depth import queue_lengths
from .transport.target import broker_name, broker_target, family_of, redis_target

if TYPE_CHECKING:
    from .deadletter.desk import Desk
    from .deadletter.identity import Registration
    from .sql_store import Database

_ATTRIBUTE = "_resilience_runtime"
_apps: weakref.WeakSet[Celery] = weakref.WeakSet()


class Runtime:
    """The services of one app in this process; get it by `runtime_of(app)`."""

    def __init__(self, app: Celery, clock: Clock = SYSTEM_CLOCK, *, is_eager: bool = False) -> None:
        self._app = weakref.ref(app)
        self.clock = clock
        self.is_eager = is_eager
        self.settings = Settings.from_mapping(given_settings(app))
        self.family = family_of(app)
        self._successes: dict[str, int] = {}
        self._pauses = 0

    @cached_property
    def eager(self) -> Runtime:
        """The runtime of eager calls: it has no store and tells nobody, and its breakers are this process's own."""
        return self if self.is_eager else Runtime(self.app, self.clock, is_eager=True)

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
        """The Redis store, None if no Redis is configured anywhere, or for eager calls."""
        target = None if self.is_eager else redis_target(self.app, self.settings)
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

    @cached_property
    def broker_store(self) -> RedisStore | None:
        """The broker's own Redis with a patience of a second, None if the broker is not one Redis."""
        target = broker_target(self.app, self.settings)
        if target is None:
            return None
        return RedisStore(
            target.url,
            prefix=target.prefix,
            timeout_seconds=LIMIT_SECONDS,
            cooldown_seconds=self.settings.store_cooldown_seconds,
            options=target.options,
            ssl=target.ssl,
            clock=self.clock,
        )

    @cached_property
    def dead_letters(self) -> DeadLetterQueue:
        """The broker's queue of dead letters."""
        return DeadLetterQueue(
            self.app,
            self.broker_store,
            name=self.settings.dlq_queue,
            cooldown_seconds=self.settings.store_cooldown_seconds,
            clock=self.clock,
        )

    @cached_property
    def deliveries(self) -> Deliveries | None:
        """The record of redelivered and requeued messages, None if no Redis is configured."""
        if self.schedule is None:
            return None
        return Deliveries(self.schedule, requeue_seconds=self.settings.dlq_retention_days * 86400)

    @cached_property
    def database(self) -> Database:
        """The SQL database of letters and jobs; nothing is opened before it is used."""
        from .sql_store import Database, default_url  # senders of tasks need not load SQL

        return Database(self.settings.database_url or default_url(self.app.main or "celery"), self.clock)

    @cached_property
    def registration(self) -> Registration:
        """The fleet's word on which database is the right one."""
        from .deadletter.identity import Registration

        return Registration(self.store, self.database, self.app.main or "celery")

    @cached_property
    def desk(self) -> Desk:
        """The verbs on dead letters."""
        from .deadletter.desk import Desk
        from .deadletter.ledger import Ledger
        from .deadletter.redrive import Redrive

        retention_days = self.settings.dlq_retention_days
        keep = retention_days * 86400
        return Desk(
            self.app,
            self.dead_letters,
            Ledger(self.database),
            Redrive(self.app, self.broker_store, keep_seconds=keep, clock=self.clock),
            self.registration,
            retention_days=retention_days,
            open_breaker_of=self._open_breaker_of,
            clock=self.clock,
        )

    def _open_breaker_of(self, task: str) -> str | None:
        """Name the breaker that would refuse this task now; one that depends on arguments is not looked at."""
        option = getattr(type(self.app.tasks.get(task)), "breaker", None)
        if option is None and self.settings.default_breaker == "task":
            option = task
        names = [option] if isinstance(option, str) else option if isinstance(option, (list, tuple)) else []
        for name in names:
            with contextlib.suppress(StoreUnavailableError):
                found = self.breakers.find(name)
                if found is not None and found.state in ("open", "forced open"):
                    return str(name)
        return None

    def next_pause(self) -> float:
        """Give how long to hold a message before it goes back: longer each time, while nothing can be stored."""
        self._pauses = min(self._pauses + 1, 6)
        longest = max(self.settings.requeue_pause_seconds, self.settings.store_cooldown_seconds)
        return min(longest, self.settings.requeue_pause_seconds * 2.0 ** (self._pauses - 1))

    def forget_pauses(self) -> None:
        """Start with a short pause again: something was stored."""
        self._pauses = 0

    @cached_property
    def breakers(self) -> Breakers:
        """The breakers of the app; without Redis each process has its own."""
        return Breakers(
            self.store,
            self.clock,
            self.classifier,
            default=self.settings.breaker_policy,
            policies=self.settings.breakers,
            max_breakers=self.settings.max_breakers,
            on_transition=None if self.is_eager else self._on_transition,
        )

    @cached_property
    def limits(self) -> Limits | None:
        """The shared limits, None if no Redis is configured."""
        return None if self.store is None else Limits(self.store)

    @cached_property
    def pauses(self) -> Pauses | None:
        """The paused queues and tasks, None if no Redis is configured."""
        return None if self.store is None else Pauses(self.store, self.schedule)

    @cached_property
    def backpressure(self) -> Backpressure:
        """The lengths of queues, for producers that must not send more."""
        ask = functools.partial(queue_lengths, self.app)
        return Backpressure(ask, self.clock, self.settings.max_queue_length)

    def note_success(self, breaker: str) -> None:
        """Count a success for the retry budget of a breaker; the count goes along with the next retry."""
        if len(self._successes) > self.settings.max_breakers:
            self._successes.clear()  # names that come and go; a budget fills by time as well
        self._successes[breaker] = self._successes.get(breaker, 0) + 1

    def take_successes(self, breaker: str) -> int:
        """Give what was counted, and start again."""
        return self._successes.pop(breaker, 0)

    def breaker(self, name: str, policy: BreakerPolicy | None = None) -> CircuitBreaker:
        """Give the breaker of a name; `policy` speaks only when this process makes it."""
        return self.breakers.get(name, policy)

    def _on_transition(self, transition: Transition) -> None:
        """Wake what is parked for a breaker that has closed, and tell Celery's event stream of any change."""
        if transition.to_state in ("closed", "forced closed", "disabled"):
            with contextlib.suppress(StoreUnavailableError, ReferenceError):
                if self.schedule is not None:
                    self.schedule.wake(transition.breaker)
        app = self._app()
        if app is not None:  # a breaker may outlive the app that made it
            announce(app, f"resilience-breaker-{transition.event}", transition.as_dict())
        breaker_changed.send(sender=transition.breaker, transition=transition)

    @property
    def app(self) -> Celery:
        """The app this runtime belongs to."""
        app = self._app()
        if app is None:
            raise ReferenceError("The app of this runtime is gone.")
        return app


def runtime_of(app: Celery[Any]) -> Runtime:
    """Give the runtime of an app in this process; cheap, and safe to call often."""
    runtime: Runtime | None = app.__dict__.get(_ATTRIBUTE)
    if runtime is None:
        runtime = Runtime(app)
        use_runtime(app, runtime)
    return runtime


def runtime_here(app: Celery) -> Runtime:
    """Give the runtime for what is called here: within an eager call, at any depth, the one that asks nobody."""
    runtime = runtime_of(app)
    return runtime.eager if any(task.request.is_eager for task in _task_stack.stack) else runtime


def use_runtime(app: Celery[Any], runtime: Runtime | None) -> None:
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
