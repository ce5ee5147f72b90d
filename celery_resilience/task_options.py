"""The options of a task as its author wrote them: read without binding, checked when the task is bound."""

from __future__ import annotations

import inspect
from typing import Any

from .checks import near_miss, number, one_of, required, whole_number
from .errors import ConfigurationError
from .gates import Gates, check_gates
from .policy import policies_from
from .settings import check_rules

OPTIONS = (
    "retry_policy",
    "deadline_seconds",
    "failure_rules",
    "breaker",
    "when_open",
    "rate_limit_shared",
    "max_concurrent",
    "max_queue_length",
    "dlq",
    "when_dead",
    "max_crashes",
)
WHEN_DEAD = ("auto", "park", "fail")
OF_POLICY = ("max_attempts", "base_seconds", "cap_seconds", "floor_seconds")


def check_options(cls: Any, root: type) -> None:
    """Refuse, at bind time, options that cannot work and names that are a slip away from one of ours."""
    where = f"task {cls.name}: "
    policies_from(f"{where}retry_policy", cls.retry_policy)
    number(f"{where}deadline_seconds", cls.deadline_seconds, low=0.001, high=366 * 86400)
    check_rules(f"{where}failure_rules", option(cls, "failure_rules"))
    check_gates(where, gates_of(cls))
    whole_number(f"{where}max_queue_length", cls.max_queue_length, low=1, high=1_000_000_000)
    if not isinstance(cls.dlq, bool):
        raise ConfigurationError(f"{where}dlq", cls.dlq, "is not True or False", "Write False to have no letters.")
    required(f"{where}when_dead", cls.when_dead)
    one_of(f"{where}when_dead", cls.when_dead, WHEN_DEAD)
    required(f"{where}max_crashes", cls.max_crashes)
    whole_number(f"{where}max_crashes", cls.max_crashes, low=1, high=1000)
    autoretry_for = getattr(cls, "autoretry_for", None)
    if autoretry_for:
        attempts = 1 + cls.max_retries if isinstance(cls.max_retries, int) else 1000
        errors = autoretry_for if isinstance(autoretry_for, (list, tuple)) else [autoretry_for]
        names = ", ".join(f"{getattr(error, '__name__', error)}: 'TRANSIENT'" for error in errors)
        raise ConfigurationError(
            f"{where}autoretry_for", autoretry_for, "two deciders would fight over each failure",
            f"Remove it and its retry_* options and write: retry_policy=RetryPolicy(max_attempts={attempts}), "
            f"failure_rules={{{names}}}.",
        )  # fmt: skip
    for name in _own_names(cls, root):
        if name in OF_POLICY:
            value = getattr(cls, name, None)
            remedy = f"Write retry_policy=RetryPolicy({name}={value!r})."
            raise ConfigurationError(f"{where}{name}", value, "is a part of a retry policy, not an option", remedy)
        meant = near_miss(name, OPTIONS)
        if meant is not None:
            raise ConfigurationError(
                f"{where}{name}", getattr(cls, name, None), "is not an option", f"Did you mean {meant!r}?"
            )


def gates_of(cls: Any) -> Gates:
    """Read the gates from a task's options."""
    return Gates(
        task=str(cls.name),
        breaker=option(cls, "breaker"),
        when_open=option(cls, "when_open"),
        rate=option(cls, "rate_limit_shared"),
        places=option(cls, "max_concurrent"),
    )


def option(cls: type, name: str) -> Any:
    """Read an option as it was written: a function given as one is not a method of the task."""
    value = inspect.getattr_static(cls, name)
    return value.__func__ if isinstance(value, (staticmethod, classmethod)) else value


def _own_names(cls: type, root: type) -> set[str]:
    """Give the names that a user's classes add to a task."""
    theirs = [base for base in cls.__mro__ if issubclass(base, root) and base is not root]
    known = set(dir(root))
    return {name for base in theirs for name in vars(base) if not name.startswith("_") and name not in known}
