"""An app of resilient tasks whose bodies do what their arguments say, and note each run in Redis.

BROKER_URL, RESULT_URL, VISIBILITY_TIMEOUT   see tests.apps.configuration
RECORD_URL      Redis in which bodies note their runs: a list `run:<key>` of JSON objects
CONF            JSON object laid over app.conf
RETRY_POLICY    JSON object of RetryPolicy fields for the whole app; quick by default
QUEUES          JSON list of {name, exchange, type, routing_key, arguments} for task_queues
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

import redis
from celery import Celery, Task
from celery.exceptions import Ignore, Reject, Retry
from celery.signals import task_failure, task_retry
from kombu import Exchange, Queue

from celery_resilience import FailureClass, ResilientTask, RetryPolicy
from celery_resilience.attempts import read_attempts
from celery_resilience.errors import PermanentError, RetryableError
from tests.apps.configuration import celery_app

QUICK = {"strategy": "fixed", "base_seconds": 0.1, "jitter": "none"}
_clients: dict[tuple[int, str], redis.Redis] = {}


class ExpectedError(Exception):
    """An error that a task lists in `throws`."""


class TenantError(Exception):
    """An error that only rules know."""


ERRORS: Mapping[str, Any] = {
    "network": lambda: ConnectionError("down"),
    "permanent": lambda: PermanentError("no use"),
    "validation": lambda: ValueError("not so"),
    "hint": lambda: RetryableError("later", retry_after=0.6),
    "long_hint": lambda: RetryableError("much later", retry_after=90_000),
    "expected": lambda: ExpectedError("as usual"),
    "tenant": lambda: TenantError("unknown"),
    "type": lambda: TypeError("wrong"),
    "ignore": lambda: Ignore(),
    "reject": lambda: Reject("unwanted", requeue=False),
    "requeue": lambda: Reject("again", requeue=True),
    "retry": lambda: Retry("the body's own"),
    "exit": lambda: SystemExit(1),
    "huge": lambda: ConnectionError("x" * 1_000_000),
    "unpicklable": lambda: _UnpicklableError(),
}


class _UnpicklableError(ConnectionError):
    def __reduce__(self) -> Any:
        raise TypeError("cannot be pickled")


class Ambiguous(str):
    """A text that cannot be compared, as arrays cannot."""

    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        raise ValueError("The truth value is ambiguous")


def record(url: str) -> redis.Redis:
    """Give this process's client of the record."""
    key = (os.getpid(), url)
    if key not in _clients:
        _clients[key] = redis.Redis.from_url(url, decode_responses=True)
    return _clients[key]


def build(env: Mapping[str, str] = os.environ, **options: Any) -> Celery:
    """Make the app with its tasks; a test and its workers call it with the same variables."""
    app = celery_app("resilient", env, **{"task_cls": ResilientTask, **options})
    app.conf.update(resilience_retry_policy=RetryPolicy(**json.loads(env.get("RETRY_POLICY") or json.dumps(QUICK))))
    app.conf.update(json.loads(env.get("CONF", "{}")))
    queues = json.loads(env.get("QUEUES", "[]"))
    if queues:
        app.conf.task_queues = [
            Queue(
                queue["name"],
                Exchange(queue.get("exchange", ""), type=queue.get("type", "direct")),
                routing_key=queue.get("routing_key", queue["name"]),
                queue_arguments=queue.get("arguments"),
            )
            for queue in queues
        ]
    define_tasks(app, env.get("RECORD_URL", ""))
    return app


def seen(task: Any, **more: Any) -> dict[str, Any]:
    """Give what a body sees of its message."""
    request = task.request
    return {
        "attempt": read_attempts(request.__dict__.get("resilience")).attempt,
        "retries": request.retries,
        "id": request.id,
        "root_id": request.root_id,
        "priority": (request.delivery_info or {}).get("priority"),
        "queue": (request.delivery_info or {}).get("routing_key"),
        "redelivered": bool((request.delivery_info or {}).get("redelivered")),
        "headers": {name: value for name, value in (request.headers or {}).items() if name != "resilience"},
        "expires": str(request.expires) if request.expires else None,
        "timelimit": request.timelimit,
        "stamps": request.stamps,
        "eta": request.eta,
        "reply_to": request.reply_to,
        "correlation_id": request.correlation_id,
        "worker": request.hostname,
        "pid": os.getpid(),
        "at": time.time(),
        **more,
    }


def follow(task: Any, step: Any) -> Any:
    """Do one step: [verb, value]."""
    verb, value = step
    if verb == "raise":
        raise ERRORS[value]()
    if verb == "sleep":
        time.sleep(value)
        return "slept"
    if verb == "sleep, raise":
        time.sleep(value[0])
        raise ERRORS[value[1]]()
    if verb == "self.retry":
        options = dict(value)
        if "eta_in" in options:
            options["eta"] = datetime.now(timezone.utc) + timedelta(seconds=options.pop("eta_in"))
        if "exc" in options:
            options["exc"] = ERRORS[options["exc"]]()
        returned = task.retry(**options)
        return f"went on after {type(returned).__name__}"
    if verb == "self.retry by position":
        task.retry(*value, countdown=0.1)
    if verb == "self.retry with an object":
        task.retry(args=(object(),), countdown=0.1)
    if verb == "self.retry with an ambiguous key":
        key, *steps = task.request.args
        task.retry(args=(Ambiguous(key), *steps), countdown=0.1)
    if verb == "try self.retry":
        try:
            task.retry(**value)
        except Retry:
            raise
        except Exception as error:
            raise ConnectionError(f"after {type(error).__name__}") from error
    return value


