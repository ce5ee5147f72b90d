"""The journal: what happened to each task, in a Redis list that the demo reads.

Only Celery's own signals and the front door of celery_resilience are used; a shop could do the same for its own log.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import redis
from celery.signals import task_failure, task_prerun, task_retry, task_success, worker_ready

from celery_resilience import Classifier
from example_project.app import app

KEY = "shop:journal"
_clients: dict[int, redis.Redis] = {}


def write(event: str, **fields: Any) -> None:
    """Append one line, with the time."""
    client = _clients.setdefault(os.getpid(), redis.Redis.from_url(app.conf.broker_url))  # one for each forked process
    client.rpush(KEY, json.dumps({"event": event, "at": time.time(), **fields}))


@worker_ready.connect
def _ready(**_: Any) -> None:
    write("ready")


@task_prerun.connect
def _started(task: Any, **_: Any) -> None:
    write("started", **_of(task.request, task))


@task_retry.connect
def _will_retry(sender: Any, request: Any, reason: Any, **_: Any) -> None:
    write("failed", **_of(request, sender), **_why(reason.exc), delay=reason.when)


@task_failure.connect
def _gave_up(sender: Any, exception: BaseException, **_: Any) -> None:
    write("gave up", **_of(sender.request, sender), **_why(exception))


@task_success.connect
def _done(sender: Any, **_: Any) -> None:
    write("done", **_of(sender.request, sender))


def _of(request: Any, task: Any) -> dict[str, Any]:
    travelled = json.loads(request.get("resilience") or "{}")  # the header that travels with a message
    return {"task": task.name.rpartition(".")[2], "order": request.args[0], "attempt": travelled.get("attempt", 1)}


def _why(error: BaseException) -> dict[str, Any]:
    failure = Classifier.default().classify(error)
    return {
        "failure_class": failure.failure_class.value,
        "retry_after": failure.retry_after,
        "error": failure.error_type.rpartition(".")[2],
        "status": getattr(getattr(error, "response", None), "status_code", None),
    }
