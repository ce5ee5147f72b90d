"""Commands for `celery -A proj …`. Every celery command imports this module: it must stay light."""

from __future__ import annotations

from .adopt import adopt_database
from .breaker import breaker
from .dlq import dlq
from .pause import list_pauses, pause, resume
from .requeue import requeue
from .resilience import resilience

__all__ = ["breaker", "dlq", "resilience"]

for _command in (pause, resume, list_pauses, adopt_database):
    resilience.add_command(_command)
dlq.add_command(requeue)
