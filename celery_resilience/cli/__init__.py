"""Commands for `celery -A proj …`. Every celery command imports this module: it must stay light."""

from __future__ import annotations

from .breaker import breaker
from .resilience import resilience

__all__ = ["breaker", "resilience"]
