"""The letters of a stage, taken out of its DLQ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from celery import Celery

from celery_resilience import runtime_of
from celery_resilience.deadletter import DeadLetter
from tests.support.stage import Stage
from tests.support.waiting import wait_until


class LetterBox:
    """Takes letters as they come, and keeps them; one per stage."""

    def __init__(self, stage: Stage) -> None:
        self._queue = runtime_of(stage.app).dead_letters
        self.letters: list[DeadLetter] = []

    def look(self) -> list[DeadLetter]:
        """Take what is there, and give all that ever was."""
        while True:
            batch = self._queue.take(500)
            if not batch.letters:
                return self.letters
            self.letters += batch.letters
            batch.ack()

    def of(self, is_meant: str | Callable[[DeadLetter], bool], seconds: float = 20) -> DeadLetter:
        """Wait for the letter of a task id, or of a kind, and give it; fail if there are two."""

        def found() -> list[DeadLetter]:
            return [
                one for one in self.look() if (one.task_id == is_meant if isinstance(is_meant, str) else is_meant(one))
            ]

        wait_until(found, seconds, lambda: f"a letter of {is_meant}: {[(x.task_id, x.reason) for x in self.letters]}")
        assert len(found()) == 1, f"{len(found())} letters"
        return found()[0]


def dying(env: Mapping[str, str]) -> Celery:
    """Make the app of tests.apps.dying for a stage."""
    from tests.apps.dying import build

    return build(env, set_as_current=False)


def options(**more: Any) -> dict[str, Any]:
    """Give what `open_stage` needs for tests.apps.dying."""
    return {"app": "tests.apps.dying", "make": dying, **more}
