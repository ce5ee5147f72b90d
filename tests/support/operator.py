"""An operator in a process of his own, to be killed: `python -m tests.support.operator VERB APP BROKER CONF BATCH`.

Says "ready" once everything is imported and waits for a line on its input, so that a test can time the kill.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.support.letters import Office

ROOT = Path(__file__).resolve().parents[2]


class Operator:
    """The process; `go()` lets it begin, `kill()` ends it as a power cut would."""

    def __init__(self, office: Office, verb: str, *, batch: int = 20, env: Mapping[str, str] | None = None) -> None:
        words = [verb, str(office.app.main), office.broker, json.dumps(office.conf), str(batch)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.operator", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
            cwd=ROOT,
        )

    def go(self) -> None:
        """Let it begin, once it is ready."""
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        assert self._process.stdout.readline() == b"ready\n"
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(b"go\n")
            self._process.stdin.flush()

    def wait(self, seconds: float = 60) -> int:
        """Wait for its end; gives the exit code, negative where a signal ended it."""
        try:
            return self._process.wait(seconds)
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill it, if it lives."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


def main(verb: str, name: str, broker: str, conf: str, batch: str) -> None:
    """Do what an operator does, in small batches."""
    from celery import Celery

    from celery_resilience import runtime_of
    from celery_resilience.deadletter import settling
    from celery_resilience.deadletter.filters import LetterFilter

    settling.BATCH = int(batch)
    app = Celery(name, broker=broker)
    app.conf.update(json.loads(conf))
    desk = runtime_of(app).desk
    desk.count()
    print("ready", flush=True)
    sys.stdin.readline()
    if verb == "requeue":
        desk.requeue(LetterFilter())
    elif verb == "discard":
        desk.discard(LetterFilter(), "no")
    else:
        desk.collect()


if __name__ == "__main__":
    main(*sys.argv[1:])
