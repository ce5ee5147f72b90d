"""The resilient app, for which an ETA is far after one second: tests need not wait a minute."""

from __future__ import annotations

from celery_resilience.worker import strategy
from tests.apps.resilient import build

strategy.FAR_SECONDS = 1.0
app = build()
