"""A duty: something a worker does again and again beside its tasks, in a thread of its own.

A thread, because a solo worker's event loop stands still while a task runs. What the duty raises is logged once per
spell of trouble, never ends the thread and never reaches a task.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable

from ..events import Event, tell

logger = logging.getLogger(__name__)

TROUBLE_SECONDS = 1.0


class Duty:
    """Calls `work`, which gives the seconds until it wants to be called again, until it is stopped.

    `is_blocking` work is done in a thread of the system even under gevent, whose threads share one of them: it must not
    use connections that others use.
    """

    def __init__(self, name: str, work: Callable[[], float], *, is_blocking: bool = False) -> None:
        self.name = name
        self._work = _apart(work) if is_blocking else work
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"resilience-{name}", daemon=True)

    def start(self) -> None:
        """Start the thread, unless it runs already."""
        if not self._thread.is_alive():
            self._thread.start()

    def stop(self, wait_seconds: float = 2.0) -> None:
        """Stop the thread and wait for it, but not for long: it holds nothing that must be finished."""
        self._stopped.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(wait_seconds)

    def _run(self) -> None:
        in_trouble = False
        while not self._stopped.is_set():
            try:
                pause = self._work()
                in_trouble = False
            except Exception as error:
                if not in_trouble:
                    tell(logger, logging.WARNING, Event.DUTY_FAILED, duty=self.name, error=repr(error))
                in_trouble, pause = True, TROUBLE_SECONDS
            self._stopped.wait(pause)


def _apart(work: Callable[[], float]) -> Callable[[], float]:
    """Have work done in a thread of its own where gevent has made all threads its own."""
    monkey = sys.modules.get("gevent.monkey")
    if monkey is None or not monkey.is_module_patched("threading"):
        return work
    from gevent.threadpool import ThreadPool

    pool = ThreadPool(1)
    return lambda: float(pool.apply(work))
