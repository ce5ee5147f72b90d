"""The tasks that overhead.py measures, resilient."""

from __future__ import annotations

from benchmarks._overhead_plain import DELAY_SECONDS, celery_app, fail_once, succeed
from celery_resilience import ResilientTask, RetryPolicy

app = celery_app("ours")

POLICY = RetryPolicy(strategy="fixed", base_seconds=DELAY_SECONDS, jitter="none")
app.task(name="ours.succeed", base=ResilientTask, bind=True, retry_policy=POLICY)(succeed)
app.task(name="ours.fail_once", base=ResilientTask, bind=True, retry_policy=POLICY)(fail_once)
