"""ResilientTask together with other bases: their `__call__` runs inside each attempt, once, and ours around it."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest
from celery import Celery

from celery_resilience.testing import embedded_redis
from tests.support.missing import missing
from tests.support.stage import Stage, open_stage
from tests.support.workers import WorkerProcess


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    def plain_sender(env: object) -> Celery:
        app = Celery("mixed", broker=server.url, backend=server.url, set_as_current=False)
        app.conf.task_default_queue = "mixed"
        return app

    with (
        embedded_redis(url="") as server,
        open_stage(tmp_path_factory.mktemp("logs"), server, app="tests.apps.mixed", make=plain_sender) as stage,
    ):
        yield stage


@pytest.fixture(scope="module", autouse=True)
def the_worker(stage: Stage) -> WorkerProcess:
    return stage.worker(concurrency=2)


@pytest.mark.parametrize(
    ("name", "context"),
    [
        ("flask", ["flask"]),
        ("super", ["super"]),
        ("below", ["below", "super"]),
        ("mixin", ["mixin"]),
    ],
)
def test_an_application_context_is_entered_once_per_attempt(stage: Stage, name: str, context: list[str]) -> None:
    key = stage.key()
    result = stage.app.send_task(f"mixed.{name}", (key,))

    assert result.get(timeout=15) == "done"
    assert [run["context"] for run in stage.runs(key)] == [context, context]


def test_a_failure_of_the_context_itself_is_retried(stage: Stage) -> None:
    key = stage.key()
    result = stage.app.send_task("mixed.failing", (key,))

    assert result.get(timeout=15) == "done"
    assert len(stage.runs(key)) == 1


def test_a_task_called_as_a_function_inside_a_body_is_a_plain_call(stage: Stage) -> None:
    key = stage.key()
    result = stage.app.send_task("mixed.direct", (key,))

    assert result.get(timeout=15) == "plain"
    assert len(stage.runs(key)) == 1


@pytest.mark.parametrize("name", ["django", "django_first"])
def test_djangos_task_is_retried_too(stage: Stage, name: str) -> None:
    if importlib.util.find_spec("django") is None:
        missing("Django", "pip install django (it is in the dev extra)")
    key = stage.key()
    result = stage.app.send_task(f"mixed.{name}", (key,))

    assert result.get(timeout=15) == "done"
    assert [run["attempt"] for run in stage.runs(key)] == [1, 2]
