"""A payment service over HTTP in a process of its own, which a test may take down; its log of calls is the evidence.

While a file `down` lies in its directory it answers 503. Each call is a line of `calls`: when, order, attempt,
status.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from celery_resilience.testing.processes import spawn
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Call:
    """One call as the service saw it."""

    at: float
    order: int
    attempt: int
    status: int


class PaymentService:
    """The service as a test sees it."""

    def __init__(self, directory: Path, port: int) -> None:
        self.directory = directory
        self.url = f"http://127.0.0.1:{port}"

    def go_down(self) -> float:
        """Answer 503 from now on; gives the moment."""
        (self.directory / "down").touch()
        return time.time()

    def come_back(self) -> float:
        """Answer 200 again; gives the moment."""
        moment = time.time()
        (self.directory / "down").unlink()
        return moment

    def calls(self) -> list[Call]:
        """Give the log of calls so far."""
        rows = [line.split() for line in (self.directory / "calls").read_text(encoding="utf-8").splitlines()]
        return [Call(float(at), int(order), int(attempt), int(status)) for at, order, attempt, status in rows]


@contextlib.contextmanager
def payment_service(directory: Path) -> Iterator[PaymentService]:
    """Run the service for the length of a `with` block."""
    process = spawn(
        [sys.executable, "-m", "tests.support.payment_service", str(directory)],
        log=directory / "service.log",
        env={"PYTHONPATH": str(ROOT)},
        cwd=ROOT,
    )
    try:
        port = directory / "port"
        wait_until(lambda: port.exists() and port.read_text(), 15, "the port of the payment service")
        yield PaymentService(directory, int(port.read_text()))
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
        process.kill()


def serve(directory: Path) -> None:
    """Answer until the process is ended."""
    lock = threading.Lock()
    with (directory / "calls").open("a", buffering=1, encoding="utf-8") as log:

        class Payments(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                at, status = time.time(), 503 if (directory / "down").exists() else 200
                _, order, attempt = self.path.split("/")
                with lock:
                    log.write(f"{at} {order} {attempt} {status}\n")
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                """Keep quiet: the log of calls says it all."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Payments)
        (directory / "port").write_text(str(server.server_port), encoding="utf-8")
        server.serve_forever()


if __name__ == "__main__":
    serve(Path(sys.argv[1]))
