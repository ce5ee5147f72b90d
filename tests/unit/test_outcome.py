"""Acting on an outcome: whose header counts, and what may heal."""

from __future__ import annotations

from typing import Any

import pytest
from celery.app.task import Context

from celery_resilience.attempts import FIRST, HEADER, Attempts
from celery_resilience.errors import StoreUnavailableError
from celery_resilience.onward import attempts_of, heals


def request(task_id: str, header: Any, *, is_eager: bool = False) -> Context:
    """Make a request as a worker does, or as an eager call does."""
    return Context(id=task_id, headers={HEADER: header}) if is_eager else Context({"id": task_id, HEADER: header})


@pytest.mark.parametrize("is_eager", [False, True])
def test_a_header_counts_for_the_task_it_names(is_eager: bool) -> None:
    attempts = Attempts(attempt=3, task_id="mine", lineage="l", queue="q")

    assert attempts_of(request("mine", attempts.to_header(), is_eager=is_eager)) == attempts


@pytest.mark.parametrize("is_eager", [False, True])
@pytest.mark.parametrize("owner", ["another", None])
def test_a_header_of_another_task_is_ignored(owner: str | None, is_eager: bool) -> None:
    header = Attempts(attempt=3, task_id=owner, lineage="l", queue="q", deadline_at=5.0).to_header()

    assert attempts_of(request("mine", header, is_eager=is_eager)) is FIRST


@pytest.mark.parametrize(
    ("problem", "is_passing"),
    [
        (StoreUnavailableError("away"), True),
        (ConnectionError("away"), True),
        (TypeError("Object of type object is not JSON serializable"), False),
        (ValueError("not so"), False),
    ],
)
def test_only_what_may_pass_sends_a_message_back(problem: Exception, is_passing: bool) -> None:
    assert heals(problem) is is_passing
