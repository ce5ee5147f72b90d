"""A payment service with moods: a real HTTP server in a thread, which counts every call it gets.

The mood follows from the order's number, so a run can be understood from its transcript.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

SLOW_SECONDS = 1.0
Mood = Callable[["Desk", int], None]


class Desk(BaseHTTPRequestHandler):
    """Answers one call: POST /service/order."""

    moods: ClassVar[dict[int, Mood]]
    calls: ClassVar[Counter[str]]  # per path, however they ended
    granted: ClassVar[Counter[str]]  # per path, answered with 200
    lock: ClassVar[threading.Lock]

    def do_POST(self) -> None:
        """Count the call, then answer as the order's mood is."""
        with self.lock:
            self.calls[self.path] += 1
            count = self.calls[self.path]
        order = int(self.path.rpartition("/")[2])
        mood = self.moods.get(order % 8, fine) if not self.path.startswith("/invoice") else fine
        mood(self, count)

    def reply(self, status: int, text: str = "", **headers: str) -> None:
        """Send a whole answer."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(text)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the transcript is the demo's."""


def fine(desk: Desk, count: int) -> None:
    """Answer 200."""
    with desk.lock:
        desk.granted[desk.path] += 1
    desk.reply(200, f"ok {desk.path}")


def overloaded_twice(desk: Desk, count: int) -> None:
    """Answer 503 two times."""
    fine(desk, count) if count > 2 else desk.reply(503)


def says_slow_down(desk: Desk, count: int) -> None:
    """Answer 429 once, with the seconds to wait."""
    fine(desk, count) if count > 1 else desk.reply(429, Retry_After="1")


def hangs_up(desk: Desk, count: int) -> None:
    """Reset the connection once, as a crashing server does."""
    if count > 1:
        return fine(desk, count)
    desk.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    desk.connection.close()
    return None


def refuses(desk: Desk, count: int) -> None:
    """Answer 422: this order will never be right."""
    desk.reply(422)


def is_slow_once(desk: Desk, count: int) -> None:
    """Let the caller wait once for longer than it will."""
    if count > 1:
        fine(desk, count)
    else:
        time.sleep(SLOW_SECONDS)  # the caller has left by then, so nothing is granted


def is_down(desk: Desk, count: int) -> None:
    """Answer 503, always."""
    desk.reply(503)


class QuietServer(ThreadingHTTPServer):
    """A server that takes callers who hang up for granted."""

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing."""


class FlakyService:
    """The service, running until `close()`."""

    def __init__(self) -> None:
        class OwnDesk(Desk):
            moods: ClassVar[dict[int, Mood]] = {
                1: overloaded_twice,
                2: says_slow_down,
                3: hangs_up,
                4: refuses,
                5: is_slow_once,
                7: is_down,
            }
            calls: ClassVar[Counter[str]] = Counter()
            granted: ClassVar[Counter[str]] = Counter()
            lock: ClassVar[threading.Lock] = threading.Lock()

        self._desk = OwnDesk
        self._server = QuietServer(("127.0.0.1", 0), OwnDesk)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Give the address."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def recover(self) -> None:
        """Be down no more."""
        self._desk.moods = {order: mood for order, mood in self._desk.moods.items() if mood is not is_down}

    def calls(self) -> int:
        """Count the calls that arrived."""
        with self._desk.lock:
            return self._desk.calls.total()

    def granted(self) -> Counter[str]:
        """Count the calls answered with 200, per path."""
        with self._desk.lock:
            return Counter(self._desk.granted)

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
