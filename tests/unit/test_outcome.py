"""Acting on an outcome: whose header counts, and what may heal."""

from __future__ import annotations

from typing import Any

import pytest
from celery.app.task import Context

from celery_resilience.attempts import FIRST, HEADER, Attempts
from celery_resilience.errors import StoreUnavailableError
from celery_resilience.onward import attempts_of, heals
from celery_resilience.outcome import spread
from celery_resilience.testing import FakeClock


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


@pytest.mark.parametrize("chance", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("refused", [-5.0, 0.0, 0.01, 3.0, 60.0, 1e300, float("inf"), float("nan"), float("-inf")])
def test_a_park_is_a_moment_to_a_minute_or_so_whatever_the_refusal_says(refused: float, chance: float) -> None:
    delay = spread(refused, FakeClock(chance=chance))

    assert 0.05 <= delay <= 75
    assert delay >= min(refused, 60) or refused != refused


def test_a_refusal_that_is_obeyed_is_obeyed_in_full() -> None:
    assert spread(3.0, FakeClock(chance=0.0)) == 3.0
    assert spread(8.0, FakeClock(chance=1.0)) == 10.0
