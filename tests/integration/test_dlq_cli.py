"""`celery dlq …`: what an operator sees and does, and one clear line when it cannot be done."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import click
import pytest
from celery.bin.base import CLIContext
from click.testing import CliRunner, Result

from celery_resilience.cli import dlq, resilience
from celery_resilience.deadletter import DeadLetter
from celery_resilience.deadletter.filters import LetterFilter
from celery_resilience.failure import FailureClass
from celery_resilience.testing import EmbeddedRedis
from tests.support.letters import Office, a_letter
from tests.support.waiting import wait_until

Run = Callable[..., Result]
ANY = LetterFilter(state="any")


@pytest.fixture
def office(resilience_redis: EmbeddedRedis, tmp_path: Path) -> Iterator[Office]:
    office = Office(resilience_redis.url, f"sqlite:///{tmp_path / 'ledger.db'}", redis=resilience_redis.url)
    yield office
    office.close()


@pytest.fixture
def run(office: Office) -> Run:
    return lambda *words, answer=None: invoke(dlq, office, *words, answer=answer)


def invoke(group: click.Group, office: Office, *words: str, answer: str | None = None) -> Result:
    context = CLIContext(app=office.app, no_color=True, workdir=None, quiet=False)
    result = CliRunner().invoke(group, words, input=answer, obj=context)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.fixture
def letters(office: Office) -> list[DeadLetter]:
    mail = a_letter(task="shop.mail", queue="mail", error="KeyError", words="who? password=hunter2",
                    fingerprint="f" * 16, kind=FailureClass.STRUCTURAL, kwargsrepr="{'token': 'abc'}")  # fmt: skip
    return office.fill(*(a_letter(argsrepr="(1,)") for _ in range(3)), mail)


class TestLooking:
    def test_a_list_is_a_table_and_a_json_list(self, run: Run, letters: list[DeadLetter]) -> None:
        result = run("list")

        assert result.exit_code == 0
        assert result.output.split("\n")[0].split()[:4] == ["id", "died", "task", "class"]
        assert len(result.output.splitlines()) == 5
        assert "hunter2" not in result.output
        assert {row["id"] for row in json.loads(run("list", "--json").output)} == {one.id for one in letters}

    def test_what_is_still_in_the_dlq_is_listed_too(self, run: Run, office: Office) -> None:
        letter = a_letter()
        office.runtime.dead_letters.publish(letter)

        assert [row["id"] for row in json.loads(run("list", "--json").output)] == [letter.id]

    @pytest.mark.parametrize(
        "words",
        [
            ["--task", "shop.mail"],
            ["--queue", "mail"],
            ["--error", "KeyError"],
            ["--class", "structural"],
            ["--fingerprint", "f" * 16],
            ["--text", "WHO?"],
            ["--since", "1h", "--task", "shop.mail"],
            ["--until", "2100-01-01", "--queue", "mail"],
            ["--attempts-below", "99", "--error", "builtins.KeyError"],
        ],
    )
    def test_filters(self, run: Run, letters: list[DeadLetter], words: list[str]) -> None:
        assert [row["id"] for row in json.loads(run("list", "--json", *words).output)] == [letters[3].id]

    def test_ids_and_pages(self, run: Run, letters: list[DeadLetter]) -> None:
        both = run("list", "--json", "--id", letters[0].id, "--id", letters[1].id).output
        first = json.loads(run("list", "--json", "--limit", "2").output)
        rest = json.loads(run("list", "--json", "--after", first[-1]["id"]).output)

        assert len(json.loads(both)) == 2
        assert {row["id"] for row in [*first, *rest]} == {one.id for one in letters}

    def test_nothing_found_is_said(self, run: Run) -> None:
        assert run("list").output.strip() == "No letter matches."
        assert json.loads(run("list", "--json").output) == []

    def test_groups_and_collapsed_lists_count(self, run: Run, letters: list[DeadLetter]) -> None:
        by_task = json.loads(run("groups", "--by", "task", "--json").output)

        assert [(group["key"], group["count"]) for group in by_task] == [("shop.charge", 3), ("shop.mail", 1)]
        assert run("groups").output.splitlines()[1].split()[1] == "3"
        assert run("list", "--collapse").output.splitlines()[1].split()[1] == "3"

    def test_one_letter_is_shown_whole_but_for_its_secrets(self, run: Run, letters: list[DeadLetter]) -> None:
        shown, as_json = run("show", letters[3].id).output, json.loads(run("show", letters[3].id, "--json").output)

        assert "KeyError: who?" in shown
        assert "hunter2" not in shown + str(as_json)
        assert "abc" not in as_json["arguments"] + str(as_json["headers"])
        assert as_json["task_id"] == letters[3].task_id

    def test_a_letter_cannot_speak_to_the_terminal(self, run: Run, office: Office) -> None:
        letter = replace(
            a_letter(words="\x1b[2J\ud800 gone", task="a\x07b"),
            traceback="\x1b]0;title\x07\ud800",
            trail=({"attempt": 1, "error": "\x1b[31m"},),
        )
        office.fill(letter)
        shown = [run(*words).output for words in (["list"], ["groups"], ["show", letter.id])]

        assert not [text for text in shown if "\x1b" in text or "\x07" in text]
        assert "gone" in shown[0]

    def test_an_unknown_id_is_one_line(self, run: Run) -> None:
        result = run("show", "nonsense")

        assert result.exit_code == 1
        assert "No letter has the id 'nonsense'" in result.output
        assert len(result.output.strip().splitlines()) == 1

    def test_statistics_and_audit(self, run: Run, letters: list[DeadLetter]) -> None:
        run("discard", "--id", letters[0].id, "--reason", "spam", "--yes")
        found = json.loads(run("stats", "--json").output)
        actions = json.loads(run("audit", "--json").output)

        assert found["by_state"] == {"waiting": 3, "discarded": 1}
        assert found["waiting_by_class"] == {"UNKNOWN": 2, "STRUCTURAL": 1}
        assert "discarded" in run("stats").output
        assert [(one["verb"], one["count"], one["note"]) for one in actions] == [("discard", 1, "spam")]
        assert "spam" in run("audit").output

    def test_a_watch_shows_each_once(self, run: Run, letters: list[DeadLetter]) -> None:
        result = run("watch", "--rounds", "2", "--interval", "0.1")

        assert len(result.output.splitlines()) == 4

    @pytest.mark.parametrize(
        "words", [["list", "--since", "yesterdayish"], ["list", "--state", "lost"], ["groups", "--by", "x"]]
    )
    def test_what_cannot_be_read_is_a_usage_error(self, run: Run, words: list[str]) -> None:
        assert run(*words).exit_code == 2


class TestRequeue:
    def test_all_need_to_be_meant_and_confirmed(self, run: Run, letters: list[DeadLetter], office: Office) -> None:
        assert run("requeue", "--yes").exit_code == 2
        assert run("requeue", "--all", answer="n\n").exit_code == 1
        assert office.desk.count() == 4
        result = run("requeue", "--all", "--yes", "--note", "again")

        assert (result.exit_code, result.output.strip()) == (0, "requeued 4 letters")
        assert len(office.drain(expect=3)) == 3
        assert office.desk.actions()[0].note == "again"

    def test_a_dry_run_says_what_would_happen_and_why_not(
        self, run: Run, letters: list[DeadLetter], office: Office
    ) -> None:
        office.fill(replace(a_letter(), queue=None))
        office.runtime.breaker("payments").force_open(who="ann", why="test")

        def mail() -> None: ...

        office.app.task(name="shop.mail", breaker="payments", shared=False)(mail)
        shown = run("requeue", "--all", "--dry-run").output
        as_json = json.loads(run("requeue", "--all", "--dry-run", "--json").output)

        assert "held back: breaker payments is open" in shown
        assert "1 have no single origin queue" in shown
        assert (as_json["count"], as_json["without_queue"]) == (5, 1)
        assert as_json["open_breakers"] == {"shop.mail": "payments"}
        assert office.desk.count() == 5

    def test_an_open_breaker_holds_back_unless_forced(
        self, run: Run, letters: list[DeadLetter], office: Office
    ) -> None:
        def mail() -> None: ...

        office.app.task(name="shop.mail", breaker="payments", shared=False)(mail)
        office.runtime.breaker("payments").force_open(who="ann", why="test")
        held = run("requeue", "--all", "--yes")

        assert "left 1: The breaker payments of shop.mail is open." in held.output
        assert run("requeue", "--all", "--yes", "--force").output.strip() == "requeued 1 letters"

    def test_copies_go_elsewhere_with_other_arguments(self, run: Run, office: Office) -> None:
        letter = office.fill(a_letter(b'[[1], {}, {"chain": null}]'))[0]
        run("requeue", "--id", letter.id, "--to", "slow", "--set-arg", '0={"a": 2}', "--set-kwarg", "b=text", "--yes")

        assert json.loads(office.drain("slow", expect=1)[0].body)[:2] == [[{"a": 2}], {"b": "text"}]
        assert run("requeue", "--all", "--set-arg", "x=1", "--yes", "--dry-run").exit_code == 1
        assert run("requeue", "--all", "--set-kwarg", "nonsense", "--yes").exit_code == 2

    def test_a_rate_is_kept(self, run: Run, office: Office) -> None:
        office.fill(*(a_letter() for _ in range(6)))
        start = office.clock.monotonic()

        assert run("requeue", "--all", "--yes", "--rate", "20/s", "--limit", "5").exit_code == 0
        assert office.clock.monotonic() - start >= 0.2
        assert office.desk.count() == 1
        assert "is not a rate" in run("requeue", "--all", "--yes", "--rate", "fast").output

    def test_a_canary_that_nobody_answers_for_stops_the_rest(
        self, run: Run, letters: list[DeadLetter], office: Office
    ) -> None:
        result = run("requeue", "--all", "--yes", "--canary", "1", "--canary-wait", "1s")

        assert result.exit_code == 1
        assert "the canary did not succeed within 1 s" in result.output
        assert office.desk.count() == 3

    def test_a_canary_that_succeeds_lets_the_rest_follow(self, run: Run, office: Office) -> None:
        letters = office.fill(*(a_letter() for _ in range(4)))
        for letter in letters:
            office.app.backend.store_result(str(letter.task_id), 1, "SUCCESS")

        assert run("requeue", "--all", "--yes", "--canary", "2").output.strip() == "requeued 4 letters"

    def test_too_many_deaths_stop_it(self, run: Run, office: Office) -> None:
        letters = office.fill(*(a_letter() for _ in range(30)))
        for n, letter in enumerate(letters[:15]):
            office.runtime.dead_letters.publish(replace(letter, id=f"again{n}", generation=1))
        result = run("requeue", "--text", "shop.charge", "--yes", "--rate", "10/s", "--abort-on-failure-rate", "0.3")

        assert result.exit_code == 1
        assert "died again, more than 30%" in result.output

    def test_nothing_matched_is_exit_1(self, run: Run) -> None:
        result = run("requeue", "--task", "nobody", "--yes")

        assert (result.exit_code, result.output.strip()) == (1, "No letter matches.")


class TestEnding:
    def test_discard_and_purge_ask_and_count(self, run: Run, letters: list[DeadLetter], office: Office) -> None:
        assert (
            run("discard", "--task", "shop.mail", "--reason", "x", "--dry-run").output.strip()
            == "would discard 1 letters"
        )
        assert run("discard", "--task", "shop.mail", "--reason", "x", answer="y\n").exit_code == 0
        assert run("discard", "--task", "shop.mail", "--reason", "x", "--yes").exit_code == 1
        assert run("purge", "--reason", "x").exit_code == 2
        assert json.loads(run("purge", "--all", "--yes", "--json").output) == {"count": 3, "dry_run": False}
        assert run("purge", "--all", "--state", "any", "--yes").output.strip() == "purged 1 letters"
        assert office.desk.count(ANY) == 0

    def test_what_is_exported_is_imported_exactly(
        self, run: Run, letters: list[DeadLetter], office: Office, tmp_path: Path
    ) -> None:
        odd = office.fill(a_letter(b"\xff\x00", words="é\0"))[0]
        path = str(tmp_path / "letters.jsonl")
        run("discard", "--id", letters[0].id, "--reason", "x", "--yes")
        run("export", "--output", path)
        run("purge", "--all", "--state", "any", "--yes")
        result = run("import", path, "--yes")

        assert result.output.strip() == "imported 5 letters"
        assert office.desk.count(LetterFilter(state="discarded")) == 1
        restored = office.desk.get(odd.id)
        assert restored is not None
        assert restored[1] == odd
        assert run("import", path, "--yes").exit_code == 1
        (tmp_path / "bad").write_text("{}\n")
        assert "Line 1 is not an exported letter" in run("import", str(tmp_path / "bad"), "--yes").output


class TestWhenItCannotBeDone:
    def test_a_broker_that_is_down_costs_one_line_and_reading_goes_on(self, tmp_path: Path) -> None:
        office = Office("redis://127.0.0.1:1/0", f"sqlite:///{tmp_path / 'x.db'}")
        looked, written = invoke(dlq, office, "list"), invoke(dlq, office, "requeue", "--all", "--yes")

        assert looked.exit_code == 0
        assert "could not be collected" in looked.output
        assert written.exit_code == 1
        assert "Traceback" not in looked.output + written.output

    def test_a_database_that_is_down_is_one_line(self, resilience_redis: EmbeddedRedis) -> None:
        office = Office(resilience_redis.url, "postgresql://me:secret@127.0.0.1:1/x")
        result = invoke(dlq, office, "list")

        assert result.exit_code == 1
        assert len(result.output.strip().splitlines()) == 1
        assert "secret" not in result.output

    def test_without_an_app_it_says_so(self, tmp_path: Path) -> None:
        code = "from celery.__main__ import main; import sys; from celery.bin.celery import celery\n"
        code += "from celery_resilience.cli import dlq\ncelery.add_command(dlq)\nsys.argv[1:] = ['dlq', 'list']\nmain()"
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=tmp_path)

        assert result.returncode == 1
        assert "No app is given" in result.stdout + result.stderr

    def test_another_database_than_the_fleets_is_refused_until_it_is_adopted(
        self, run: Run, letters: list[DeadLetter], office: Office, tmp_path: Path
    ) -> None:
        other = office.another(resilience_database_url=f"sqlite:///{tmp_path / 'other.db'}")

        refused = invoke(dlq, other, "list")
        assert refused.exit_code == 1
        assert "ledger.db" in refused.output
        assert "other.db" in refused.output
        adopted = invoke(resilience, other, "adopt-database", "--yes")
        assert "in place of" in adopted.output
        assert invoke(dlq, other, "list").exit_code == 0
        assert run("list").exit_code == 1


def test_ctrl_c_ends_after_the_batch_and_says_how_to_go_on(office: Office, tmp_path: Path) -> None:
    office.fill(*(a_letter() for _ in range(40)))
    code = (
        "import json, sys\nfrom celery import Celery\nfrom celery.bin.base import CLIContext\n"
        "from celery_resilience.cli import dlq\nname, broker, conf = sys.argv[1:4]\n"
        "app = Celery(name, broker=broker)\napp.conf.update(json.loads(conf))\n"
        "dlq(['requeue', '--all', '--yes', '--rate', '5/s'], obj=CLIContext(app=app, no_color=True, workdir=None))\n"
    )
    words = [str(office.app.main), office.broker, json.dumps(office.conf)]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    child = subprocess.Popen(
        [sys.executable, "-c", code, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env
    )
    with child:
        wait_until(lambda: office.desk.count(LetterFilter(state="requeued")) > 0, 20, "the first batch")
        child.send_signal(signal.SIGINT)
        output = child.communicate(timeout=20)[0].decode()
    sent = office.desk.count(LetterFilter(state="requeued"))

    assert child.returncode == 1
    assert "Stopped: interrupted." in output
    assert "the same command goes on" in output
    assert office.desk.count(LetterFilter(state="claimed")) == 0
    assert 0 < sent < 40
    assert len(office.drain(expect=sent)) == sent
