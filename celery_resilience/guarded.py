"""Guarded calls: the classifier, breakers and limits of tasks for a call inside a body, with short retries in place.

The innermost call that has a `retry_policy` decides for good: what it gives up, no outer one repeats. The task does,
by its own policy.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, replace
from types import CoroutineType, ModuleType, TracebackType
from typing import Any, ParamSpec, TypeVar

from celery import Celery, Task
from celery._state import get_current_app, get_current_task
from celery.exceptions import SoftTimeLimitExceeded
from celery.local import Proxy

from .breaker import Permit, Refusal
from .breaker_policy import BreakerPolicy
from .checks import number, required, text
from .clock import SYSTEM_CLOCK, Clock
from .decision import HINT_SPREAD, History, Retry, decide
from .errors import BreakerOpenError, ConfigurationError, LimitReachedError
from .failure import Failure, FailureClass
from .gates import BreakerOption, Gates, RateOption, check_gates
from .libraries import look
from .limits import BUDGET_COST
from .policy import PolicyOption, RetryPolicies, policies_from
from .rate import read_rate
from .runtime import Runtime, runtime_of

Args = ParamSpec("Args")
Result = TypeVar("Result")

BUDGET_SECONDS = 5.0
MAX_BUDGET_SECONDS = 60.0  # a worker that waits does nothing else: longer waits are the schedule's
LEAST_PAUSE_SECONDS = 0.05  # a refusal that is about to end may say 0: do not spin
WHERE = "guarded: "
GIVEN_UP = "_resilience_given_up"  # on an exception: the number of the moment a guarded call gave it up
_MAX_CHAIN = 50

_moments = itertools.count(1)
_entered: ContextVar[tuple[tuple[Guard, Call], ...]] = ContextVar("celery_resilience_guarded", default=())


def guarded(
    *,
    breaker: BreakerOption = None,
    retry_policy: PolicyOption = None,
    rate: RateOption = None,
    budget_seconds: float = BUDGET_SECONDS,
    name: str | None = None,
    app: Celery | None = None,
) -> Guard:
    """Guard calls: `@guarded(…)` on a function or coroutine function, or `with guarded(…):` around a block.

    `breaker` and `rate` are as on a task; `retry_policy` retries in place and is for functions only, since a block
    cannot be run again. All waiting of one call ends within `budget_seconds` (0 to 60): what would take longer raises.
    Raises BreakerOpenError or LimitReachedError when refused; in a task's body that parks the task.
    """
    required(f"{WHERE}budget_seconds", budget_seconds)
    number(f"{WHERE}budget_seconds", budget_seconds, low=0, high=MAX_BUDGET_SECONDS)
    text(f"{WHERE}name", name, "payments-api")
    if app is not None and not isinstance(app, Celery):
        raise _wrong("app", app, "is not a Celery app", "Leave it out for the current app.")
    if breaker is None and rate is None and retry_policy is None:
        raise _wrong("breaker", None, "nothing is guarded", "Give at least one of breaker, rate and retry_policy.")
    policies = None if retry_policy is None else policies_from(f"{WHERE}retry_policy", retry_policy)
    if rate is not None and not callable(rate):
        read_rate(f"{WHERE}rate", rate)  # before check_gates, which has a task's word for it
    gates = check_gates(WHERE, Gates(task=name or "", breaker=breaker, rate=rate))
    return Guard(gates=gates, policies=policies, budget_seconds=float(budget_seconds), app=app)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Guard:
    """What `guarded` gives: a decorator and a context manager; safe to share between threads and coroutines."""

    gates: Gates
    policies: RetryPolicies | None
    budget_seconds: float
    app: Celery | None

    def __call__(self, function: Callable[Args, Result]) -> Callable[Args, Result]:
        """Decorate a function or a coroutine function."""
        _check_function(function)
        guard = self if self.gates.task else replace(self, gates=replace(self.gates, task=_name_of(function)))
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def guarded_coroutine(*args: Args.args, **kwargs: Args.kwargs) -> Any:
                return await _run_async(Call(guard, args, kwargs), functools.partial(function, *args, **kwargs))

            return guarded_coroutine  # type: ignore[return-value]  # a coroutine function for a coroutine function

        @functools.wraps(function)
        def guarded_function(*args: Args.args, **kwargs: Args.kwargs) -> Result:
            return _run(Call(guard, args, kwargs), functools.partial(function, *args, **kwargs))

        return guarded_function

    def __enter__(self) -> None:
        call = self._call_of_block()
        while (wait := call.enter()) > 0:
            call.clock.sleep(wait)
        _entered.set((*_entered.get(), (self, call)))

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        entered = _entered.get()
        # Blocks of generators may end out of order: ours is the last of this guard.
        at = max((i for i, (guard, _) in enumerate(entered) if guard is self), default=-1)
        if at < 0:
            return
        _entered.set(entered[:at] + entered[at + 1 :])
        if exc is None:
            entered[at][1].succeeded()
        else:
            entered[at][1].is_tried_again(exc)

    async def __aenter__(self) -> None:
        call = self._call_of_block()
        while (wait := call.enter()) > 0:
            await _pause(call.clock, wait)
        _entered.set((*_entered.get(), (self, call)))

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, exc, trace)

    def _call_of_block(self) -> Call:
        """Begin the call of a `with` block; refuse what only a function can have."""
        gates = self.gates
        if self.policies is not None:
            remedy = "Decorate a function with @guarded(…), or leave the policy out."
            raise _wrong("retry_policy", "given", "cannot work in a `with` block, which cannot be run again", remedy)
        for field, option in (("breaker", gates.breaker), ("rate", gates.rate)):
            if callable(option):
                remedy = "Give what the function would give, or decorate a function."
                raise _wrong(field, option, "a `with` block has no arguments to ask it with", remedy)
        if not gates.task and (gates.rate is not None or isinstance(gates.breaker, BreakerPolicy)):
            remedy = 'Write for example name="payments-api"; equal names share a rate.'
            raise _wrong("name", None, "a `with` block has no name of its own", remedy)
        return Call(self, (), {})


class Call:
    """One guarded call: what its gates gave, how often it failed, and how long it may still wait."""

    def __init__(self, guard: Guard, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._policies = guard.policies
        self._runtime = runtime = _runtime(guard.app)
        self.clock = runtime.clock
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
        if wait > 0:
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
        failure = self._runtime.classifier.classify(error, now=self.clock.time())
        if isinstance(error, (BreakerOpenError, LimitReachedError)):
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

    def _ask_breakers(self) -> BreakerOpenError | None:
        for name, policy in self._breakers:
            answer = self._runtime.breaker(name, policy).admit()
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
        if self._policies is not None and wait <= self._left():
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
        if failure.failure_class is not FailureClass.RATE_LIMITED or not seconds:
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


def _run(call: Call, function: Callable[[], Result]) -> Result:
    while True:
        while (wait := call.enter()) > 0:
            call.clock.sleep(wait)
        try:
            result = function()
            _refuse_coroutine(result)
        except BaseException as error:
            if not call.is_tried_again(error):
                raise
        else:
            call.succeeded()
            return result


async def _run_async(call: Call, function: Callable[[], Any]) -> Any:
    while True:
        while (wait := call.enter()) > 0:
            await _pause(call.clock, wait)
        try:
            result = await function()
        except BaseException as error:
            if not call.is_tried_again(error):
                raise
        else:
            call.succeeded()
            return result


async def _pause(clock: Clock, seconds: float) -> None:
    """Wait without holding up the loop; the clock of a test is moved instead."""
    if clock is not SYSTEM_CLOCK:
        clock.sleep(seconds)
        seconds = 0.0
    await asyncio.sleep(seconds)


def _runtime(app: Celery | None) -> Runtime:
    """Find the runtime: of the app given, of the running task's, else of the current one."""
    if app is None:
        task: Any = get_current_task()  # may be None, whatever the stubs say
        app = get_current_app() if task is None else task.app
    return runtime_of(app)


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


def _name_of(function: Callable[..., Any]) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    named = function if hasattr(function, "__qualname__") else type(function)
    return f"{named.__module__}.{named.__qualname__}"


def _check_function(function: object) -> None:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise _wrong("function", function, "cannot decorate a generator", "Write `with guarded(…):` inside it.")
    if issubclass(type(function), (Task, Proxy)):  # by type(): a look at the proxy itself would bind the task
        raise _wrong("function", type(function), "cannot decorate a task", "Put @guarded(…) below @app.task.")
    if not callable(function):
        raise _wrong("function", function, "is not a function", "Put @guarded(…) below @classmethod and its like.")


def _refuse_coroutine(result: object) -> None:
    """Refuse what would run outside the guard."""
    if isinstance(result, CoroutineType):
        result.close()
        remedy = "Put @guarded(…) directly on the `async def`."
        raise _wrong("function", result.__qualname__, "gives a coroutine but is no coroutine function", remedy)


def _wrong(field: str, value: object, problem: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(f"{WHERE}{field}", value, problem, remedy)


class _Door(ModuleType):
    """Importing this module by its path puts it in the place of the front door's `guarded`: it can be called too."""

    __call__ = staticmethod(guarded)


sys.modules[__name__].__class__ = _Door
