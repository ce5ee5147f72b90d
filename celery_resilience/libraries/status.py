"""What an HTTP status means for a caller who asks whether to try again."""

from __future__ import annotations

from collections.abc import Mapping

from celery_resilience.libraries.verdict import (
    AUTHENTICATION,
    PERMANENT,
    RATE_LIMITED,
    TRANSIENT,
    VALIDATION,
    FailureClass,
)

_BY_STATUS: Mapping[int, FailureClass] = {
    **dict.fromkeys((400, 411, 413, 414, 415, 416, 422, 431), VALIDATION),
    **dict.fromkeys((401, 403, 407, 419, 440, 498, 511), AUTHENTICATION),  # 419 and 440: session expired
    **dict.fromkeys((408, 409, 421, 423, 424, 425, 449, 460, 499), TRANSIENT),  # SDKs retry 409: mostly a lock
    **dict.fromkeys((420, 429), RATE_LIMITED),  # 420: Twitter's own
    **dict.fromkeys((501, 505, 506, 508, 510), PERMANENT),
}


def class_of_status(status: int, headers: Mapping[str, str]) -> FailureClass | None:
    """Give the class of a status from 400 to 599; None for any other, for it tells of no failure."""
    if not 400 <= status <= 599:
        return None
    usual = _BY_STATUS.get(status, PERMANENT if status < 500 else TRANSIENT)
    wish = headers.get("x-should-retry", headers.get("stripe-should-retry", "")).lower()
    if wish == "false":
        return PERMANENT if usual in (TRANSIENT, RATE_LIMITED) else usual
    if wish == "true":
        return usual if usual is RATE_LIMITED else TRANSIENT
    if status == 403 and _is_limit(headers):
        return RATE_LIMITED
    return usual


def _is_limit(headers: Mapping[str, str]) -> bool:
    # GitHub and others answer 403 to a client over its limit; only the headers tell it from a refusal.
    left = headers.get("x-ratelimit-remaining", headers.get("x-rate-limit-remaining"))
    return left == "0" or "retry-after" in headers
