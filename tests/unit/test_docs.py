"""The pages keep up with the code: what is added without its line in the reference fails here."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import pytest

from celery_resilience import RetryPolicy, Settings, lua
from celery_resilience.cli import dlq
from celery_resilience.cli.resilience import resilience
from celery_resilience.decision import DeadReason
from celery_resilience.events import Event
from celery_resilience.policy import CLASS_DEFAULTS
from celery_resilience.settings import CALL_OPTIONS, PREFIX
from celery_resilience.task_options import OPTIONS

ROOT = Path(__file__).parents[2]
REFERENCE = ROOT / "docs" / "reference"
PAGES = sorted([*ROOT.glob("docs/**/*.md"), ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md"])
SOURCES = sorted((ROOT / "celery_resilience").rglob("*.py"))


def page(name: str) -> str:
    return (REFERENCE / name).read_text(encoding="utf-8")


def row(text: str, first_cell: str) -> list[str]:
    """Give the cells of the one table row that begins with this cell."""
    rows = [line for line in text.splitlines() if line.startswith(f"| {first_cell} |")]
    assert len(rows) == 1, f"{len(rows)} rows begin with {first_cell}"
    return [cell.strip() for cell in rows[0].strip("|").split("|")]


@pytest.mark.parametrize("field", fields(Settings), ids=lambda field: field.name)
def test_every_setting_has_its_row_with_its_default(field: Any) -> None:
    made: Any = field.default_factory
    default = repr(field.default) if made is MISSING else f"{made.__name__}()"

    assert row(page("settings.md"), f"`{PREFIX}{field.name}`")[2] == f"`{default}`"


def test_no_page_names_a_setting_that_does_not_exist() -> None:
    unknown = {
        (path.name, name)
        for path in PAGES
        for name in re.findall(r"\bresilience_[a-z_]*[a-z]\b", path.read_text(encoding="utf-8"))
        if name not in {*Settings.names(), "resilience_redis", "resilience_redis_server"}  # two fixtures
    }

    assert not unknown


@pytest.mark.parametrize("option", [*OPTIONS, *CALL_OPTIONS])
def test_every_option_of_a_task_and_of_a_call_has_its_row(option: str) -> None:
    tables = page("task-options.md").split("## Options of one call")

    for names, text in ((OPTIONS, tables[0]), (CALL_OPTIONS, tables[1])):
        assert option not in names or row(text, f"`{option}`")


@pytest.mark.parametrize("field", fields(RetryPolicy), ids=lambda field: field.name)
def test_every_field_of_a_policy_has_its_row(field: Any) -> None:
    assert row(page("retry-policy.md"), f"`{field.name}`")


@pytest.mark.parametrize("kind", CLASS_DEFAULTS, ids=str)
def test_the_defaults_of_every_class_are_told(kind: Any) -> None:
    values = [getattr(CLASS_DEFAULTS[kind], field.name) for field in fields(RetryPolicy)]

    told = row(page("retry-policy.md"), f"`{kind}`")[1:]
    assert told == [value if isinstance(value, str) else f"{value:g}" for value in values]


@pytest.mark.parametrize("reason", list(DeadReason), ids=str)
def test_every_reason_of_an_end_is_told(reason: DeadReason) -> None:
    assert row(page("retry-policy.md"), f"`{reason}`")


@pytest.mark.parametrize("event", list(Event), ids=str)
def test_every_event_has_its_row_with_the_fields_it_is_told_with(event: Event) -> None:
    told = set(re.findall(r"`(\w+)`", row(page("events.md"), f"`{event}`")[2]))

    used = {name for call in calls("tell") if _event(call) == event.name for name in _fields(call)}
    assert told >= used


def test_every_command_and_its_options_are_told() -> None:
    text = page("cli.md")

    for name, command in resilience.commands.items():
        assert f"## celery -A proj resilience {name}" in text
        for option in (option for param in command.params for option in param.opts):
            assert row(text, f"`{option}`")


def test_every_command_on_letters_and_its_options_are_told() -> None:
    text = page("dlq.md")

    for name, command in dlq.commands.items():
        assert f"## celery -A proj dlq {name}" in text
        for option in (option for param in command.params for option in param.opts if option.startswith("--")):
            assert row(text, f"`{option}`")


def test_every_redis_key_is_told() -> None:
    text = page("redis-keys.md")
    parts = {
        word.value
        for call in calls("key")
        for word in call.args
        if isinstance(word, ast.Constant) and isinstance(word.value, str)
    }

    assert {"due", "entries", "highest"} <= parts, "the test no longer finds how keys are named"
    assert not [part for part in parts if not re.search(rf"^\| `PREFIX:\S*:{part}\b", text, re.M)]


@pytest.mark.parametrize(
    "script", sorted((ROOT / "celery_resilience" / "lua").glob("[a-z]*.lua")), ids=lambda path: path.stem
)
def test_every_script_has_its_row_with_as_many_keys_as_it_takes(script: Path) -> None:
    taken = re.findall(r"^-- KEYS\[\d…?\]", lua.source(script.stem), re.M)

    assert len(row(page("redis-keys.md"), f"`{script.stem}`")[1].split(", ")) == len(taken)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere_and_python_is_python(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    prose = re.sub(r"^```.*?^```", "", text, flags=re.S | re.M)

    for target in re.findall(r"\]\(([^)#\s]+)", prose):
        assert "://" in target or (path.parent / target).exists(), target
    for block in re.findall(r"^```python\n(.*?)^```", text, re.S | re.M):
        is_excerpt = re.match(r'"[^"\n]+": ', block)  # of a mapping
        compile(f"({{\n{block}}})" if is_excerpt else block, str(path), "exec")


def calls(name: str) -> Iterator[ast.Call]:
    """Give every call of a function or method of this name in the package."""
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and name in (getattr(node.func, "attr", ""), getattr(node.func, "id", "")):
                yield node


def _event(call: ast.Call) -> str:
    return next((word.attr for word in call.args if isinstance(word, ast.Attribute) and word.attr.isupper()
                 and getattr(word.value, "id", "") == "Event"), "")  # fmt: skip


def _fields(call: ast.Call) -> set[str]:
    """Give the fields that a call of `tell` names itself, and those of every attempt where it unpacks them."""
    named = {keyword.arg for keyword in call.keywords if keyword.arg}
    unpacks = any(isinstance(keyword.value, ast.Call) for keyword in call.keywords if keyword.arg is None)
    return named | ({"task_id", "task", "attempt"} if unpacks else set())
