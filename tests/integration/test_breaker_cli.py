"""`celery breaker …`: what an operator sees and does, and one clear line when it cannot be done."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest
from celery import Celery
from celery.bin.base import CLIContext
from click.testing import CliRunner, Result

from celery_resilience import BreakerPolicy, ResilientTask, runtime_of
from celery_resilience.breaker import CircuitBreaker, Permit, Refusal
from celery_resilience.cli.breaker import breaker as commands
from celery_resilience.runtime import use_runtime
from celery_resilience.testing import EmbeddedRedis
from tests.support.breakers import fail, succeed

Run = Callable[..., Result]


@pytest.fixture
def app(resilience_redis: EmbeddedRedis) -> Celery:
    app = Celery("shop", broker=resilience_redis.url, set_as_current=False)
    app.conf.resilience_breakers = {"payments": BreakerPolicy(minimum_calls=2)}
    return app


@pytest.fixture
def run(app: Celery) -> Run:
    def invoke(*words: str, answer: str | None = None) -> Result:
        return CliRunner().invoke(
            commands, words, input=answer, obj=CLIContext(app=app, no_color=True, workdir=None, quiet=False)
        )

    return invoke


@pytest.fixture
def payments(app: Celery) -> CircuitBreaker:
    breaker = runtime_of(app).breaker("payments")
    fail(breaker, 2)
    return breaker


def test_a_list_says_what_is_open_and_why(run: Run, payments: CircuitBreaker, app: Celery) -> None:
    succeed(runtime_of(app).breaker("mail"))
    result = run("list")

    assert result.exit_code == 0
    assert result.output.splitlines()[0].split() == ["breaker", "state", "calls", "failures", "since", "note"]
    assert "payments" in result.output
    assert "2 of 2 calls failed; probes in" in result.output
    assert {row["name"]: row["state"] for row in json.loads(run("list", "--json").output)} == {
        "payments": "open",
        "mail": "closed",
    }


def test_nothing_known_is_nothing_wrong(run: Run) -> None:
    assert (run("list").exit_code, run("list").output) == (0, "No breaker was used yet.\n")
    assert json.loads(run("list", "--json").output) == []


def test_one_is_shown_with_its_policy(run: Run, payments: CircuitBreaker) -> None:
    shown = json.loads(run("show", "payments", "--json").output)

    assert (shown["state"], shown["policy"]["minimum_calls"]) == ("open", 2)
    assert "policy.minimum_calls" in run("show", "payments").output


def test_history_is_of_one_or_of_all(run: Run, payments: CircuitBreaker, app: Celery) -> None:
    runtime_of(app).breaker("mail").reset(who="ann", why="x")

    assert [row["breaker"] for row in json.loads(run("history", "--json").output)] == ["mail", "payments"]
    assert [row["event"] for row in json.loads(run("history", "payments", "--json").output)] == ["opened"]
    assert "closed → open" in run("history", "payments").output


@pytest.mark.parametrize(
    ("command", "state", "admitted"),
    [("open", "forced open", Refusal), ("close", "forced closed", Permit), ("disable", "disabled", Permit)],
)
def test_an_override_needs_a_reason_and_a_yes(
    run: Run, payments: CircuitBreaker, command: str, state: str, admitted: type
) -> None:
    result = run(command, "payments", "--reason", "night shift", "--for", "10m", "--yes")

    assert (result.exit_code, result.output) == (0, f"payments: {state}\n")
    seen = payments.snapshot()
    assert seen.override_why == "night shift"
    assert "@" in seen.override_who
    assert 590 < seen.override_until - seen.since < 610
    assert isinstance(payments.admit(), admitted)


def test_reset_closes(run: Run, payments: CircuitBreaker) -> None:
    assert run("reset", "payments", "--reason", "fixed", "--yes").exit_code == 0
    assert payments.snapshot().state == "closed"


def test_a_no_changes_nothing(run: Run, payments: CircuitBreaker) -> None:
    assert run("reset", "payments", "--reason", "x", answer="n\n").exit_code == 1
    assert run("reset", "payments", "--reason", "x", answer="").exit_code == 1
    assert payments.snapshot().state == "open"
    assert run("reset", "payments", "--reason", "x", answer="y\n").exit_code == 0


def test_a_dry_run_changes_nothing(run: Run, payments: CircuitBreaker) -> None:
    result = run("close", "payments", "--reason", "x", "--dry-run")

    assert (result.exit_code, result.output) == (0, "payments: would force closed, is open\n")
    assert payments.snapshot().state == "open"
    assert json.loads(run("close", "payments", "--reason", "x", "--dry-run", "--json").output)[0]["dry_run"]


@pytest.mark.parametrize(
    "words",
    [
        ("show", "paymnets"),
        ("history", "paymnets"),
        ("reset", "payments", "paymnets", "--reason", "x", "--yes"),
    ],
)
def test_an_unknown_name_is_one_line_with_a_suggestion(run: Run, payments: CircuitBreaker, words: list[str]) -> None:
    result = run(*words)

    assert result.exit_code == 1
    assert "No breaker is named 'paymnets'. Did you mean 'payments'?" in result.output
    assert len(result.output.splitlines()) == 1
    assert payments.snapshot().state == "open"


class TestBeforeTheFirstCall:
    """An operator may know of an outage before any worker does."""

    @pytest.fixture
    def app(self, app: Celery) -> Celery:
        def body() -> None: ...

        app.task(body, name="shop.mail", base=ResilientTask, breaker=["smtp", "dns"], shared=False)
        app.task(body, name="shop.ship", base=ResilientTask, breaker=BreakerPolicy(), shared=False)
        app.task(body, name="shop.bill", base=ResilientTask, shared=False)
        return app

    @pytest.mark.parametrize("name", ["payments", "smtp", "dns", "shop.ship"])
    @pytest.mark.parametrize("command", ["open", "close", "disable"])
    def test_a_declared_name_is_taken_as_it_is(self, run: Run, app: Celery, command: str, name: str) -> None:
        result = run(command, name, "--reason", "x", "--yes")

        assert (result.exit_code, len(result.output.splitlines())) == (0, 1)
        assert runtime_of(app).breaker(name).snapshot().override_why == "x"

    def test_it_refuses_the_first_call(self, run: Run, app: Celery) -> None:
        assert run("open", "smtp", "--reason", "x", "--for", "1h", "--yes").output == "smtp: forced open\n"
        assert isinstance(runtime_of(app).breaker("smtp").admit(), Refusal)
        assert [row["name"] for row in json.loads(run("list", "--json").output)] == ["smtp"]

    def test_a_task_has_a_name_of_its_own_where_that_is_the_default(self, run: Run, app: Celery) -> None:
        assert "nobody has used" in run("open", "shop.bill", "--reason", "x", "--yes").output
        app.conf.resilience_default_breaker = "task"
        use_runtime(app, None)

        assert run("close", "shop.bill", "--reason", "x", "--yes").output == "shop.bill: forced closed\n"

    def test_any_other_name_is_taken_with_a_word_of_warning(self, run: Run, app: Celery) -> None:
        result = run("open", "smpt", "tenant-7", "--reason", "x", "--yes")

        assert result.exit_code == 0
        assert result.stdout == "smpt: forced open\ntenant-7: forced open\n"
        assert result.stderr.splitlines() == [
            "Note: nobody has used a breaker named 'smpt' yet, and the app declares none. Did you mean 'smtp'?",
            "Note: nobody has used a breaker named 'tenant-7' yet, and the app declares none.",
        ]
        assert isinstance(runtime_of(app).breaker("tenant-7").admit(), Refusal)

    def test_the_warning_comes_before_the_question(self, run: Run, app: Celery) -> None:
        result = run("open", "smpt", "--reason", "x", answer="n\n")

        assert result.exit_code == 1
        assert result.stderr.startswith("Note: nobody has used a breaker named 'smpt'")
        assert runtime_of(app).breakers.names() == []

    def test_a_dry_run_makes_none(self, run: Run, app: Celery) -> None:
        result = run("open", "smtp", "--reason", "x", "--dry-run")

        assert (result.exit_code, result.output) == (0, "smtp: would force open, is closed\n")
        assert json.loads(run("open", "smtp", "--reason", "x", "--dry-run", "--json").output)[0]["state"] == "closed"
        assert runtime_of(app).breakers.names() == []

    def test_there_is_nothing_to_reset(self, run: Run) -> None:
        result = run("reset", "smtp", "--reason", "x", "--yes")

        assert result.exit_code == 1
        assert "No breaker is named 'smtp'" in result.output

    def test_a_name_that_cannot_be_one_is_refused_in_one_line(self, run: Run) -> None:
        result = run("open", "x" * 201, "--reason", "x", "--yes")

        assert result.exit_code == 1
        assert "is longer than 200 characters" in result.output.splitlines()[-1]


@pytest.mark.parametrize(
    "words",
    [
        ("open", "payments"),
        ("open", "--reason", "x"),
        ("open", "payments", "--reason", "x", "--for", "soon"),
        ("open", "payments", "--reason", "x", "--for", "0"),
        ("history", "--limit", "0"),
    ],
)
def test_wrong_usage_exits_with_2(run: Run, words: list[str]) -> None:
    assert run(*words).exit_code == 2


def test_a_terminal_shows_that_line_and_no_log() -> None:
    words = (
        "from celery_resilience.cli import breaker; from celery import Celery; from celery.bin.base import CLIContext"
    )
    url = "redis://127.0.0.1:1/0"
    call = f"breaker(['list'], obj=CLIContext(app=Celery(broker={url!r}), no_color=True, workdir=None))"
    done = subprocess.run([sys.executable, "-c", f"{words}; {call}"], capture_output=True, text=True, timeout=30)

    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith(f"Redis at {url} did not answer")


def test_without_redis_it_says_so_in_one_line() -> None:
    for broker, words in (("redis://127.0.0.1:1/0", "Redis at"), ("amqp://", "No Redis is configured")):
        context = CLIContext(app=Celery("shop", broker=broker, set_as_current=False), no_color=True, workdir=None)
        result = CliRunner().invoke(commands, ["list"], obj=context)

        assert result.exit_code == 1
        assert result.output.startswith(words)
        assert len(result.output.splitlines()) == 1


@pytest.mark.parametrize(
    "words",
    [
        ("show", "\udcff"),
        ("history", "\udcff"),
        ("open", "\udcff", "--reason", "x", "--yes"),
        ("open", "payments", "--reason", "\udcff", "--yes"),
    ],
)
def test_bytes_that_are_no_text_are_a_usage_error(run: Run, words: tuple[str, ...]) -> None:
    result = run(*words)

    assert result.exit_code == 2
    assert "is not UTF-8" in result.output
