"""How the test apps are configured: by variables, so that a test and its worker processes agree.

BROKER_URL, RESULT_URL    where; without RESULT_URL results are not kept
VISIBILITY_TIMEOUT        seconds after which Redis delivers an unacknowledged message again
                          (the sweep that does it then runs each second)
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from celery import Celery


def celery_app(name: str, env: Mapping[str, str] = os.environ, **options: Any) -> Celery:
    """Make an app as the variables say; `options` go to Celery (task_cls, include, …)."""
    app = Celery(name, broker=env.get("BROKER_URL", "memory://"), backend=env.get("RESULT_URL"), **options)
    app.conf.update(
        broker_connection_retry_on_startup=True,
        worker_hijack_root_logger=False,
        task_default_queue=f"{name}",
        broker_transport_options=_transport_options(env),
        worker_prefetch_multiplier=1,
        resilience_dlq_collect=False,  # a test that looks for letters finds them in the DLQ
    )
    return app


def _transport_options(env: Mapping[str, str]) -> dict[str, Any]:
    timeout = env.get("VISIBILITY_TIMEOUT")
    if timeout is None:
        return {}
    # The options of the sweep that puts unacknowledged messages back; their defaults make it run every 100 s.
    return {
        "visibility_timeout": float(timeout),
        "unacked_restore_interval": 1,
        "unacked_restore_throttle": 1,
    }
