"""Guarded calls: the classifier, breakers and limits of tasks for a call inside a body, with short retries in place.

The innermost call that has a `retry_policy` decides for good: what it gives up, no outer one repeats. The task does,
by its own policy.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import CoroutineType, ModuleType, TracebackType
from typing import Any, ParamSpec, TypeVar

from celery import Celery, Task
from celery.local import Proxy

from .blocks import Blocks
from .breaker_policy import BreakerPolicy
from .checks import number, required, text
from .errors import ConfigurationError
from .gates import BreakerOption, Gates, RateOption, check_gates
from .guarded_call import Call, Terms, pause
from .policy import PolicyOption, policies_from
from .rate import read_rate

Args = ParamSpec("Args")
Result = TypeVar("Result")

BUDGET_SECONDS = 5.0
MAX_BUDGET_SECONDS = 60.0  # a worker that waits does nothing else: longer waits are the schedule's
WHERE = "guarded: "

_blocks: Blocks[Call] = Blocks("celery_resilience_guarded")


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
class Guard(Terms):
    """What `guarded` gives: a decorator and a context manager; safe to share between threads and coroutines."""

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
        _blocks.begin(self, call)

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        call = _blocks.end(self)
        if call is None:
            return
        if exc is None:
            call.succeeded()
        else:
            call.is_tried_again(exc)

    async def __aenter__(self) -> None:
        call = self._call_of_block()
        while (wait := call.enter()) > 0:
            await pause(call.clock, wait)
        _blocks.begin(self, call)

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
            await pause(call.clock, wait)
        try:
            result = await function()
        except BaseException as error:
            if not call.is_tried_again(error):
                raise
        else:
            call.succeeded()
            return result


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
