"""Names that mean the same in every library: the last resort for a class nobody has listed."""

from __future__ import annotations

import re

from celery_resilience.libraries.verdict import (
    AUTHENTICATION,
    NETWORK,
    PERMANENT,
    RATE_LIMITED,
    STRUCTURAL,
    SYSTEM,
    TRANSIENT,
    VALIDATION,
    FailureClass,
)

_WORDS: tuple[tuple[FailureClass, str], ...] = (
    (RATE_LIMITED, r"Rate_?Limit TooManyRequest Throttl FloodWait SlowDown QuotaExceeded RetryAfter"),
    (AUTHENTICATION, r"Auth(?!or(?!i)) Unauthori[sz]ed Forbidden Permission Credential AccessDenied Login"),
    (AUTHENTICATION, r"(Invalid|Expired)_?(Token|Api_?Key)"),
    (SYSTEM, r"OutOfMemory DiskFull Pool(Timeout|Exhausted|Limit) ResourceExhausted WorkerLost"),
    (
        NETWORK,
        r"(Connect|Read|Write)Timeout Connection Disconnect Network Socket Unreachable BrokenPipe D(ns|NS) Transport",
    ),
    (TRANSIENT, r"Timed?_?[Oo]ut Deadline Unavailable TryAgain Temporar Transient Retry InternalServer ServerError"),
    (TRANSIENT, r"Overload Deadlock Lock(ed)?(Error|Timeout)?$ Conflict Interrupted Busy"),
    (STRUCTURAL, r"Pars(e|ing) Decod Syntax Schema UnexpectedResponse Deseriali[sz]"),
    (VALIDATION, r"[Vv]alid BadRequest Malformed BadInput TooLarge TooLong Unprocessable Argument Encod"),
    (PERMANENT, r"NotFound NoSuch DoesNotExist Exists NotSupported Unsupported NotImplemented Gone Config NotAllowed"),
    (PERMANENT, r"Duplicate Integrity Missing Programming"),
)
_NAMES = tuple((re.compile("|".join(words.split())), answer) for answer, words in _WORDS)


def class_of_name(name: str) -> FailureClass | None:
    """Give the class that a class name such as `FooRateLimitError` speaks of, else None."""
    return next((answer for pattern, answer in _NAMES if pattern.search(name)), None)
