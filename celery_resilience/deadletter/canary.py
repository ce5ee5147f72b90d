"""The canary: whether what was sent back so far does well enough for the rest to follow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import Celery

from ..clock import Clock
from ..errors import ResilienceError

if TYPE_CHECKING:
    from .desk import Desk

POLL_SECONDS = 0.2
ENOUGH_TO_JUDGE = 10


class Canary:
    """Judges a run after each batch. `first` were sent to prove themselves, within `wait_seconds`.

    `failure_rate` is the share that may die again; what died is known once it is collected.
    """

    def __init__(
        self,
        desk: Desk,
        app: Celery,
        clock: Clock,
        *,
        first: int | None,
        wait_seconds: float,
        failure_rate: float | None,
    ) -> None:
        self._desk = desk
        self._app = app
        self._clock = clock
        self._waits = first is not None
        self._wait_seconds = wait_seconds
        self._failure_rate = failure_rate

    def may_go_on(self, run: str, sent: int) -> str | None:
        """Give words that end the run, None if it may go on."""
        if self._waits:
            self._waits = False
            return self._first_ones(run)
        if self._failure_rate is None or sent < ENOUGH_TO_JUDGE:
            return None
        self._desk.collect()
        died = self._desk.died_again(run)
        if died / sent <= self._failure_rate:
            return None
        return f"{died} of {sent} died again, more than {self._failure_rate:.0%}"

    def _first_ones(self, run: str) -> str | None:
        ids = self._desk.task_ids(run)
        over = self._clock.monotonic() + self._wait_seconds
        while self._clock.monotonic() < over:
            self._desk.collect()
            if died := self._desk.died_again(run):
                return f"the canary failed: {died} of {len(ids)} died again"
            if all(self._succeeded(task_id) for task_id in ids):
                return None
            self._clock.sleep(POLL_SECONDS)
        return f"the canary did not succeed within {self._wait_seconds:.0f} s"

    def _succeeded(self, task_id: str) -> bool:
        """Look at the result: a failure that is there is the old one, for a new one would be a letter again."""
        return bool(self._app.AsyncResult(task_id).state == "SUCCESS")


def check_results(app: Celery) -> None:
    """Refuse a canary whose outcome nobody could see."""
    backend: Any = app.backend
    if type(backend).__name__ == "DisabledBackend":
        raise ResilienceError("A canary needs a result backend to see whether it succeeds: set result_backend.")
