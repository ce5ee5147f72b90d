"""What the worker's parent process does for resilience: one file per duty, installed as bootsteps."""

from __future__ import annotations

from celery import Celery

from .bulkhead import BulkheadStep
from .collector import CollectorStep
from .intake import IntakeStep
from .lease import LeaseStep
from .pause import PauseStep
from .scheduler import SchedulerStep
from .startup import StartupStep


def install(app: Celery) -> None:
    """Add our bootsteps to an app's worker; may be called any number of times."""
    app.steps["worker"].add(StartupStep)
    app.steps["consumer"].add(IntakeStep)
    app.steps["consumer"].add(LeaseStep)
    app.steps["consumer"].add(SchedulerStep)
    app.steps["consumer"].add(BulkheadStep)
    app.steps["consumer"].add(PauseStep)
    app.steps["consumer"].add(CollectorStep)
