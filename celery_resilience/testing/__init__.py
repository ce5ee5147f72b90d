"""What users need to test their own tasks: a real Redis that starts in a fraction of a second, a clock to move.

Nothing here imports Celery; pytest users get the same as fixtures, see `celery_resilience.testing.plugin`.
"""

from celery_resilience.testing.clock import FakeClock
from celery_resilience.testing.servers import URL_VARIABLE, EmbeddedRedis, embedded_redis

__all__ = ["URL_VARIABLE", "EmbeddedRedis", "FakeClock", "embedded_redis"]