def define_tasks(app: Celery, url: str) -> None:
    """Define the tasks on an app, and on no other one of the process."""
    task = partial(app.task, shared=False)

    class Noted(ResilientTask):
        abstract = True

        def on_retry(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
            record(url).rpush(f"on_retry:{task_id}", f"{type(exc).__name__}:{bool(einfo)}")

        def on_failure(self, exc: Any, task_id: str, args: Any, kwargs: Any, einfo: Any) -> None:
            record(url).rpush(f"on_failure:{task_id}", type(exc).__name__)

    def script(self: Any, key: str, *steps: Any, **kwargs: Any) -> Any:
        """Follow the step of this run (by Celery's count of retries); the last one is for all further runs."""
        record(url).rpush(f"run:{key}", json.dumps(seen(self, kwargs=kwargs), default=str))
        return follow(self, steps[min(self.request.retries, len(steps) - 1)]) if steps else "done"

    def rule(exc: BaseException, context: Any) -> str | None:
        if isinstance(exc, TenantError):
            return "TRANSIENT" if context.kwargs.get("tenant") == "new" else "PERMANENT"
        return None

    task(script, name="resilient.script", bind=True, base=Noted)
    task(script, name="resilient.quiet", bind=True, base=Noted, throws=(ExpectedError,))
    task(script, name="resilient.ruled", bind=True, base=Noted, failure_rules=rule)
    task(script, name="resilient.early", bind=True, base=Noted, acks_late=False)
    task(script, name="resilient.thrice", bind=True, base=Noted, retry_policy=RetryPolicy(max_attempts=3))
    task(script, name="resilient.hurried", bind=True, base=Noted, deadline_seconds=1.0)
    task(script, name="resilient.unparked", bind=True, base=Noted, when_dead="fail")
    task(script, name="resilient.endless", bind=True, base=Noted, max_retries=None)
    task(
        script,
        name="resilient.stubborn",
        bind=True,
        base=Noted,
        retry_policy={FailureClass.VALIDATION: RetryPolicy(max_attempts=2)},
    )
    task(script, name="resilient.plain", bind=True, base=Task, acks_late=True)

    @task(name="resilient.flaky", bind=True)
    def flaky(self: Any, key: str, failures: int, value: Any = None) -> Any:
        """Fail that many times, then give the value; cheap enough for thousands."""
        attempt = read_attempts(self.request.__dict__.get("resilience")).attempt
        record(url).rpush(f"run:{key}", attempt)
        if attempt <= failures:
            raise ConnectionError(f"down at attempt {attempt}")
        return value

    @task(name="resilient.paced", bind=True)
    def paced(self: Any, key: str, *seconds: float) -> str:
        """Take a time that depends on how often it was started; notes start and end."""
        number = record(url).rpush(f"run:{key}", json.dumps(seen(self), default=str))
        time.sleep(seconds[min(number, len(seconds)) - 1])
        record(url).rpush(f"end:{key}", self.request.hostname)
        return "done"

    @task(name="resilient.add", bind=True)
    def add(self: Any, a: int, b: int, failures: int = 1) -> int:
        """Give the sum, at the second attempt."""
        if self.request.retries < failures:
            raise ConnectionError("not yet")
        return a + b

    @task(name="resilient.total", bind=True)
    def total(self: Any, numbers: list[int]) -> int:
        """Give the sum of a group's results, at the second attempt."""
        if self.request.retries < 1:
            raise ConnectionError("not yet")
        return sum(numbers)

    @task(name="resilient.note")
    def note(*args: Any, key: str = "note") -> None:
        """Note that it was called: an errback or a link."""
        record(url).rpush(f"note:{key}", len(args))

    @task(name="resilient.handing_on", bind=True)
    def handing_on(self: Any, way: str, steps: list[Any], *keys: str) -> list[str]:
        """Fail once, then send a script per key with this task's own headers, as one hands on a trace id."""
        if self.request.retries < 1:
            raise ConnectionError("not yet")
        scripts, headers = app.tasks["resilient.script"], self.request.headers
        if way == "apply_async":
            return [scripts.apply_async((key, *steps), headers=headers).id for key in keys]
        return [app.send_task(scripts.name, (key, *steps), headers=headers).id for key in keys]

    @task(name="resilient.replacing", bind=True)
    def replacing(self: Any, key: str) -> Any:
        """Fail once, then hand over to another task under the same id."""
        if self.request.retries < 1:
            raise ConnectionError("not yet")
        return self.replace(app.tasks["resilient.flaky"].si(key, 1, "replaced"))

    if url:
        task_retry.connect(
            lambda request, **_: record(url).incr(f"task_retry:{request.id}"), weak=False, dispatch_uid="record-retry"
        )
        task_failure.connect(
            lambda task_id, **_: record(url).incr(f"task_failure:{task_id}"), weak=False, dispatch_uid="record-failure"
        )


app = build()
