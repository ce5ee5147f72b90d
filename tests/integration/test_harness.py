"""The tests' own tools do what their names say: workers, their deaths, and a private RabbitMQ."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import kombu
import pytest

from celery_resilience.testing import EmbeddedRedis
from tests.conftest import Sender
from tests.support.missing import missing
from tests.support.process_tree import look_at
from tests.support.rabbitmq import RabbitMQ
from tests.support.waiting import wait_until
from tests.support.workers import ROOT, Pool, WorkerFactory


def redis_env(server: EmbeddedRedis, **more: str) -> dict[str, str]:
    return {"BROKER_URL": server.url, "RESULT_URL": server.url, **more}


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_a_worker_of_each_pool_works_and_ends_when_told(
    redis_server: EmbeddedRedis, worker: WorkerFactory, sender: Sender, pool: Pool
) -> None:
    env = redis_env(redis_server)
    process = worker(pool=pool, env=env)

    assert sender(env).send_task("basic.add", (2, 3)).get(timeout=10) == 5
    assert len(process.children()) == (2 if pool == "prefork" else 0)
    assert process.terminate() == 0
    assert process.tree() == []


def test_a_killed_workers_message_is_run_by_another_after_the_visibility_timeout(
    redis_server: EmbeddedRedis, worker: WorkerFactory, sender: Sender
) -> None:
    env = redis_env(redis_server, VISIBILITY_TIMEOUT="2")
    first = worker(env=env)
    result = sender(env).send_task("basic.nap", (0.5,))
    first.wait_for_log("basic.nap")
    tree = first.tree()
    first.kill()

    assert len(tree) == 3
    assert all((seen := look_at(pid)) is None or seen.state in "ZX" for pid in tree)
    worker(env=env)
    assert result.get(timeout=20) == "awake"


def test_children_left_by_a_killed_parent_are_ended_too(redis_server: EmbeddedRedis, worker: WorkerFactory) -> None:
    process = worker(env=redis_env(redis_server))
    process.kill_parent()
    process.close()

    assert not process.is_alive
    assert process.tree() == []


def test_a_frozen_worker_does_nothing_until_thawed(
    redis_server: EmbeddedRedis, worker: WorkerFactory, sender: Sender
) -> None:
    env = redis_env(redis_server)
    process = worker(env=env)
    process.freeze()
    result = sender(env).send_task("basic.add", (1, 1))

    assert all((seen := look_at(pid)) is not None and seen.state == "T" for pid in process.tree())
    assert not result.ready()  # the message itself is gone from its list: Redis has handed it to the frozen socket
    process.thaw()
    assert result.get(timeout=10) == 2


def test_a_worker_that_cannot_start_fails_at_once_with_its_log(worker: WorkerFactory) -> None:
    with pytest.raises(AssertionError, match="no_such_module"):
        worker("tests.apps.no_such_module")


def test_a_private_rabbitmq_serves_quorum_queues_and_a_worker(
    rabbitmq: RabbitMQ, worker: WorkerFactory, sender: Sender
) -> None:
    arguments = {"x-queue-type": "quorum"}
    with kombu.Connection(rabbitmq.url) as connection:
        queue = connection.SimpleQueue(kombu.Queue("harness", routing_key="harness", queue_arguments=arguments))
        queue.put({"a": 1})
        message = queue.get(timeout=5)
        message.ack()
        queue.close()

    assert message.payload == {"a": 1}
    env = {"BROKER_URL": rabbitmq.url, "RESULT_URL": "rpc://"}
    worker(env=env)
    assert sender(env).send_task("basic.add", (2, 2)).get(timeout=10) == 4


def test_a_missing_server_is_a_skip_at_home_and_a_failure_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="make servers"):
        missing("RabbitMQ", "run `make servers`")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="make servers"):
        missing("RabbitMQ", "run `make servers`")


def run_apart(directory: Path, source: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run pytest with our conftest on a test file outside the tree, which nobody else collects."""
    (directory / "test_apart.py").write_text(source, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "tests.conftest"]
    command += ["-c", str(ROOT / "pyproject.toml"), str(directory / "test_apart.py")]
    environment = {**os.environ, **env}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_a_run_that_leaves_a_process_behind_fails(tmp_path: Path) -> None:
    source = "import subprocess\ndef test_leave():\n    global p\n    p = subprocess.Popen(['sleep', '20'])\n"
    done = run_apart(tmp_path, source)

    assert done.returncode == 1, done.stdout + done.stderr
    assert "PROCESSES LEFT BEHIND" in done.stdout
    pid = int(done.stdout.partition("LEFT BEHIND")[2].partition(": sleep 20")[0].split()[-1])
    os.kill(pid, 9)
    wait_until(lambda: (seen := look_at(pid)) is None or seen.state in "ZX", 5, "the end of what was left behind")


def test_proof_runs_what_is_marked_and_prints_the_figures(tmp_path: Path) -> None:
    source = (
        "import pytest\nfrom tests.support.proof import size\n"
        "@pytest.mark.proof\ndef test_only_in_full():\n    pass\n"
        "def test_both(figures):\n    figures.add('kills', wanted='any', measured=size(3, 200))\n"
    )
    short = run_apart(tmp_path, source, RESILIENCE_PROOF="")
    full = run_apart(tmp_path, source, RESILIENCE_PROOF="1")

    assert "1 passed, 1 deselected" in short.stdout
    assert "kills    any     3" in short.stdout
    assert "2 passed" in full.stdout
    assert "kills    any     200" in full.stdout
