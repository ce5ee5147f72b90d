"""tools/layers.py finds each kind of breach and says it in one line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CONTRACT = """
door:     . cli*      # the top
middle:   runtime task
ground!:  errors clock
"""
Check = Callable[[dict[str, str]], tuple[int, str]]


@pytest.fixture
def check(tmp_path: Path) -> Check:
    def run(modules: dict[str, str]) -> tuple[int, str]:
        (tmp_path / "layers.txt").write_text(CONTRACT, encoding="utf-8")
        for name, source in {"__init__": "", **modules}.items():
            path = tmp_path / "shop" / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(source, encoding="utf-8")
        command = [sys.executable, str(ROOT / "tools" / "layers.py"), "shop", "layers.txt"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert not done.stderr
        return done.returncode, done.stdout.strip()

    return run


def test_a_package_that_keeps_the_contract_passes(check: Check) -> None:
    code, said = check({"__init__": "from shop.task import x", "task": "from shop import runtime", "runtime": "x = 1"})

    assert (code, said) == (0, "layers: 3 modules keep the contract")


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("from shop.task import x", "hard"),
        ("from shop import task", "hard"),
        ("from . import task", "hard"),
        ("from .task import x", "hard"),
        ("import shop.task", "hard"),
        ("try:\n    import shop.task\nexcept ImportError: pass", "hard"),
        ("def f():\n    from shop.task import x", "late"),
        ("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from shop.task import X", "typing"),
    ],
)
def test_an_import_from_a_higher_layer_is_a_breach_of_any_kind(check: Check, source: str, kind: str) -> None:
    code, said = check({"errors": source, "task": "x = 1"})

    assert (code, said) == (1, f"shop/errors.py: ground must not import task of middle ({kind})")


def test_a_strict_layer_forbids_imports_inside_itself(check: Check) -> None:
    code, said = check({"errors": "import shop.clock", "clock": ""})

    assert (code, said) == (1, "shop/errors.py: ground must not import clock of ground (hard)")


def test_the_front_door_may_not_be_imported_from_below(check: Check) -> None:
    code, said = check({"task": "from shop import Celery"})

    assert (code, said) == (1, "shop/task.py: middle must not import . of door (hard)")


def test_a_module_without_a_layer_is_a_breach(check: Check) -> None:
    code, said = check({"utils": "", "cli/dlq": "from shop import task", "task": ""})

    assert (code, said) == (1, "shop/utils.py: in no layer of the contract")


def test_a_load_cycle_is_named_once_and_a_late_import_is_none(check: Check) -> None:
    code, said = check({"task": "import shop.runtime", "runtime": "import shop.task"})

    assert (code, said) == (1, "load cycle: runtime <-> task")

    code, _ = check({"runtime": "def f():\n    import shop.task"})

    assert code == 0


def test_limits_of_size_do_not_count_a_docstring(check: Check) -> None:
    body = "\n".join(["    x = 1"] * 39)
    docstring = '    """Many\n' + "\n" * 20 + '    lines."""'

    code, _ = check({"task": f"def f():\n{docstring}\n{body}\n"})

    assert code == 0

    code, said = check({"task": f"def f():\n{docstring}\n{body}\n    y = 2\n", "runtime": "x = 1\n" * 401})

    assert code == 1
    assert said.splitlines() == [
        "shop/runtime.py: 401 lines, at most 400",
        "shop/task.py:1: f has 41 lines, at most 40",
    ]


def test_this_project_keeps_its_own_contract() -> None:
    command = [sys.executable, "tools/layers.py", "celery_resilience", "layers.txt"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout + done.stderr
