"""Failures made to order, for the layers that do not look at exceptions."""

from __future__ import annotations

from celery_resilience.failure import Failure, FailureClass


def failure_of(
    kind: FailureClass = FailureClass.NETWORK, retry_after: float | None = None, message: str = "no"
) -> Failure:
    """Make a classified failure."""
    return Failure(
        failure_class=kind,
        retry_after=retry_after,
        fingerprint="0123456789abcdef",
        reason="made for a test",
        error_type="tests.Made",
        message=message,
    )
