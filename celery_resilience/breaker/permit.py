"""Permits and refusals: the two answers to who wants to call a dependency."""

from __future__ import annotations

import os
from asyncio import CancelledError
from contextvars import ContextVar
from dataclasses import dataclass

from ..breaker_policy import BreakerPolicy
from ..errors import BreakerOpenError, LimitReachedError, QueueFullError
from ..failure import Classifier, Failure, FailureClass
from .link import Link
from .values import NO_HINT
from .view import Era

_MAX_HINT_SECONDS = 7 * 86400.0
_held: ContextVar[tuple[Permit, ...]] = ContextVar("celery_resilience_held", default=())


@dataclass(frozen=True, slots=True)
class Refusal:
    """No permit. `retry_after` is in seconds; `state` is one of the words of `Snapshot.state`."""

    name: str
    retry_after: float
    reason: str
    state: str

    def error(self) -> BreakerOpenError:
        """Give the exception that says so."""
        return BreakerOpenError(self.name, self.retry_after, self.reason)


class Permit:
    """The right to one call; say how it ended, once. A permit that is forgotten comes back when its lease ends.

    Its methods never raise because of Redis.
    """

    __slots__ = ("_classifier", "_era", "_is_settled", "_link", "_started", "_token")

    def __init__(self, link: Link, era: Era, started: float, classifier: Classifier, token: str = "") -> None:
        self._link = link
        self._era = era
        self._started = started
        self._classifier = classifier
        self._token = token
        self._is_settled = False

    @property
    def is_probe(self) -> bool:
        """Say whether the call is a probe of a half-open breaker."""
        return bool(self._token)

    @property
    def name(self) -> str:
        """Give the breaker's name."""
        return self._link.name

    def success(self) -> None:
        """Say that the call succeeded; if it took `slow_call_seconds`, that counts too."""
        if self._is_settled:
            return
        self._is_settled = True
        is_slow = is_slow_call(self._link, self._started)
        if self._token:
            self._link.settle(self._era, self._token, "slow" if is_slow else "success", NO_HINT)
        elif is_slow:
            self._era.tick_slow()
        else:
            self._era.tick()

    def failure(self, exc: BaseException | Failure | None = None) -> None:
        """Say that the call failed; what does not count by the policy (or is control flow) only returns the permit."""
        if self._is_settled:
            return
        hint_ms = counted_hint(exc, self._link.policy, self._classifier)
        if hint_ms is None:
            self.cancel()
            return
        self._is_settled = True
        if self._token:
            self._link.settle(self._era, self._token, "failure", hint_ms)
        else:
            self._link.count_failure(self._era, hint_ms, is_slow_call(self._link, self._started))

    def cancel(self) -> None:
        """Give the permit back unused."""
        if self._is_settled:
            return
        self._is_settled = True
        if self._token:
            self._link.settle(self._era, self._token, "cancel", NO_HINT)


class InnerPermit(Permit):
    """A call within a probe, which is part of it: a failure here is the probe's, anything else is left to the probe."""

    __slots__ = ("_outer",)

    def __init__(self, outer: Permit, started: float) -> None:
        super().__init__(outer._link, outer._era, started, outer._classifier, outer._token)
        self._outer = outer

    def success(self) -> None:
        """Leave it to the probe to succeed."""
        self._is_settled = True

    def failure(self, exc: BaseException | Failure | None = None) -> None:
        """Let the probe fail, whatever becomes of it; what does not count changes nothing."""
        is_counted = counted_hint(exc, self._link.policy, self._classifier) is not None
        if is_counted and not self._is_settled:
            self._outer.failure(exc)
        self._is_settled = True

    def cancel(self) -> None:
        """Leave the permit to the probe."""
        self._is_settled = True


def hold(permit: Permit) -> None:
    """Let calls within this context that ask the same breaker find the permit, until it is settled."""
    _held.set((*(one for one in _held.get() if not one._is_settled), permit))


def let_go(permit: Permit) -> None:
    """Have calls in this context ask for themselves again."""
    _held.set(tuple(one for one in _held.get() if one is not permit))


def held_permit(link: Link) -> Permit | None:
    """Give the permit that a call around this one has of the same breaker, if it has not ended."""
    for permit in reversed(_held.get()):
        if permit._link is link and not permit._is_settled and permit._era.pid == os.getpid():
            return permit
    return None


def is_slow_call(link: Link, started: float) -> bool:
    """Say whether a call that ends now was slow."""
    limit = link.policy.slow_call_seconds
    return limit is not None and link.clock.monotonic() - started >= limit


def counted_hint(exc: BaseException | Failure | None, policy: BreakerPolicy, classifier: Classifier) -> int | None:
    """Give the ms a failure asked to wait, -1 if it did not; None if it does not count at all."""
    if exc is None:
        return NO_HINT
    if isinstance(exc, (BreakerOpenError, LimitReachedError, QueueFullError, CancelledError)):
        return None  # nobody was called, or the caller lost interest
    failure = exc if isinstance(exc, Failure) else classifier.classify(exc)
    if failure.failure_class is FailureClass.NOT_A_FAILURE or failure.failure_class not in policy.failure_classes:
        return None
    return NO_HINT if failure.retry_after is None else int(min(failure.retry_after, _MAX_HINT_SECONDS) * 1000)
