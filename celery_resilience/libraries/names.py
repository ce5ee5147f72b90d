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

_NAMES: tuple[tuple[re.Pattern[str], FailureClass], ...] = tuple(
    (re.compile(pattern), answer)
    for pattern, answer in (
        (r"Rate_?Limit|TooManyRequest|Throttl|FloodWait|SlowDown|QuotaExceeded|RetryAfter", RATE_LIMITED),
        (r"Auth(?!or(?!i))|Unauthori[sz]ed|Forbidden|Permission|Credential|(Invalid|Expired)_?(Token|Api_?Key)|AccessDenied"
         r"|Login", AUTHENTICATION),
        (r"OutOfMemory|DiskFull|Pool(Timeout|Exhausted|Limit)|ResourceExhausted|WorkerLost", SYSTEM),
        (r"ConnectTimeout|ReadTimeout|WriteTimeout|Connection|Disconnect|Network|Socket|Unreachable|BrokenPipe|Dns|DNS"
         r"|Transport", NETWORK),
        (r"Timed?_?[Oo]ut|Deadline|Unavailable|TryAgain|Temporar|Transient|Retry|InternalServer|ServerError|Overload"
         r"|Deadlock|Lock(ed)?(Error|Timeout)?$|Conflict|Interrupted|Busy", TRANSIENT),
        (r"Pars(e|ing)|Decod|Syntax|Schema|UnexpectedResponse|Deseriali[sz]", STRUCTURAL),
        (r"Valid|BadRequest|Malformed|BadInput|TooLarge|TooLong|Unprocessable|Argument|Encod", VALIDATION),
        (r"NotFound|NoSuch|DoesNotExist|Exists|NotSupported|Unsupported|NotImplemented|Gone|Config|NotAllowed|Duplicate"
         r"|Integrity|Missing|Programming", PERMANENT),
    )
)  # fmt: skip


def class_of_name(name: str) -> FailureClass | None:
    """Give the class that a class name such as `FooRateLimitError` speaks of, else None."""
    return next((answer for pattern, answer in _NAMES if pattern.search(name)), None)
