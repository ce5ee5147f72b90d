"""Fixtures of every tier, the two sizes, and the check that a run leaves no process behind."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from celery import Celery

from celery_resilience.testing import EmbeddedRedis, embedded_redis
from tests.apps.configuration import celery_app
from tests.support.missing import missing
from tests.support.postgres import Postgres, find_postgres
from tests.support.process_tree import adopt_orphans, bury, children_of, command_of
from tests.support.proof import IS_PROOF, Figures
from tests.support.rabbitmq import RabbitMQ, find_rabbitmq
from tests.support.workers import WorkerFactory

pytest_plugins = ["pytester"]

Sender = Callable[..., Celery]
_figures = Figures()


@pytest.fixture
def redis_server() -> Iterator[EmbeddedRedis]:
    """A Redis of this test alone, which it may kill, pause and fill; starts in about 50 ms."""
    with embedded_redis(url="") as server:
        yield server


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitMQ]:
    """A private RabbitMQ node for the whole run, started (4 s) when first asked for; use queue names of your own."""
    program = find_rabbitmq()
    if program is None:
        missing("RabbitMQ", "run `make servers`")
    with contextlib.closing(RabbitMQ(program)) as node:
        yield node


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    """A private PostgreSQL for the whole run, started (1 s) when first asked for; `.new_database()` is empty."""
    programs = find_postgres()
    if programs is None:
        missing("PostgreSQL", "run `make servers`")
    with contextlib.closing(Postgres(programs)) as server:
        yield server


@pytest.fixture(scope="session", autouse=True)
def own_state_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the default database of apps under test out of the user's home; workers inherit it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[WorkerFactory]:
    """Start worker processes: `worker("tests.apps.basic", env={"BROKER_URL": …})`; all end with the test."""
    with contextlib.closing(WorkerFactory(tmp_path)) as factory:
        yield factory


@pytest.fixture
def sender() -> Iterator[Sender]:
    """Make apps that send to workers: `sender(env, "basic")`; they hold on to no server once the test is over."""
    apps: list[Celery] = []

    def make(env: Mapping[str, str], name: str = "basic") -> Celery:
        apps.append(celery_app(name, env, set_as_current=False))
        return apps[-1]

    yield make
    for app in apps:
        # A result that is collected later would look for its server, for half a minute.
        app.backend.remove_pending_result = lambda result: result  # type: ignore[attr-defined]  # not in the stubs
        app.close()


@pytest.fixture(scope="session")
def figures() -> Figures:
    """The table printed at the end of the run."""
    return _figures


def pytest_configure() -> None:
    """Take in the orphans of killed workers, so that the check at the end sees them."""
    adopt_orphans()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the users of RabbitMQ and PostgreSQL; leave out the tests that only `make proof` runs."""
    for item in items:
        for server in {"rabbitmq", "postgres"}.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(getattr(pytest.mark, server))
    if not IS_PROOF:
        only_proof = [item for item in items if item.get_closest_marker("proof")]
        items[:] = [item for item in items if item not in only_proof]
        config.hook.pytest_deselected(items=only_proof)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail a run that leaves processes behind: the next one would suffer for it."""
    left = {pid: command_of(pid) for pid in children_of(os.getpid())}
    bury(list(left))
    living = {pid: command for pid, command in left.items() if command and "resource_tracker" not in command}
    if living:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
        session.config.stash[_left_behind] = [f"{pid}: {command}" for pid, command in living.items()]


_left_behind = pytest.StashKey[list[str]]()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Print what was measured and what was left behind."""
    for title, lines in {
        f"measured ({'full size' if IS_PROOF else 'short form'})": _figures.table(),
        "PROCESSES LEFT BEHIND": config.stash.get(_left_behind, []),
    }.items():
        if lines:
            terminalreporter.section(title)
            terminalreporter.write_line("\n".join(lines))
