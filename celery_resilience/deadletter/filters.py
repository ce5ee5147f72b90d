"""What an operator selects letters by: one value for Python, the command line and the dashboard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from sqlalchemy import ColumnElement, literal_column

from ..checks import one_of, whole_number
from ..errors import ConfigurationError
from .tables import LETTERS

State = Literal["waiting", "claimed", "requeued", "discarded", "any"]
STATES: tuple[State, ...] = ("waiting", "claimed", "requeued", "discarded", "any")
GROUPS = {
    "fingerprint": LETTERS.c.fingerprint,
    "error": LETTERS.c.error_name,
    "task": LETTERS.c.task,
    "class": LETTERS.c.failure_class,
    "queue": LETTERS.c.queue,
    "arguments": LETTERS.c.arguments,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LetterFilter:
    """Which letters; what is None does not count.

    `error` is the type of the exception, with or without its module. `since` and `until` bound the time of death, in
    seconds since the epoch. `text` is looked for in task, error, queue and the preview of arguments, in any case of
    letters; `%` and `_` are plain characters. `attempts_below` selects those with fewer attempts.
    """

    ids: tuple[str, ...] = ()
    task: str | None = None
    queue: str | None = None
    failure_class: str | None = None
    error: str | None = None
    fingerprint: str | None = None
    since: float | None = None
    until: float | None = None
    text: str | None = None
    attempts_below: int | None = None
    state: State = "waiting"

    def __post_init__(self) -> None:
        one_of("state", self.state, STATES)
        whole_number("attempts_below", self.attempts_below, low=1, high=10**9)
        ids: object = self.ids
        if not isinstance(ids, tuple):
            raise ConfigurationError("ids", ids, "is not a tuple of ids", "Write ids=(id,).")

    @property
    def is_empty(self) -> bool:
        """Say whether it selects everything of its state."""
        return self == LetterFilter(state=self.state)

    def as_dict(self) -> dict[str, Any]:
        """Give what is set, for JSON."""
        return {name: value for name, value in asdict(self).items() if value not in (None, ())}

    def conditions(self) -> list[ColumnElement[bool]]:
        """Give the conditions in SQL, every value bound and none written into the text."""
        table, found = LETTERS.c, []
        if self.state != "any":
            found.append(_is_state(self.state))
        if self.ids:
            found.append(table.id.in_(list(self.ids)))
        for column, value in (
            (table.task, self.task),
            (table.queue, self.queue),
            (table.failure_class, self.failure_class and self.failure_class.upper()),
            (table.fingerprint, self.fingerprint),
        ):
            if value is not None:
                found.append(column == value)
        return [*found, *self._about_error(), *self._about_bounds()]

    def _about_error(self) -> list[ColumnElement[bool]]:
        found = []
        if self.error is not None:
            found.append(LETTERS.c.error_name == self.error.rpartition(".")[2])
            if "." in self.error:
                found.append(LETTERS.c.error_type == self.error)
        if self.text is not None:
            found.append(LETTERS.c.text.like(f"%{_escaped(self.text.lower())}%", escape="\\"))
        return found

    def _about_bounds(self) -> list[ColumnElement[bool]]:
        found = []
        if self.since is not None:
            found.append(LETTERS.c.failed_at >= self.since)
        if self.until is not None:
            found.append(LETTERS.c.failed_at < self.until)
        if self.attempts_below is not None:
            found.append(LETTERS.c.attempt < self.attempts_below)
        return found


def selection_of(selection: LetterFilter | str | Sequence[str]) -> LetterFilter:
    """Read a selection: a filter, one id, or several."""
    if isinstance(selection, LetterFilter):
        return selection
    return LetterFilter(ids=(selection,) if isinstance(selection, str) else tuple(selection))


def _is_state(state: str) -> ColumnElement[bool]:
    # Written out, for only so does a planner see that the index of what waits will do.
    assert state in STATES
    return LETTERS.c.state == literal_column(f"'{state}'")


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
