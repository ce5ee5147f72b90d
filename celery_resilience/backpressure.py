"""Backpressure for producers: a queue that is too long takes no more, before the message is sent.

The lengths of all queues are asked of the broker together, at most once a second in a process; in between the last
answer serves, so a burst may pass a limit by what it sends in that second.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from .clock import Clock
from .errors import QueueFullError
from .events import Event, tell

logger = logging.getLogger(__name__)

SAMPLE_SECONDS = 1.0
KEEP_SECONDS = 60.0  # a queue that nobody has sent to for so long is asked for no more
MAX_QUEUES = 100  # in one question
_NEVER = float("-inf")


@dataclass(slots=True)
class _Sample:
    """The length of a queue when it was last answered, 0 before that; a kept one is never forgotten."""

    length: int = 0
    answered_at: float = _NEVER
    wanted_at: float = _NEVER
    is_kept: bool = False


class Backpressure:
    """Remembers lengths of queues for a moment.

    `ask` gives the lengths of queues; it may leave some out, and may raise anything. `queues` are asked for with the
    first question; others from the next one after they were first sent to.
    """

    def __init__(
        self, ask: Callable[[Sequence[str]], Mapping[str, int]], clock: Clock, queues: Iterable[str] = ()
    ) -> None:
        self._ask = ask
        self._clock = clock
        self._samples = {queue: _Sample(is_kept=True) for queue in queues}
        self._asked_at = _NEVER
        self._lock = threading.Lock()

    def check(self, queue: str, limit: int, wait_seconds: float = 0.0) -> None:
        """Let a message pass, or raise QueueFullError after waiting that long for room."""
        give_up_at = self._clock.monotonic() + wait_seconds
        while (length := self._length(queue)) >= limit:
            if self._clock.monotonic() >= give_up_at:
                raise QueueFullError(queue, length, limit)
            self._clock.sleep(min(SAMPLE_SECONDS, max(0.01, give_up_at - self._clock.monotonic())))

    def _length(self, queue: str) -> int:
        now = self._clock.monotonic()
        with self._lock:
            sample = self._samples.setdefault(queue, _Sample())
            sample.wanted_at = now
            if now - self._asked_at < SAMPLE_SECONDS:
                return sample.length
            self._asked_at = now
            queues = self._wanted(now)
        try:
            lengths = self._ask(queues)
        except Exception as error:
            # A broker that cannot be asked will say so when the message is sent.
            tell(logger, logging.WARNING, Event.LIMIT_UNASKED, limit="length of queues", error=error)
            lengths = dict.fromkeys(queues, 0)
        with self._lock:
            for name, length in lengths.items():
                known = self._samples.setdefault(name, _Sample(wanted_at=now))
                known.length, known.answered_at = length, now
        return sample.length

    def _wanted(self, now: float) -> list[str]:
        """Forget what nobody sends to; name what to ask for, the longest unanswered first."""
        self._samples = {
            name: one for name, one in self._samples.items() if one.is_kept or now - one.wanted_at < KEEP_SECONDS
        }
        return sorted(self._samples, key=lambda name: self._samples[name].answered_at)[:MAX_QUEUES]
