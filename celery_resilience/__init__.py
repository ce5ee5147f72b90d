"""The reliability layer for Celery: inherit `ResilientTask` and every task ends in one known place."""

from __future__ import annotations

from .errors import ResilienceError
from .failure import Classifier, Failure, FailureClass
from .policy import NO_RETRY, RetryPolicy
from .runtime import runtime_of
from .settings import Settings
from .task import ResilientTask

__all__ = [
    "NO_RETRY",
    "Classifier",
    "Failure",
    "FailureClass",
    "ResilienceError",
    "ResilientTask",
    "RetryPolicy",
    "Settings",
    "runtime_of",
]
