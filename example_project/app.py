"""The shop's Celery app, configured by SHOP_REDIS_URL and SHOP_DATABASE_URL."""

from __future__ import annotations

import os

from celery import Celery

from celery_resilience import ResilientTask

REDIS_URL = os.environ.get("SHOP_REDIS_URL", "redis://localhost:6379/0")

app = Celery("shop", broker=REDIS_URL, backend=REDIS_URL, task_cls=ResilientTask, include=["example_project.tasks"])
app.conf.update(
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=1,
    # Short, because every worker renews what it holds: the messages of a killed worker start again after 2 s.
    resilience_visibility_timeout_seconds=2,
    # Where dead letters are kept; without a setting it is a SQLite file in the user's state directory.
    resilience_database_url=os.environ.get("SHOP_DATABASE_URL"),
)
