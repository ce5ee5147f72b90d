"""One guarded call: its gates, its failures, and how long it may still wait.

The innermost call that has a `retry_policy` decides for good: what it gives up, no outer one repeats.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from celery import Celery
from celery._state import get_current_app, get_current_task
from celery.exceptions import SoftTimeLimitExceeded

from .breaker import Permit, Refusal
from .clock import SYSTEM_CLOCK, Clock
from .decision import HINT_SPREAD, History, Retry, decide
from .errors import BreakerOpenError, LimitReachedError, QueueFullError
from .failure import Failure, FailureClass
from .gates import Gates
from .libraries import look
from .limits import BUDGET_COST
from .policy import RetryPolicies
from .runtime import Runtime, runtime_here
from .task import ResilientTask

LEAST_PAUSE_SECONDS = 0.05  # a refusal that is about to end may say 0: do not spin
GIVEN_UP = "_resilience_given_up"  # on an exception: the number of the moment a guarded call gave it up
_MAX_CHAIN = 50

_moments = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Terms:
    """What is the same for all calls of one guard; `app` is None for that of the running task, or the current one."""

    gates: Gates
    policies: RetryPolicies | None
    budget_seconds: float
    app: Celery | None


class Call:
    """One guarded call: what its gates gave, how often it failed, and how long it may still wait."""

    def __init__(self, guard: Terms, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._policies = guard.policies
        self._task, self._runtime = _running(guard.app)
        self.clock = self._runtime.clock
        self._breakers = guard.gates.breakers(args, kwargs)
        limit = guard.gates.rate_of(args, kwargs)
        # Apart from the rates of tasks, whose names are often those of their functions.
        self._rate = None if limit is None else (f"call:{limit[0]}", limit[1])
        self._ends_at = self.clock.monotonic() + guard.budget_seconds
        self._began = next(_moments)
        self._permits: list[Permit] = []
        self._has_slot = False
        self._pause = 0.0
        self._history = History(failed_attempts=0)
        self._last_error: Exception | None = None

    def enter(self) -> float:
        """Ask the gates; gives the seconds to wait before asking again, 0 when the call may be made.

        Nothing but a reserved slot of a rate is held while waiting. Raises the refusal; after a call that was made
        and failed its own error, because a refusal would hide that an attempt was spent.
        """
        wait, self._pause = self._pause, 0.0
        if self._runtime.is_eager:
            self._ends_at -= wait  # not waited for, and used up all the same
        elif wait > 0:
            return wait
        answer = self._ask_breakers() or self._ask_rate()
        if isinstance(answer, (BreakerOpenError, LimitReachedError)):
            self._cancel()
            return self._patience(answer)
        if answer > 0:
            self._cancel()
        else:
            self._has_slot = False
        return answer

    def succeeded(self) -> None:
        """Tell the breakers that the call succeeded."""
        for permit in self._permits:
            permit.success()
            self._runtime.note_success(permit.name)
        self._permits, self._last_error = [], None

    def is_tried_again(self, error: BaseException) -> bool:
        """Tell the breakers that the call failed; say whether to enter again. If not, outer calls are told too."""
        if not isinstance(error, Exception):
            self._cancel()
            return False
        failure = self._classify(error)
        if isinstance(error, (BreakerOpenError, LimitReachedError, QueueFullError)):
            self._cancel()  # by a gate inside the call: nobody was called
        else:
            self._count(failure)
        if self._policies is None or failure.failure_class is FailureClass.NOT_A_FAILURE:
            return False
        self._history = replace(self._history, failed_attempts=self._history.failed_attempts + 1)
        delay = None if _is_final(error, self._began) else self._delay(failure, self._policies)
        if delay is None:
            _give_up(error)
            self._last_error = None
            return False
        self._history = replace(self._history, previous_delay=delay)
        self._pause, self._last_error = delay, error
        return True

    def _classify(self, error: Exception) -> Failure:
        """Classify by the rules of the task in whose body this is, if it is one of ours; else by those of the app."""
        if self._task is not None:
            return self._task._outcome(self._task.request).classify(error)
        return self._runtime.classifier.classify(error, now=self.clock.time())

    def _ask_breakers(self) -> BreakerOpenError | None:
        for name, policy in self._breakers:
            answer = self._runtime.breaker(name, policy).enter()
            if isinstance(answer, Refusal):
                return answer.error()
            self._permits.append(answer)
        return None

    def _ask_rate(self) -> LimitReachedError | float:
        """Ask for a slot, if none is held; gives the seconds until it comes."""
        limits = self._runtime.limits
        if self._rate is None or self._has_slot or limits is None:
            return 0.0
        answer = limits.rate(*self._rate, self._left())
        self._has_slot = answer.is_admitted
        return answer.wait if answer.is_admitted else LimitReachedError(f"rate {self._rate[0]}", answer.wait)

    def _patience(self, refusal: BreakerOpenError | LimitReachedError) -> float:
        """Give the seconds until a refusal ends, if there is a policy and time, else raise; costs no attempt."""
        wait = max(LEAST_PAUSE_SECONDS, refusal.retry_after * (1 + self.clock.uniform(0.0, HINT_SPREAD)))
        if self._policies is not None and wait <= self._left() and not self._runtime.is_eager:
            return wait
        error, self._last_error = self._last_error or refusal, None
        if self._policies is not None:
            _give_up(error)
        raise error

    def _delay(self, failure: Failure, policies: RetryPolicies) -> float | None:
        """Give the seconds until the next try, None if policy, time left or retry budget allow none."""
        history = replace(self._history, deadline_at=self.clock.time() + self._left())
        decision = decide(failure, history, policies[failure.failure_class], self.clock)
        return decision.delay if isinstance(decision, Retry) and self._is_affordable(failure) else None

    def _is_affordable(self, failure: Failure) -> bool:
        """Spend from the retry budgets of the breakers, which the tasks share; there is no line to wait in here."""
        limits, cost = self._runtime.limits, BUDGET_COST.get(failure.failure_class, 1.0)
        return limits is None or all(
            limits.spend(name, cost, self._runtime.take_successes(name), longest_wait=0.0).is_admitted
            for name, _ in self._breakers
        )

    def _count(self, failure: Failure) -> None:
        """Count a failure at the breakers; let the whole fleet rest as long as the server asked."""
        for permit in self._permits:
            permit.failure(failure)
        self._permits = []
        seconds = failure.retry_after
        if failure.failure_class is not FailureClass.RATE_LIMITED or not seconds or self._runtime.is_eager:
            return
        if self._rate is not None and self._runtime.limits is not None:
            self._runtime.limits.hold(*self._rate, seconds)
        for name, policy in self._breakers:
            self._runtime.breaker(name, policy).rest(seconds)

    def _cancel(self) -> None:
        for permit in self._permits:
            permit.cancel()
        self._permits = []

    def _left(self) -> float:
        return max(0.0, self._ends_at - self.clock.monotonic())


async def pause(clock: Clock, seconds: float) -> None:
    """Wait without holding up the loop; the clock of a test is moved instead."""
    if clock is not SYSTEM_CLOCK:
        clock.sleep(seconds)
        seconds = 0.0
    await asyncio.sleep(seconds)


def _running(app: Celery | None) -> tuple[ResilientTask | None, Runtime]:
    """Give the resilient task that runs here, and the runtime: of the app given, else that task's, else the current.

    A call that was given another app than the task's is none of the task's. In an eager call nothing asks Redis.
    """
    task: Any = get_current_task()  # may be None, whatever the stubs say
    if app is None:
        app = get_current_app() if task is None else task.app
    is_its_own = isinstance(task, ResilientTask) and task.app is app
    return (task if is_its_own else None), runtime_here(app)


def _give_up(error: BaseException) -> None:
    """Tell outer guarded calls that this error has had its retries.

    By a number and not a flag: an exception object that is raised anew, as mocks do, is a new failure.
    """
    with contextlib.suppress(Exception):  # more hostile than an exception should be
        error.__dict__[GIVEN_UP] = next(_moments)


def _is_final(error: BaseException, since: int) -> bool:
    """Say whether trying again in place is wrong: an inner call gave it up meanwhile, or the task's time is over."""
    for one in _chain(error):
        given_up = look.peek(one, GIVEN_UP)
        if isinstance(one, SoftTimeLimitExceeded) or (isinstance(given_up, int) and given_up > since):
            return True
    return False


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Give the error, its causes and contexts and the members of groups: whatever wraps an error must not hide it."""
    waiting, seen = [error], set[int]()
    while waiting and len(seen) < _MAX_CHAIN:
        one = waiting.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        members = look.peek(one, "exceptions")
        inside = [look.peek(one, "__cause__"), look.peek(one, "__context__")]
        inside += members if isinstance(members, tuple) else ()
        waiting += [inner for inner in inside if isinstance(inner, BaseException)]
