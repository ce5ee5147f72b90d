"""Backpressure for producers: a queue that is too long takes no more, before the message is sent.

The length is asked of the broker at most once a second per queue and process; in between the last answer serves, so a
burst may pass the limit by what it sends in that second.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from .clock import Clock
from .errors import QueueFullError
from .events import Event, tell

logger = logging.getLogger(__name__)

SAMPLE_SECONDS = 1.0


@dataclass(slots=True)
class _Sample:
    at: float
    length: int


class Backpressure:
    """Remembers lengths of queues for a moment; `ask` gives the length of a queue and may raise anything."""

    def __init__(self, ask: Callable[[str], int], clock: Clock) -> None:
        self._ask = ask
        self._clock = clock
        self._samples: dict[str, _Sample] = {}
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
            known = self._samples.get(queue)
            if known is not None and now - known.at < SAMPLE_SECONDS:
                return known.length
            self._samples[queue] = sample = _Sample(now, known.length if known else 0)
        try:
            sample.length = self._ask(queue)
        except Exception as error:
            # A broker that cannot be asked will say so when the message is sent.
            tell(logger, logging.WARNING, Event.LIMIT_UNASKED, limit=f"length of {queue}", error=error)
            sample.length = 0
        return sample.length
