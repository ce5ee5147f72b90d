"""The demo is the first thing a newcomer runs: it must add up, be quick and leave nothing behind."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from tests.support.process_tree import children_of

ROOT = Path(__file__).resolve().parents[2]


def test_the_demo_adds_up_within_30_seconds_and_leaves_nothing_running() -> None:
    began = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-m", "example_project.demo"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as demo:
        said, _ = demo.communicate(timeout=60)
        assert children_of(demo.pid) == []

    assert demo.returncode == 0, said
    assert time.monotonic() - began < 30
    assert "again in" in said
    assert "RATE_LIMITED (HTTPError 429)" in said
    assert "VALIDATION (HTTPError 422); no more attempts" in said
    assert "invoice 1   done at attempt 1" in said
    assert "requeued 4 letters" in said
    assert "charge 7    done at attempt 6" in said
    assert "Everything adds up" in said
    assert "\033" not in said
