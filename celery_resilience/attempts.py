"""The `resilience` header: attempts, trail and deadline that travel with a message.

The numbers grow only in the message that is stored next; a redelivery repeats its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .failure import Failure
from .settings import check_call_options

HEADER = "resilience"
MAX_BYTES = 8192
MAX_TRAIL = 10
MAX_ERROR = 200
MAX_NAME = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempts:
    """How far a task has come.

    `attempt` is the number of the run that this message asks for, from 1; `asked` counts those earlier runs that ended
    in the body's own `self.retry()`, which obey Celery's limit and not ours. `queue` is where the first message was,
    `task_id` whose header it is: a body may hand its own headers on to other tasks. `generation` counts the requeues;
    `spent` the attempts before the last one, which the policy counts no more; `requeue` is its id and its nonce.
    """

    attempt: int = 1
    asked: int = 0
    spent: int = 0
    generation: int = 0
    requeue: str | None = None
    parks: int = 0
    reserved: tuple[str, ...] = ()
    waits_for: tuple[str, ...] = ()
    owed: tuple[str, ...] = ()
    task_id: str | None = None
    lineage: str | None = None
    queue: str | None = None
    deadline_at: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    trail: tuple[Mapping[str, Any], ...] = ()

    @property
    def step(self) -> int:
        """Count the messages that this one follows: it grows with each that is stored, attempt or park."""
        return self.attempt - 1 + self.parks

    @property
    def failed_attempts(self) -> int:
        """Count the failures since the last requeue, if this run fails too."""
        return max(1, self.attempt - self.asked - self.spent)

    @property
    def previous_delay(self) -> float | None:
        """Give the delay before this attempt, for decorrelated jitter."""
        delay = self.trail[-1].get("delay") if self.trail else None
        return float(delay) if isinstance(delay, (int, float)) else None

    def after_failure(self, failure: Failure, *, delay: float, at: float, worker: str) -> Attempts:
        """Give the state of the next attempt after a classified failure."""
        entry = {
            "attempt": self.attempt,
            "class": failure.failure_class.value,
            "error": f"{failure.error_type}: {failure.message}"[:MAX_ERROR],
            "fingerprint": failure.fingerprint,
            "at": round(at, 3),
            "delay": round(delay, 3),
            "worker": worker,
        }
        trail = (*self.trail, entry)[-MAX_TRAIL:]
        return replace(self, attempt=self.attempt + 1, reserved=(), owed=(), trail=trail)

    def after_asking(self) -> Attempts:
        """Give the state of the next attempt after the body's own `self.retry()`."""
        return replace(self, attempt=self.attempt + 1, asked=self.asked + 1, reserved=(), owed=())

    def after_park(self, waits_for: str, reserved: tuple[str, ...] = (), owed: tuple[str, ...] = ()) -> Attempts:
        """Give the state of the same attempt after a park.

        `reserved` names the limits that it need not ask again, `owed` the retry budgets that it has not paid yet.
        """
        return replace(self, parks=self.parks + 1, reserved=reserved, owed=owed, waits_for=(waits_for,))

    def after_requeue(self, requeue: str, lineage: str, *, attempt: int, **known: Any) -> Attempts:
        """Give the state of a task that was sent back as this attempt, with what else is known of it.

        Numbers go on; what is allowed and the deadline start anew.
        """
        return replace(
            self,
            attempt=attempt,
            spent=max(0, attempt - 1 - self.asked),
            requeue=requeue or None,
            lineage=lineage,
            parks=0,
            reserved=(),
            waits_for=(),
            deadline_at=None,
            **known,
        )

    def to_header(self) -> str:
        """Give the header's text, at most 8 kB: the oldest of the trail go first, then what is owed or promised.

        Without those the message asks again for a slot, and its retry is not counted: late, or early, but not lost.
        """
        state = self
        while len(text := _dump(state)) > MAX_BYTES:
            if state.trail:
                state = replace(state, trail=state.trail[1:])
            elif state.owed:
                state = replace(state, owed=state.owed[:-1])
            elif state.reserved:
                state = replace(state, reserved=state.reserved[:-1])
            else:
                break
        return text


FIRST = Attempts()


def read_attempts(header: object) -> Attempts:
    """Read a header; one that is absent or cannot be ours starts at the first attempt."""
    if header is None or (isinstance(header, (str, bytes)) and len(header) > 2 * MAX_BYTES):
        return FIRST
    try:
        known = json.loads(header) if isinstance(header, (str, bytes)) else header
        return _load(known) if isinstance(known, Mapping) else FIRST
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        return FIRST


def attempts_for(header: object, task_id: object) -> Attempts:
    """Read the header of this task; one that a body has handed on from another starts at the first attempt."""
    attempts = read_attempts(header)
    return attempts if attempts.task_id == task_id else FIRST


def slot(name: str, at: float) -> str:
    """Write down that a rate keeps a slot for this message, at a time in seconds since the epoch.

    In the same way, that the message owes so much to the retry budget of a breaker.
    """
    return f"{name}@{at:.3f}"


def slot_of(written: str) -> tuple[str, float]:
    """Read which rate keeps a slot, and when; one that cannot be read is long over."""
    name, _, at = written.rpartition("@")
    try:
        return name, float(at)
    except ValueError:
        return name, 0.0


def _dump(state: Attempts) -> str:
    known = {
        "attempt": state.attempt,
        "asked": state.asked,
        "spent": state.spent,
        "generation": state.generation,
        "requeue": state.requeue,
        "parks": state.parks,
        "reserved": list(state.reserved),
        "waits_for": list(state.waits_for),
        "owed": list(state.owed),
        "task_id": state.task_id,
        "lineage": state.lineage,
        "queue": state.queue,
        "deadline_at": state.deadline_at,
        "options": dict(state.options),
        "trail": [dict(entry) for entry in state.trail],
    }
    return json.dumps({name: value for name, value in known.items() if value}, separators=(",", ":"))


def _load(known: Mapping[str, Any]) -> Attempts:
    return Attempts(
        attempt=max(1, int(known.get("attempt", 1))),
        asked=max(0, int(known.get("asked", 0))),
        spent=max(0, int(known.get("spent", 0))),
        generation=max(0, int(known.get("generation", 0))),
        requeue=_name(known.get("requeue")),
        parks=max(0, int(known.get("parks", 0))),
        reserved=tuple(filter(None, map(_name, known.get("reserved", ())))),
        waits_for=tuple(filter(None, map(_name, known.get("waits_for", ())))),
        owed=tuple(filter(None, map(_name, known.get("owed", ())))),
        task_id=_name(known.get("task_id")),
        lineage=_name(known.get("lineage")),
        queue=_name(known.get("queue")),
        deadline_at=_moment(known.get("deadline_at")),
        options=check_call_options(known.get("options", {})),
        trail=tuple(dict(entry) for entry in known.get("trail", ())),
    )


def _moment(value: Any) -> float | None:
    return float(value) if isinstance(value, (int, float)) and math.isfinite(value) and value > 0 else None


def _name(value: Any) -> str | None:
    """Accept a name that Redis and brokers can take: text that is UTF-8 and not endless."""
    if not isinstance(value, str) or not value or len(value) > MAX_NAME:
        return None
    value.encode("utf-8")  # raises UnicodeError, a ValueError, which makes the whole header a stranger's
    return value
