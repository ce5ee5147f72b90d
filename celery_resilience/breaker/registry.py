"""The breakers of one app in this process: made by name on first use, the least recently used forgotten."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping

from ..breaker_policy import BreakerPolicy
from ..clock import Clock
from ..failure import Classifier
from ..redis_store import RedisStore
from . import shared
from .circuit import CircuitBreaker
from .values import Snapshot, Transition


class Breakers:
    """Gives the breaker of a name, always the same one while it is in use."""

    def __init__(
        self,
        store: RedisStore | None,
        clock: Clock,
        classifier: Classifier,
        *,
        default: BreakerPolicy,
        policies: Mapping[str, BreakerPolicy],
        max_breakers: int,
        on_transition: Callable[[Transition], None] | None = None,
    ) -> None:
        self.on_transition = on_transition
        self.store = store
        self.clock = clock
        self.classifier = classifier
        self.default = default
        self.policies = policies
        self.max_breakers = max_breakers
        self._known: OrderedDict[str, CircuitBreaker] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, name: str, policy: BreakerPolicy | None = None) -> CircuitBreaker:
        """Give the breaker of a name; a policy given here speaks only when the breaker is made."""
        with self._lock:
            breaker = self._known.get(name)
            if breaker is None:
                breaker = self._known[name] = CircuitBreaker(
                    name,
                    policy or self.policies.get(name, self.default),
                    store=self.store,
                    clock=self.clock,
                    classifier=self.classifier,
                    max_breakers=self.max_breakers,
                    on_transition=self.on_transition,
                )
                if len(self._known) > self.max_breakers:
                    self._known.popitem(last=False)
            else:
                self._known.move_to_end(name)
            return breaker

    def names(self) -> list[str]:
        """List known breakers of the fleet, the last used first. Raises StoreUnavailableError."""
        if self.store is None:
            with self._lock:
                return list(reversed(self._known))
        return shared.names(self.store)

    def find(self, name: str) -> Snapshot | None:
        """Look at one breaker; None if nobody ever used it. Raises StoreUnavailableError."""
        if self.store is None:
            return self.get(name).snapshot()
        policy = self.policies.get(name, self.default)
        return shared.SharedMachine(name, policy, self.store, self.clock).look()

    def snapshots(self) -> list[Snapshot]:
        """Look at all known breakers, the last used first. Raises StoreUnavailableError."""
        found = (self.find(name) for name in self.names())
        return [one for one in found if one is not None]

    def history(self, limit: int = 50, name: str | None = None) -> list[Transition]:
        """List transitions of one breaker or of all, the newest first. Raises StoreUnavailableError."""
        if self.store is None:
            found = [one for known in self.names() if name in (None, known) for one in self.get(known).history(limit)]
            return sorted(found, key=lambda one: -one.at)[:limit]
        return shared.history(self.store, limit, name)
