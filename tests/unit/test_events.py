"""An event is one log line with its fields, readable by people and machines."""

from __future__ import annotations

import logging

import pytest

from celery_resilience.events import Event, tell

logger = logging.getLogger("tests.events")


def test_an_event_is_one_line_and_its_fields(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tests.events"):
        tell(logger, logging.INFO, Event.TASK_ENDED, task_id="1", reason="exhausted")

    record = caplog.records[0]
    assert record.getMessage() == "resilience-task-ended task_id=1 reason=exhausted"
    assert record.resilience == {"event": "resilience-task-ended", "task_id": "1", "reason": "exhausted"}  # type: ignore[attr-defined]


def test_a_silent_level_costs_no_text() -> None:
    class Costly:
        def __str__(self) -> str:
            raise AssertionError("was written though nobody listens")

    logger.setLevel(logging.ERROR)
    tell(logger, logging.INFO, Event.TASK_ENDED, value=Costly())
    logger.setLevel(logging.NOTSET)


@pytest.mark.parametrize("event", list(Event))
def test_events_are_in_the_past_tense_and_never_of_celerys_own_names(event: Event) -> None:
    assert str(event).startswith("resilience-")
    assert str(event).rpartition("-")[2].endswith(("ed", "lost", "kept", "unroutable", "stored"))


def test_percent_signs_in_a_field_stay_as_they_are(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "tests.events"):
        tell(logger, logging.INFO, Event.TASK_ENDED, error="100 %s")

    assert "100 %s" in caplog.text
