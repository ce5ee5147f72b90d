"""The ledger over both databases: what is looked for is found, whatever characters it has, and pages join up."""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import MetaData, create_engine, insert, inspect
from sqlmodel import SQLModel

from celery_resilience.deadletter.filters import LetterFilter
from celery_resilience.deadletter.ledger import Ledger
from celery_resilience.deadletter.letter import LETTER_HEADER, read_letter, to_message
from celery_resilience.deadletter.tables import LETTERS, LetterRow
from celery_resilience.errors import ConfigurationError, StoreUnavailableError
from celery_resilience.failure import FailureClass
from celery_resilience.migrations import STEPS, VERSIONS
from celery_resilience.sql_store import Database, default_url
from tests.support.letters import a_letter

ANY = LetterFilter(state="any")


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'deep' / 'ledger.db'}"
    return str(request.getfixturevalue("postgres").new_database())


@pytest.fixture
def ledger(url: str) -> Ledger:
    return Ledger(Database(url))


class TestFinding:
    def test_by_each_thing_and_by_several(self, ledger: Ledger) -> None:
        wanted = a_letter(
            task="shop.mail",
            queue="mail",
            error="KeyError",
            kind=FailureClass.STRUCTURAL,
            fingerprint="f" * 16,
            words="no such Customer",
            attempt=2,
        )
        ledger.add([wanted, *(a_letter() for _ in range(5))])
        now = time.time()
        filters: list[dict[str, Any]] = [
            {"ids": (wanted.id,)},
            {"task": "shop.mail"},
            {"queue": "mail"},
            {"error": "KeyError"},
            {"error": "builtins.KeyError"},
            {"failure_class": "structural"},
            {"fingerprint": "f" * 16},
            {"text": "CUSTOMER"},
            {"attempts_below": 3},
            {"task": "shop.mail", "queue": "mail", "since": now - 60, "until": now + 60, "text": "mail"},
        ]

        for chosen in filters:
            found = ledger.find(LetterFilter(**chosen))
            assert [one.id for one in found] == [wanted.id], chosen
            assert ledger.count(LetterFilter(**chosen)) == 1

    @pytest.mark.parametrize(
        "chosen",
        [
            {"error": "other.KeyError"},
            {"task": "shop.%"},
            {"since": 4e9},
            {"until": 1.0},
            {"text": "x_y"},
            {"ids": ("no",)},
        ],
    )
    def test_what_does_not_match_is_not_found(self, ledger: Ledger, chosen: dict[str, Any]) -> None:
        ledger.add([a_letter(error="KeyError", words="xzy")])

        assert ledger.find(LetterFilter(**chosen)) == []

    @pytest.mark.parametrize(
        "words", ["100%", "a_b", "it's", 'say "no"', "back\\slash", "; DROP TABLE x; --", "É", "[x]*"]
    )
    def test_wildcards_and_quotes_are_plain_characters(self, ledger: Ledger, words: str) -> None:
        exact = a_letter(words=f"before {words} after", task=f"task {words}")
        ledger.add([exact, a_letter(words="100x aXb its say no back/slash e x")])

        assert [one.id for one in ledger.find(LetterFilter(text=words))] == [exact.id]
        assert [one.id for one in ledger.find(LetterFilter(task=f"task {words}"))] == [exact.id]

    def test_pages_join_up_though_times_are_equal(self, ledger: Ledger) -> None:
        at = time.time()
        ledger.add([replace(a_letter(), failed_at=at - n // 3) for n in range(20)])
        pages, after = [], None
        while page := ledger.find(LetterFilter(), limit=3, after=after):
            pages.append([one.id for one in page])
            after = page[-1].id

        assert [id for page in pages for id in page] == [one.id for one in ledger.find(LetterFilter(), limit=100)]
        assert len(set(itertools.chain(*pages))) == 20
        assert ledger.find(LetterFilter(), after="unknown") == []

    def test_groups_count_and_show_their_newest(self, ledger: Ledger) -> None:
        now = time.time()
        ledger.add([replace(a_letter(error="KeyError", words=f"n{n}"), failed_at=now + n) for n in range(3)])
        ledger.add([a_letter(error="OSError", fingerprint="f" * 16, queue="mail", task="shop.mail")])

        for by, keys in {
            "fingerprint": ["0123456789abcdef", "f" * 16],
            "error": ["KeyError", "OSError"],
            "task": ["shop.charge", "shop.mail"],
            "queue": ["shop", "mail"],
            "class": ["UNKNOWN"],
        }.items():
            groups = ledger.groups(LetterFilter(), by)
            assert [one.key for one in groups] == keys
            assert sum(one.count for one in groups) == 4
        largest = ledger.groups(LetterFilter())[0]
        assert (largest.count, largest.first_failed_at, largest.last_failed_at) == (3, now, now + 2)
        assert largest.example.error_message == "n2"

    def test_same_task_and_arguments_are_one_group(self, ledger: Ledger) -> None:
        ledger.add([a_letter(argsrepr="(1,)") for _ in range(3)] + [a_letter(argsrepr="(2,)")])

        assert [one.count for one in ledger.groups(LetterFilter(), "arguments")] == [3, 1]

    def test_secrets_are_neither_shown_nor_found(self, ledger: Ledger) -> None:
        ledger.add([a_letter(words="password=hunter2", kwargsrepr="{'api_key': 'hunter3'}")])

        assert "hunter2" not in ledger.find(LetterFilter())[0].error_message
        assert ledger.count(LetterFilter(text="hunter2")) == ledger.count(LetterFilter(text="hunter3")) == 0

    def test_deaths_of_one_task_are_linked(self, ledger: Ledger) -> None:
        first = a_letter()
        ledger.add([first, replace(first, id="second", generation=1), a_letter()])

        assert [one.generation for one in ledger.related(str(first.task_id))] == [0, 1]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    words=st.text(),
    task=st.text(max_size=600),
    body=st.binary(max_size=200),
    headers=st.dictionaries(st.text(), st.text()),
)
def test_any_letter_can_be_kept(ledger: Ledger, words: str, task: str, body: bytes, headers: dict[str, str]) -> None:
    letter = a_letter(body, words=words, task=task, **{f"h{name}": value for name, value in headers.items()})
    ledger.add([letter])
    stored = ledger.get(letter.id)

    assert stored is not None
    assert stored[1].envelope.body == body
    assert stored[1].envelope.headers == letter.envelope.headers
    ledger.find(LetterFilter(text=words.replace("\0", "")))


@pytest.mark.parametrize(
    "change",
    [
        {"attempt": 10**30},
        {"attempt": "x"},
        {"generation": -1},
        {"failed_at": float("nan")},
        {"failed_at": 1e300},
        {"failed_at": None},
        {"id": ""},
        {"id": "x" * 65},
        {"id": "a\0b"},
        {"id": 7},
        {"task": "x" * 501},
        {"failure_class": "x" * 100},
        {"error_type": "é" * 600},
        {"fingerprint": "\0" * 100},
        {"canvas": {"group": "g" * 1000}},
        {"trail": [1]},
        {"reason": "invented later"},
        {"queue": "\ud800"},
    ],
    ids=repr,
)
def test_whatever_somebody_wrote_into_the_header_it_can_be_kept(ledger: Ledger, change: dict[str, Any]) -> None:
    carried = to_message(a_letter())
    header = json.dumps({**json.loads(carried.headers[LETTER_HEADER]), **change})
    letter = read_letter(replace(carried, headers={**carried.headers, LETTER_HEADER: header}))

    assert ledger.add([letter]) == 1
    assert ledger.get(letter.id) is not None
    assert ledger.find(LetterFilter())[0].id == letter.id


class TestSchema:
    def test_what_the_steps_make_is_what_the_tables_say(self, ledger: Ledger, url: str) -> None:
        assert ledger.count(ANY) == 0
        engine = create_engine(url)
        found = inspect(engine)

        for table in LETTERS.metadata.tables.values():
            made = {
                column["name"]: (str(column["type"]), column["nullable"]) for column in found.get_columns(table.name)
            }
            told = {
                column.name: (str(column.type.compile(engine.dialect)), column.nullable) for column in table.columns
            }
            assert {name: nullable for name, (_, nullable) in made.items()} == {
                name: nullable for name, (_, nullable) in told.items()
            }
            assert set(made) == set(told)
        assert all(name.startswith("resilience_") for name in found.get_table_names())
        engine.dispose()

    def test_many_come_at_once_to_an_empty_database(self, url: str) -> None:
        databases = [Database(url) for _ in range(6)]
        names: list[str] = []
        threads = [threading.Thread(target=lambda one=one: names.append(one.identity)) for one in databases]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)

        assert len(names) == 6
        assert len(set(names)) == 1

    def test_a_newer_database_is_refused(self, url: str) -> None:
        database = Database(url)
        with database.write() as connection:
            connection.execute(insert(VERSIONS).values(version=len(STEPS) + 1, applied_at=1.0))
        with pytest.raises(ConfigurationError, match="newer"):
            Database(url).identity  # noqa: B018

    def test_our_tables_stay_out_of_the_users_metadata(self) -> None:
        assert LetterRow.__tablename__ not in SQLModel.metadata.tables
        assert LetterRow.__tablename__ not in MetaData().tables


class TestTheDatabase:
    @pytest.mark.parametrize(
        ("url", "match"),
        [
            ("sqlite:///relative.db", "absolute"),
            ("sqlite://", "absolute"),
            ("mysql://me:secret@host/db", "not a database we know"),
            ("nonsense", "resilience_database_url"),
            ("oracle+what://x", "resilience_database_url"),
        ],
    )
    def test_a_url_that_cannot_work_is_refused_without_its_password(self, url: str, match: str) -> None:
        with pytest.raises(ConfigurationError, match=match) as caught:
            Database(url)

        assert "secret" not in str(caught.value)

    def test_one_that_is_away_is_said_so(self, tmp_path: Path) -> None:
        with pytest.raises(StoreUnavailableError, match="failed"):
            Database("postgresql://me:secret@127.0.0.1:1/db").identity  # noqa: B018
        (tmp_path / "x.db").write_bytes(b"not a database, by far" * 100)
        with pytest.raises(StoreUnavailableError):
            Database(f"sqlite:///{tmp_path / 'x.db'}").identity  # noqa: B018

    def test_the_default_file_has_an_absolute_path_by_the_apps_name(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("XDG_STATE_HOME", "/state")
        assert default_url("my/shop") == "sqlite:////state/celery-resilience/my_shop.sqlite3"
        monkeypatch.setenv("XDG_STATE_HOME", "relative")
        monkeypatch.setenv("HOME", "/home/ann")
        assert default_url("shop") == "sqlite:////home/ann/.local/state/celery-resilience/shop.sqlite3"


class TestForks:
    def test_children_forked_while_a_thread_writes_can_all_save(self, tmp_path: Path) -> None:
        ledger = Ledger(Database(f"sqlite:///{tmp_path / 'ledger.db'}"))
        over = threading.Event()

        def write() -> None:
            while not over.is_set():
                ledger.add([a_letter() for _ in range(200)])

        writer = threading.Thread(target=write)
        writer.start()
        try:
            fates = [_fork_and(lambda: ledger.add([a_letter()])) for _ in range(20)]
        finally:
            over.set()
            writer.join(30)

        assert fates == [0] * 20


def _fork_and(work: Any) -> int:
    """Do something in a child of this process; gives its exit status, 9 if it hung for ten seconds."""
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(0)
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    over = time.monotonic() + 20
    while time.monotonic() < over:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return 9
