"""An app with one task whose options come from the variable OPTIONS; for tests of what stops a worker."""

from __future__ import annotations

import json
import os

from celery_resilience import RetryPolicy
from tests.apps.resilient import build

app = build()
options = json.loads(os.environ["OPTIONS"])
if "autoretry_for" in options:
    options["autoretry_for"] = (ConnectionError,)
if "policy" in options:
    options["retry_policy"] = RetryPolicy(**options.pop("policy"))


@app.task(name="wrong.work", **options)
def work() -> None:
    """Do nothing."""
