"""`celery -A proj resilience schedule` lists and counts what waits, for people and for machines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from celery_resilience.testing import EmbeddedRedis, embedded_redis
from celery_resilience.transport.envelope import Envelope
from tests.support.stage import Stage, open_stage
from tests.support.waiting import wait_until
from tests.support.workers import ROOT


def celery(*words: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a celery command of the resilient app."""
    command = [sys.executable, "-m", "celery", "-A", "tests.apps.resilient", *words]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **env}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A schedule in which three messages wait: two retries and an ETA."""
    with embedded_redis(url="") as server, open_stage(tmp_path_factory.mktemp("logs"), server) as stage:
        stage.worker(concurrency=1)
        stage.script(["raise", "network"], resilience={"base_seconds": 200}, task_id="of-the-network")
        stage.script(["self.retry", {"countdown": 5400}], task_id="of-the-body", kwargs={"secret": "hunter2"})
        stage.script(["return", 1], countdown=2.5 * 86400, task_id="of-the-user")
        wait_until(lambda: stage.schedule.count() == 3, 10, "three waiting messages")
        yield stage


def test_people_get_a_table_with_the_next_due_first(stage: Stage) -> None:
    done = celery("resilience", "schedule", env=stage.env)

    assert done.returncode == 0, done.stderr
    first, titles, *rows = done.stdout.strip().splitlines()
    assert first == "3 waiting; delayed retries wait in the schedule (Redis)"
    assert titles.split() == ["due", "in", "kind", "task", "id", "attempt", "queue", "why"]
    assert [row.split()[5] for row in rows] == ["of-the-network", "of-the-body", "of-the-user"]
    assert "NETWORK: builtins.ConnectionError: down" in rows[0] or "NETWORK: ConnectionError: down" in rows[0]
    assert "asked by the body" in rows[1]
    assert "ETA 20" in rows[2]
    assert "1.5h" in rows[1]
    assert "2.5d" in rows[2]
    assert "hunter2" not in done.stdout


def test_machines_get_one_json_object(stage: Stage) -> None:
    done = celery("resilience", "schedule", "--json", env=stage.env)
    shown = json.loads(done.stdout)

    assert shown["count"] == 3
    assert shown["delayed_retries"] == "the schedule (Redis)"
    assert [row["task_id"] for row in shown["waiting"]] == ["of-the-network", "of-the-body", "of-the-user"]
    assert [row["attempt"] for row in shown["waiting"]] == [2, 2, 1]
    assert [row["kind"] for row in shown["waiting"]] == ["retry", "retry", "eta"]


def test_pages_can_be_asked_for(stage: Stage) -> None:
    done = celery("resilience", "schedule", "--json", "--limit", "1", "--after", "1", env=stage.env)
    shown = json.loads(done.stdout)

    assert shown["count"] == 3
    assert [row["task_id"] for row in shown["waiting"]] == ["of-the-body"]


def test_wrong_usage_is_exit_2(stage: Stage) -> None:
    assert celery("resilience", "schedule", "--limit", "0", env=stage.env).returncode == 2
    assert celery("resilience", "no-such-command", env=stage.env).returncode == 2


def test_an_empty_schedule_says_so(redis_server: EmbeddedRedis) -> None:
    done = celery("resilience", "schedule", env={"BROKER_URL": redis_server.url})

    assert done.returncode == 0
    assert done.stdout.strip() == "0 waiting; delayed retries wait in the schedule (Redis)"


def test_a_message_with_a_hostile_header_is_listed_like_any_other(redis_server: EmbeddedRedis, tmp_path: Path) -> None:
    hostile = json.dumps({"task_id": "hostile", "queue": "\ud800"})
    with open_stage(tmp_path, redis_server) as stage:
        stage.worker(pool="threads")
        asks = (stage.key(), ["self.retry", {"countdown": 3600}])
        stage.app.send_task("resilient.script", asks, task_id="hostile", headers={"resilience": hostile})
        wait_until(lambda: stage.schedule.count() == 1, 10, "the message in the schedule")
        done = celery("resilience", "schedule", env=stage.env)

    assert done.returncode == 0, done.stderr
    assert "hostile" in done.stdout


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_an_entry_that_no_terminal_can_show_is_listed_with_the_others(
    redis_server: EmbeddedRedis, tmp_path: Path, options: tuple[str, ...]
) -> None:
    letter = Envelope(b"[]", "application/json", "utf-8", {"id": "hostile", "task": "t"}, {}, "", "resilient")
    with open_stage(tmp_path, redis_server) as stage:
        stage.schedule.add_attempt(letter, "\ud800", "a", 2, 60)
        stage.schedule.add_attempt(replace(letter, headers={"id": "other", "task": "t"}), "resilient", "b", 2, 70)
        done = celery("resilience", "schedule", *options, env=stage.env)

    assert done.returncode == 0, done.stderr
    assert done.stdout.index("hostile") < done.stdout.index("other")


def test_without_redis_the_remedy_is_named(stage: Stage) -> None:
    done = celery("resilience", "schedule", env={"BROKER_URL": "amqp://127.0.0.1:1//", "RESULT_URL": "rpc://"})

    assert done.returncode == 1
    assert "resilience_redis_url" in done.stdout + done.stderr


def test_a_redis_that_is_away_is_an_error_in_one_line_without_its_password() -> None:
    done = celery("resilience", "schedule", env={"BROKER_URL": "redis://:hunter2@127.0.0.1:1/0"})

    assert done.returncode == 1
    assert "did not answer" in done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "hunter2" not in done.stdout + done.stderr


def test_a_wrong_setting_is_an_error_in_one_line() -> None:
    done = celery(
        "resilience", "schedule", env={"BROKER_URL": "redis://", "CONF": json.dumps({"resilience_deadline": 1})}
    )

    assert done.returncode == 1
    assert "Did you mean 'resilience_deadline_seconds'?" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_other_celery_commands_do_not_load_the_package() -> None:
    program = (
        "import sys; from importlib.metadata import entry_points\n"
        "[e.load() for e in entry_points(group='celery.commands') if e.name == 'resilience']\n"
        "print([n for n in sys.modules if n in ('celery_resilience.schedule', 'redis')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)

    assert done.stdout.strip() == "[]"
