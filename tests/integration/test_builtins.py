"""Celery's own tasks become instances of `task_cls` too; they must go on as if nothing had happened."""

from __future__ import annotations

from pathlib import Path

import pytest
from celery import Celery, chord

from celery_resilience.testing import EmbeddedRedis
from tests.support.workers import WorkerFactory

POLLS = 10


@pytest.fixture
def env(tmp_path: Path, redis_server: EmbeddedRedis) -> dict[str, str]:
    return {"BROKER_URL": redis_server.url, "RESULT_URL": f"db+sqlite:///{tmp_path}/results.db"}


def test_a_chord_on_a_database_backend_finishes_after_ten_polls(worker: WorkerFactory, env: dict[str, str]) -> None:
    process = worker("tests.apps.database", env=env, concurrency=3)
    app = Celery("database", broker=env["BROKER_URL"], backend=env["RESULT_URL"], set_as_current=False)
    app.conf.update(task_default_queue="database", result_chord_retry_interval=0.2)
    slow = app.signature("database.slow", args=(3.5,), app=app)
    quick = app.signature("database.slow", args=(0.1,), app=app)
    result = chord([quick, slow], app=app)(app.signature("database.total", app=app))

    assert result.get(timeout=30) == pytest.approx(3.6)
    retried = [line for line in process.log().splitlines() if "celery.chord_unlock" in line and "retry" in line]
    assert len(retried) >= POLLS
    assert all("Retry in 0.2s" in line for line in retried)
    assert "resilience-" not in "".join(line for line in process.log().splitlines() if "chord_unlock" in line)
    app.close()


def test_what_a_built_in_waits_for_is_not_in_our_schedule(
    worker: WorkerFactory, env: dict[str, str], redis_server: EmbeddedRedis
) -> None:
    worker("tests.apps.database", env=env, concurrency=2)
    app = Celery("database", broker=env["BROKER_URL"], backend=env["RESULT_URL"], set_as_current=False)
    app.conf.update(task_default_queue="database", result_chord_retry_interval=0.2)
    result = chord([app.signature("database.slow", args=(1.0,), app=app)] * 2, app=app)(
        app.signature("database.total", app=app)
    )

    assert result.get(timeout=30) == pytest.approx(2.0)
    with redis_server.client() as client:
        assert client.keys("*schedule*") == []
    app.close()


def test_backend_cleanup_runs_plainly(worker: WorkerFactory, env: dict[str, str]) -> None:
    worker("tests.apps.database", env=env, concurrency=1)
    app = Celery("database", broker=env["BROKER_URL"], backend=env["RESULT_URL"], set_as_current=False)
    app.conf.task_default_queue = "database"

    assert app.send_task("celery.backend_cleanup").get(timeout=20) is None
    app.close()
