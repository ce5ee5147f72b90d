"""Buries, in the worker's parent process, what no pool process can: the letter is stored, then the message is let go.

While no letter can be stored the messages stay with the worker, unacked, and are tried again: none is dropped.
"""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from celery import Celery

from ..crashpoints import crashpoint
from ..deadletter import DeadLetter
from ..errors import shorten
from ..events import Event, tell
from ..runtime import runtime_of
from .burial import tell_of
from .duty import Duty

logger = logging.getLogger(__name__)

AGAIN_SECONDS = 1.0
_undertakers: weakref.WeakKeyDictionary[Celery, Undertaker] = weakref.WeakKeyDictionary()


class Undertaker:
    """The burials of one worker; `again` brings a call into the thread that owns the connection to the broker."""

    def __init__(self, app: Celery, again: Callable[[Callable[[], None]], Any]) -> None:
        self._app = app
        self._again = again
        self._waiting: deque[tuple[DeadLetter, Callable[[], None]]] = deque()
        self._duty = Duty("letters", self._look)
        _undertakers[app] = self

    def bury(self, letter: DeadLetter, then: Callable[[], None]) -> None:
        """Store a letter, now or as soon as it can be, and then do the rest: ack, and fail what waits on the task."""
        problem = self._try(letter, then)
        if problem is not None:
            fields = {"task_id": letter.task_id, "task": letter.task, "attempt": letter.attempt}
            tell(logger, logging.WARNING, Event.LETTER_NOT_STORED, **fields, error=shorten(problem))
            self._waiting.append((letter, then))
            self._duty.start()

    def forget(self) -> None:
        """Let go of what waits: its connection is lost, and the broker delivers it again."""
        self._waiting.clear()

    def close(self) -> None:
        """End with the worker; what waits is still the broker's."""
        self._duty.stop()

    def _look(self) -> float:
        if self._waiting:
            self._again(self._bury_waiting)
        return AGAIN_SECONDS

    def _bury_waiting(self) -> None:
        """Try each once more: one that cannot be stored holds up no other, and a queue that is away says so at once."""
        for _ in range(len(self._waiting)):
            letter, then = self._waiting.popleft()
            if self._try(letter, then) is not None:
                self._waiting.append((letter, then))

    def _try(self, letter: DeadLetter, then: Callable[[], None]) -> Exception | None:
        """Store a letter and do the rest; gives what kept it from being stored."""
        try:
            runtime_of(self._app).dead_letters.publish(letter)
        except Exception as error:
            return error
        crashpoint("letter.stored")
        tell_of(self._app, letter)
        then()
        return None


def undertaker_of(app: Celery) -> Undertaker | None:
    """Give the undertaker of this process's worker, None where letters are switched off."""
    return _undertakers.get(app)
