"""What belongs to the death of a task, in whichever process it is found: the letter first, then everything else.

A letter that cannot be stored is the caller's to handle: he still has the message.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from celery import Celery

from ..attempts import Attempts
from ..deadletter import DeadLetter, make_letter
from ..decision import DeadReason
from ..errors import shorten
from ..events import Event, tell
from ..failure import Failure
from ..runtime import Runtime
from ..signals import task_dead_lettered
from ..transport.envelope import Envelope
from ..transport.queues import origin_queue

logger = logging.getLogger(__name__)

BURIED = "_resilience_buried"  # on a request whose letter is stored
DEAD = "DEAD"  # state of a task whose chord waits for its requeue or discard; not a ready one


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """How a message came to its end; `failure` where an exception was classified, else `error` speaks."""

    reason: DeadReason
    failure: Failure | None = None
    error: BaseException | str | None = None
    traceback: str = ""


def letter_of(
    runtime: Runtime,
    envelope: Envelope,
    death: Death,
    *,
    attempts: Attempts | None = None,
    delivery_tag: object = None,
    worker: str = "",
    group: str | None = None,
) -> DeadLetter:
    """Make the letter of a message that this app received; `group` is that of the chord which waits for it, if any."""
    delivery_info = {"exchange": envelope.exchange, "routing_key": envelope.routing_key}
    queue = attempts.queue if attempts is not None and attempts.queue else origin_queue(runtime.app, delivery_info)
    letter = make_letter(
        envelope,
        death.reason,
        failure=death.failure,
        error=death.error,
        traceback=death.traceback,
        attempts=attempts,
        queue=queue,
        unique=delivery_tag if isinstance(delivery_tag, str) else None,  # a number is one channel's, and comes again
        worker=worker,
        parked=group is not None,
        clock=runtime.clock,
    )
    return replace(letter, canvas={**letter.canvas, "group": group}) if group else letter


def tell_of(app: Celery, letter: DeadLetter) -> None:
    """Tell of a stored letter, once: the log, the task's own hook, the signal. Never raises."""
    fields = {"task_id": letter.task_id, "task": letter.task, "attempt": letter.attempt}
    told = {"reason": letter.reason, "letter": letter.id, "parked": letter.parked}
    tell(logger, logging.ERROR, Event.TASK_DEAD_LETTERED, **fields, **told)
    hook = getattr(app.tasks.get(letter.task or ""), "on_dead_letter", None)
    if hook is not None:
        try:
            hook(letter)
        except Exception as error:
            tell(logger, logging.ERROR, Event.HOOK_FAILED, **fields, hook="on_dead_letter", error=shorten(error))
    task_dead_lettered.send(sender=letter.task, letter=letter)


def waiting_group(backend: Any, when_dead: str, request: Any) -> str | None:
    """Name the group whose chord is to wait for a dead task, rather than to fail; None if the task just fails.

    It is empty where a task is parked that belongs to none. `request` is a Celery context, or anything with its fields.
    """
    is_joined = getattr(backend, "supports_native_join", False)
    if when_dead == "fail" or (when_dead == "auto" and not is_joined):
        return None
    if request.chord:
        return str(request.group or "")
    links = request.chain if isinstance(request.chain, (list, tuple)) else ()
    for options in map(_options, links):
        if options.get("chord"):
            return str(options.get("group_id") or "")
    return "" if when_dead == "park" else None


def store_dead(task: Any, request: Any, letter: DeadLetter) -> None:
    """Store the state of a parked task; a result backend that is away costs the state, not the letter."""
    if task.ignore_result or getattr(request, "ignore_result", False):
        return
    value = {"letter": letter.id, "reason": str(letter.reason), "error": f"{letter.error_type}: {letter.error_message}"}
    try:
        task.backend.store_result(letter.task_id, value, DEAD, request=request)
    except Exception as error:
        fields = {"task_id": letter.task_id, "task": letter.task, "attempt": letter.attempt}
        tell(logger, logging.WARNING, Event.STATE_NOT_STORED, **fields, error=shorten(error))


def _options(link: object) -> Mapping[str, Any]:
    options = link.get("options") if isinstance(link, Mapping) else None
    return options if isinstance(options, Mapping) else {}
