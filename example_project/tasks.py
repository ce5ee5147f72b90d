"""What the shop does with an order. Note what is not here: no try, no retry(), no list of exceptions."""

from __future__ import annotations

import os
import time

import requests

import example_project.journal  # noqa: F401  # it writes down what happens, by Celery's own signals
from celery_resilience import NO_RETRY, FailureClass, ResilientTask, RetryPolicy
from example_project.app import app

PAYMENTS_URL = os.environ.get("SHOP_PAYMENTS_URL", "http://127.0.0.1:8080")
TIMEOUT_SECONDS = 0.5


@app.task(bind=True, retry_policy=RetryPolicy(max_attempts=5, base_seconds=0.2, cap_seconds=2))
def charge(self: ResilientTask, order_id: int) -> str:
    """Charge an order; how a failure is met follows from its class."""
    return call("charge", order_id)


@app.task(
    bind=True,
    deadline_seconds=60,
    retry_policy={
        FailureClass.NETWORK: RetryPolicy(max_attempts=8, strategy="fixed", base_seconds=0.3, jitter="equal"),
        FailureClass.TRANSIENT: RetryPolicy(max_attempts=3, strategy="linear", base_seconds=0.2),
        FailureClass.UNKNOWN: NO_RETRY,
    },
)
def ship(self: ResilientTask, order_id: int) -> str:
    """Ship an order, with a policy for each class of failure."""
    return call("ship", order_id)


@app.task(bind=True)
def invoice(self: ResilientTask, order_id: int) -> str:
    """Write a long invoice: longer than the visibility timeout, and still only once."""
    time.sleep(5)
    return call("invoice", order_id)


def call(service: str, order_id: int) -> str:
    """Ask a service to do something for an order; raises what `requests` raises."""
    answer = requests.post(f"{PAYMENTS_URL}/{service}/{order_id}", timeout=TIMEOUT_SECONDS)
    answer.raise_for_status()
    return answer.text
