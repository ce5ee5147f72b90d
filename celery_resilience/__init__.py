"""The reliability layer for Celery: inherit `ResilientTask` and every task ends in one known place.

Names are loaded when first used: pytest and every `celery` command import this package, most of them for nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .breaker import CircuitBreaker
    from .breaker_policy import BreakerPolicy
    from .deadletter.letter import DeadLetter
    from .errors import ResilienceError
    from .failure import Classifier, Failure, FailureClass
    from .guarded import guarded
    from .policy import NO_RETRY, RetryPolicy
    from .runtime import runtime_of
    from .settings import Settings
    from .task import ResilientTask

_HOMES = {
    "NO_RETRY": "policy",
    "BreakerPolicy": "breaker_policy",
    "CircuitBreaker": "breaker",
    "Classifier": "failure",
    "DeadLetter": "deadletter.letter",
    "Failure": "failure",
    "FailureClass": "failure",
    "ResilienceError": "errors",
    "ResilientTask": "task",
    "RetryPolicy": "policy",
    "Settings": "settings",
    "guarded": "guarded",
    "runtime_of": "runtime",
}

__all__ = [
    "NO_RETRY",
    "BreakerPolicy",
    "CircuitBreaker",
    "Classifier",
    "DeadLetter",
    "Failure",
    "FailureClass",
    "ResilienceError",
    "ResilientTask",
    "RetryPolicy",
    "Settings",
    "guarded",
    "runtime_of",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
