"""Commands for `celery -A proj …`. Every celery command imports this module: it must stay light."""

from __future__ import annotations

from .breaker import breaker
from .pause import list_pauses, pause, resume
from .resilience import resilience

__all__ = ["breaker", "resilience"]

for _command in (pause, resume, list_pauses):
    resilience.add_command(_command)
