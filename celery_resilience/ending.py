"""The end of a task in the process that ran it: whether it becomes a letter, and what that says.

Most ends come through `Outcome`; Celery itself fails a task outside of its body, when its result cannot be stored or a
hook raises, and tells only by a signal.
"""

from __future__ import annotations

import logging
import traceback
from typing import Any

from celery.signals import task_failure

from .attempts import HEADER, Attempts, attempts_for
from .deadletter import DeadLetter
from .decision import DeadReason
from .errors import shorten
from .events import Event, tell
from .runtime import Runtime, runtime_of
from .transport.envelope import original
from .worker.burial import BURIED, Death, letter_of, tell_of, waiting_group

logger = logging.getLogger(__name__)

MAX_FRAMES = 100
MAX_LINE = 4000


def is_lettered(task: Any, runtime: Runtime) -> bool:
    """Say whether what ends here becomes a letter."""
    return bool(runtime.settings.dlq_enabled and task.dlq)


def letter_for(task: Any, request: Any, runtime: Runtime, attempts: Attempts, death: Death) -> DeadLetter | None:
    """Make the letter of a run; None if letters are switched off, or no worker of ours received the message."""
    envelope = original(request.properties, request.delivery_info)
    if envelope is None or not is_lettered(task, runtime):
        return None
    return letter_of(
        runtime,
        envelope,
        death,
        attempts=attempts,
        delivery_tag=(request.properties or {}).get("delivery_tag"),
        worker=str(request.hostname or ""),
        group=waiting_group(task.backend, task.when_dead, request),
    )


def written(error: BaseException) -> str:
    """Write a traceback as text, before Celery clears it: the innermost frames, and no line without end."""
    try:
        lines = traceback.format_exception(type(error), error, error.__traceback__, limit=-MAX_FRAMES)
    except Exception:  # an exception of the user's that cannot be shown
        return ""
    return "".join(line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]}…\n" for line in lines)


def watch_failures() -> None:
    """Have a letter made of what fails outside of its body, too; may be called any number of times."""
    task_failure.connect(_on_failure, weak=False, dispatch_uid="resilience-letters")


def _on_failure(sender: Any = None, exception: Any = None, **_: Any) -> None:
    request = getattr(getattr(sender, "request_stack", None), "top", None)
    if request is None or not getattr(sender, "dlq", False) or sender._is_built_in:
        return
    if BURIED in request.__dict__ or request.called_directly or request.is_eager:
        return
    runtime = runtime_of(sender.app)
    attempts = attempts_for(request.__dict__.get(HEADER), request.id)
    death = Death(reason=DeadReason.PERMANENT, error=exception, traceback=written(exception))
    letter = letter_for(sender, request, runtime, attempts, death)
    if letter is None:
        return
    try:
        runtime.dead_letters.publish(letter)
    except Exception as error:  # Celery has failed the task already and will ack: nobody can be stopped from here
        fields = {"task_id": letter.task_id, "task": letter.task, "attempt": letter.attempt}
        tell(logger, logging.ERROR, Event.LETTER_NOT_STORED, **fields, error=shorten(error))
        return
    request.__dict__[BURIED] = True
    tell_of(sender.app, letter)
