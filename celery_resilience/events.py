"""Events: what happened, in the past tense, each name once.

An event is one log line with its fields; the same fields are in the record's `resilience` attribute for machines.
Arguments of tasks are never among them.
"""

from __future__ import annotations

import logging
from enum import Enum
from typing import Any


class Event(str, Enum):
    """Every event this version tells of."""

    ATTEMPT_NOT_STORED = "resilience-attempt-not-stored"
    ATTEMPT_SUPERSEDED = "resilience-attempt-superseded"
    BREAKER_CLOSED = "resilience-breaker-closed"
    BREAKER_FORCED = "resilience-breaker-forced"
    BREAKER_HALF_OPENED = "resilience-breaker-half-opened"
    BREAKER_OPENED = "resilience-breaker-opened"
    BREAKER_RELEASED = "resilience-breaker-released"
    BREAKER_STORE_LOST = "resilience-breaker-store-lost"
    BROKER_LOST = "resilience-broker-lost"
    CLASSIFICATION_FAILED = "resilience-classification-failed"
    DELIVERY_DUPLICATED = "resilience-delivery-duplicated"
    DUTY_FAILED = "resilience-duty-failed"
    ETA_KEPT = "resilience-eta-kept"
    FETCH_FAILED = "resilience-fetch-failed"
    FETCH_DEGRADED = "resilience-fetch-degraded"
    HANDLER_FAILED = "resilience-handler-failed"
    HOOK_FAILED = "resilience-hook-failed"
    LEASE_LOST = "resilience-lease-lost"
    LETTER_NOT_STORED = "resilience-letter-not-stored"
    LETTERS_PURGED = "resilience-letters-purged"
    LIMIT_UNASKED = "resilience-limit-unasked"
    MESSAGE_GARBLED = "resilience-message-garbled"
    MESSAGE_REJECTED = "resilience-message-rejected"
    MESSAGE_UNROUTABLE = "resilience-message-unroutable"
    PAUSE_PASSED = "resilience-pause-passed"
    QUEUE_PAUSED = "resilience-queue-paused"
    QUEUE_RESUMED = "resilience-queue-resumed"
    REDELIVERY_UNCHECKED = "resilience-redelivery-unchecked"
    REDIS_MISSED = "resilience-redis-missed"
    RULE_IGNORED = "resilience-rule-ignored"
    SCHEDULE_ENDANGERED = "resilience-schedule-endangered"
    STATE_NOT_STORED = "resilience-state-not-stored"
    STORE_LOST = "resilience-store-lost"
    STRATEGY_FAILED = "resilience-strategy-failed"
    TASK_CRASHED = "resilience-task-crashed"
    TASK_DEAD_LETTERED = "resilience-task-dead-lettered"
    TASK_ENDED = "resilience-task-ended"
    TASK_PARKED = "resilience-task-parked"

    def __str__(self) -> str:
        return self.value


def tell(logger: logging.Logger, level: int, event: Event, **fields: Any) -> None:
    """Log an event with its fields."""
    if logger.isEnabledFor(level):
        text = " ".join(f"{name}={value}" for name, value in fields.items())
        logger.log(level, "%s %s", event, text, extra={"resilience": {"event": event.value, **fields}})
