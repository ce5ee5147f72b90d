"""The link of a process to a breaker's state: what it believes, what it has counted, and who decides.

While calls happen it sends one command every 250 ms at the most, more only near the threshold; when Redis is away the
local machine decides and the counts wait. No thread, nothing when idle, nothing carried over a fork.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace

from ..breaker_policy import BreakerPolicy
from ..clock import Clock
from ..errors import StoreUnavailableError
from ..events import Event, tell
from .backlog import Backlog
from .local import LocalMachine
from .shared import SharedMachine
from .values import Machine, Outcome, Reply, Report, Transition
from .view import Era, View, view_of

logger = logging.getLogger(__name__)
_links: weakref.WeakSet[Link] = weakref.WeakSet()
_EVENTS = {
    "opened": (Event.BREAKER_OPENED, logging.WARNING),
    "half-opened": (Event.BREAKER_HALF_OPENED, logging.INFO),
    "closed": (Event.BREAKER_CLOSED, logging.INFO),
    "forced": (Event.BREAKER_FORCED, logging.WARNING),
    "released": (Event.BREAKER_RELEASED, logging.INFO),
}


class Link:
    """One breaker as this process sees it. `view` is read without a lock; everything else goes through the lock."""

    def __init__(
        self, name: str, policy: BreakerPolicy, shared: SharedMachine | None, clock: Clock, cooldown_seconds: float
    ) -> None:
        self.name = name
        self.policy = policy
        self.clock = clock
        self.shared = shared
        self.cooldown_seconds = cooldown_seconds
        self.on_transition: Callable[[Transition], None] | None = None
        self.forget()
        _links.add(self)

    def forget(self) -> None:
        """Start anew with nothing known and nothing counted, as a forked child must."""
        self._lock = threading.Lock()
        self.local = LocalMachine(self.name, self.policy, self.clock)
        self._last_shared: Reply | None = None
        self._heard_at = 0.0
        self._backlog = Backlog()
        self._away_until = 0.0
        self.view = View(Era(self.shared or self.local, 0))

    def ask(self, token: str) -> tuple[View, bool]:
        """Refresh the view, sending along what was counted; with a token also ask for a permit in half-open.

        Gives the view to decide by, and whether a probe was granted. If another thread is asking already and the
        last view was of calm, that one serves for another moment.
        """
        now = self.clock.monotonic()
        with self._lock:
            if now < self.view.fast_until:
                return self.view, False
            if self.view.staleness and self.view.stance == "pass":  # near the threshold every thread asks
                self.view = replace(self.view, fast_until=now + self.view.staleness)
            fresh = self.view.era.take()
        return self._send(fresh, token, now)

    def count_failure(self, era: Era, hint_ms: int, is_slow: bool) -> None:
        """Send a failure at once, with what was counted before it; one of an older generation is passed over."""
        now = self.clock.monotonic()
        with self._lock:
            current = self.view.era
            if current.machine is era.machine and current.generation != era.generation:
                return
            failure = Report(current.generation, failures=int(not is_slow), slow_failures=int(is_slow), hint_ms=hint_ms)
            fresh = current.take().plus(failure)
        self._send(fresh, "", now)

    def settle(self, era: Era, token: str, outcome: Outcome, hint_ms: int) -> None:
        """Give a probe's permit back. If Redis is away the permit comes back by itself when its lease ends."""
        if era.pid != os.getpid():
            return  # the parent's probe
        now = self.clock.monotonic()
        try:
            reply = era.machine.settle(era.generation, token, outcome, hint_ms)
        except StoreUnavailableError as error:
            self._fall_back(Report(), Backlog(), "", now, error)
            return
        with self._lock:
            is_current = self.view.era.machine is era.machine
        if is_current:
            self._take_in(era.machine, reply, now)

    def flush(self) -> None:
        """Send what was counted now, for a process about to end."""
        with self._lock:
            fresh = self.view.era.take()
        if fresh.calls or self._backlog:
            self._send(fresh, "", self.clock.monotonic())

    def take_in(self, reply: Reply) -> None:
        """Believe the reply to an operator's change."""
        self._take_in(self.shared or self.local, reply, self.clock.monotonic())

    def _send(self, fresh: Report, token: str, now: float) -> tuple[View, bool]:
        """Give new counts to whoever decides: Redis together with the backlog, or the local machine."""
        shared = self.shared
        if shared is None:
            return self._take_in(self.local, self.local.sync(fresh, token), now)
        with self._lock:
            is_away = now < self._away_until
            is_ours = self.view.era.machine is shared
            backlog, self._backlog = self._backlog, Backlog()
            if not backlog:
                known = self._last_shared.generation if self._last_shared else 0
                backlog = Backlog(fresh.generation if is_ours else known)
            if is_away:
                backlog.add(fresh, now, self.policy.window_seconds)
                self._backlog = backlog
        if is_away:
            return self._take_in(self.local, self.local.sync(fresh, token), now)
        sent = fresh._replace(generation=backlog.generation, hint_ms=max(fresh.hint_ms, backlog.hint_ms(now)))
        try:
            reply = shared.sync(sent, token, backlog.runs(now))
        except StoreUnavailableError as error:
            backlog.add(fresh, now, self.policy.window_seconds)
            return self._fall_back(fresh, backlog, token, now, error)
        return self._take_in(shared, reply, now)

    def _fall_back(
        self, fresh: Report, sent: Backlog, token: str, now: float, error: StoreUnavailableError
    ) -> tuple[View, bool]:
        """Let the local machine decide for a cool-down; what could not be sent waits."""
        with self._lock:
            self._backlog = sent.followed_by(self._backlog) if sent else self._backlog
            # Counted from now, after the wait: the store, which waits too, must be willing again by then.
            self._away_until = self.clock.monotonic() + self.cooldown_seconds
            is_first = self.view.era.machine is not self.local
            if is_first:
                age_ms = int((self.clock.monotonic() - self._heard_at) * 1000)
                generation = self.local.adopt(self._last_shared, age_ms)
                self.view = View(Era(self.local, generation))
            fresh = fresh._replace(generation=self.view.era.generation)
        if is_first:
            tell(logger, logging.WARNING, Event.BREAKER_STORE_LOST, breaker=self.name, error=error)
        return self._take_in(self.local, self.local.sync(fresh, token), now)

    def _take_in(self, machine: Machine, reply: Reply, asked_at: float) -> tuple[View, bool]:
        with self._lock:
            era = self.view.era
            if era.machine is not machine or era.generation != reply.generation:
                era = Era(machine, reply.generation)
            view = view_of(reply, era, self.policy, asked_at)
            if self.view.era.machine is not machine or self.view.is_older_than(reply):
                self.view = view
                if machine is self.shared:
                    self._last_shared, self._heard_at, self._away_until = reply, asked_at, 0.0
        for transition in reply.told:
            self._log(transition)
            if self.on_transition is not None:
                self.on_transition(transition)
        return view, reply.granted

    def _log(self, transition: Transition) -> None:
        event, level = _EVENTS[transition.event]
        tell(
            logger,
            level,
            event,
            breaker=self.name,
            before=transition.from_state,
            after=transition.to_state,
            reason=transition.reason,
            who=transition.who,
            generation=transition.generation,
        )


def _forget_after_fork() -> None:
    for link in list(_links):
        link.forget()


os.register_at_fork(after_in_child=_forget_after_fork)
