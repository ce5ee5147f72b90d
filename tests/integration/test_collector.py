"""The collector in a worker: letters get into the ledger by themselves, and a database that is away disturbs nobody."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import pytest

from celery_resilience import runtime_of
from celery_resilience.deadletter.filters import LetterFilter
from celery_resilience.testing import EmbeddedRedis
from tests.support.letterbox import options
from tests.support.stage import Stage, open_stage
from tests.support.waiting import wait_until
from tests.support.workers import Pool


@pytest.fixture
def stage(tmp_path: Path, redis_server: EmbeddedRedis) -> Iterator[Stage]:
    conf = {"resilience_dlq_collect": True, "resilience_database_url": f"sqlite:///{tmp_path}/state/letters.db"}
    with open_stage(tmp_path, redis_server, conf=conf, **options()) as stage:
        yield stage


@pytest.mark.parametrize("pool", get_args(Pool))
def test_letters_of_every_pool_get_into_the_ledger(stage: Stage, pool: Pool) -> None:
    stage.worker(pool=pool, concurrency=20 if pool == "gevent" else 2)  # it acks every other second only
    ids = {stage.script(["raise", "validation"])[1].id for _ in range(20)}
    desk = runtime_of(stage.app).desk
    wait_until(lambda: desk.count(LetterFilter()) == 20, 20, lambda: f"20 letters, there are {desk.count()}")

    assert {letter.task_id for letter in desk.find(LetterFilter(), limit=50)} == ids
    assert desk.depth() == 0


def test_while_the_database_is_away_tasks_run_and_letters_wait(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("no directory can be here", encoding="utf-8")
    worker = stage.worker()
    _, failed = stage.script(["raise", "validation"])
    worker.wait_for_log("resilience-duty-failed duty=collector")

    assert stage.send("echo", 1).get(timeout=10) == [[1], {}]
    assert runtime_of(stage.app).dead_letters.depth() == 1
    (tmp_path / "state").unlink()
    desk = runtime_of(stage.app).desk
    wait_until(lambda: desk.find(LetterFilter(text=failed.id)), 20, "the letter in the ledger")


def test_a_locked_database_holds_up_the_collector_only(stage: Stage, tmp_path: Path) -> None:
    worker = stage.worker()
    desk = runtime_of(stage.app).desk
    stage.script(["raise", "validation"])
    wait_until(lambda: desk.count(LetterFilter()) == 1, 20, "the first letter")
    held = sqlite3.connect(tmp_path / "state" / "letters.db", isolation_level=None)
    held.execute("BEGIN EXCLUSIVE")
    stage.script(["raise", "validation"])
    for _ in range(3):  # children that die are replaced: the worker forks while its collector waits for the lock
        os.kill(worker.children()[0], signal.SIGKILL)
        assert stage.send("echo", 1).get(timeout=20) == [[1], {}]
    held.execute("ROLLBACK")
    held.close()

    wait_until(lambda: desk.count(LetterFilter()) == 2, 30, "the second letter")
    assert worker.is_alive
