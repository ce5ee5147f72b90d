"""The circuit breaker: who may call a dependency now.

All shared state is in Redis; this process keeps only a short-lived copy. While the breaker is closed and calm, a call
costs no lock, no round trip and no object.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import CoroutineType, TracebackType
from typing import Any, ParamSpec, TypeVar, cast

from ..blocks import Blocks
from ..breaker_policy import BreakerPolicy
from ..checks import number, required, text
from ..clock import SYSTEM_CLOCK, Clock
from ..errors import ConfigurationError, ResilienceError
from ..failure import Classifier
from ..redis_store import RedisStore
from .link import Link
from .permit import InnerPermit, Permit, Refusal, held_permit, hold, is_slow_call, let_go
from .shared import MAX_BREAKERS, SharedMachine
from .values import Machine, Mode, Snapshot, Transition
from .view import CALM_SECONDS, Era, View

Args = ParamSpec("Args")
Result = TypeVar("Result")

MAX_NAME = 200
COOLDOWN_SECONDS = 5.0
RETRY_AFTER = "Retry-After"
_blocks: Blocks[Permit] = Blocks("celery_resilience_permits")


class CircuitBreaker:
    """Protects one dependency, by name, for every process that shares the Redis.

    Give `redis_url` or a `store`; with neither the breaker protects this process only. Use it as `with breaker:`, as
    `@breaker`, by `breaker.call(function, …)`, or by `admit()` and the permit it gives; the first three raise
    BreakerOpenError when refused. Safe to share between threads, greenlets and coroutines, and over a fork.
    """

    def __init__(
        self,
        name: str,
        policy: BreakerPolicy | None = None,
        redis_url: str | None = None,
        store: RedisStore | None = None,
        clock: Clock = SYSTEM_CLOCK,
        *,
        classifier: Classifier | None = None,
        max_breakers: int = MAX_BREAKERS,
        on_transition: Callable[[Transition], None] | None = None,
    ) -> None:
        self.name = _checked_name(name)
        self.policy = _checked_policy(policy)
        self.clock = clock
        self.classifier = classifier or Classifier.default()
        if store is None and redis_url is not None:
            store = RedisStore(redis_url, clock=clock)
        self.store = store
        shared = None
        if store is not None:
            shared = SharedMachine(name, self.policy, store, clock, max_breakers=max_breakers)
        cooldown = store.cooldown_seconds if store is not None else COOLDOWN_SECONDS
        self._link = Link(name, self.policy, shared, clock, cooldown)
        self._link.on_transition = on_transition
        self._monotonic = clock.monotonic
        self._ramped_at = -CALM_SECONDS  # when a ramp last let a call of this process pass
        self._times_calls = self.policy.slow_call_seconds is not None

    def admit(self) -> Permit | Refusal:
        """Ask for the right to one call. Never raises; costs a round trip at most."""
        view, now = self._link.view, self._monotonic()
        if now < view.fast_until:
            return Permit(self._link, view.era, now, self.classifier)
        return self._ask(view, now)

    def enter(self) -> Permit | Refusal:
        """Ask as `admit` does, for a call in this context: within a call that has a permit of this breaker it serves.

        So the same breaker around a task and inside its body is asked for one probe, not for two.
        """
        view, now = self._link.view, self._monotonic()
        if now < view.fast_until:
            return Permit(self._link, view.era, now, self.classifier)
        answer = self._ask(view, now, held_permit(self._link))
        if type(answer) is Permit:
            hold(answer)
        return answer

    def call(self, function: Callable[Args, Result], /, *args: Args.args, **kwargs: Args.kwargs) -> Result:
        """Call through the breaker; of a coroutine function, give a coroutine to await. Raises BreakerOpenError."""
        view, now = self._link.view, self._monotonic()
        if now >= view.fast_until:
            return self._call_slowly(function, *args, **kwargs)
        try:
            result = function(*args, **kwargs)
        except BaseException as exc:
            Permit(self._link, view.era, now, self.classifier).failure(exc)
            raise
        if type(result) is CoroutineType:
            permit = Permit(self._link, view.era, now, self.classifier)
            return cast(Result, _settled_later(permit, result))
        if self._times_calls and is_slow_call(self._link, now):
            view.era.tick_slow()
        else:
            view.era.tick()
        return result

    def __call__(self, function: Callable[Args, Result]) -> Callable[Args, Result]:
        """Decorate a function or a coroutine function."""
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise ConfigurationError(
                "breaker", function, "cannot decorate a generator", "Write `with breaker:` inside it."
            )
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def guarded_coroutine(*args: Args.args, **kwargs: Args.kwargs) -> Any:
                return await self.call(function, *args, **kwargs)

            return guarded_coroutine  # type: ignore[return-value]  # a coroutine function for a coroutine function

        @functools.wraps(function)
        def guarded(*args: Args.args, **kwargs: Args.kwargs) -> Result:
            return self.call(function, *args, **kwargs)

        return guarded

    def __enter__(self) -> Permit:
        permit = self._permit()
        _blocks.begin(self, permit)
        return permit

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        permit = _blocks.end(self)
        if permit is None:
            return
        if exc is None:
            permit.success()
        else:
            permit.failure(exc)

    async def __aenter__(self) -> Permit:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(kind, exc, trace)

    def force_open(self, *, who: str, why: str, for_seconds: float | None = None) -> None:
        """Refuse every call of the fleet until that time, or until reset. Raises StoreUnavailableError."""
        self._override("open", who, why, for_seconds)

    def force_closed(self, *, who: str, why: str, for_seconds: float | None = None) -> None:
        """Let every call of the fleet pass, whatever happens. Raises StoreUnavailableError."""
        self._override("closed", who, why, for_seconds)

    def disable(self, *, who: str, why: str, for_seconds: float | None = None) -> None:
        """Only count: every call passes and nothing trips. Raises StoreUnavailableError."""
        self._override("disabled", who, why, for_seconds)

    def rest(self, seconds: float) -> None:
        """Refuse the fleet's calls as long as the server asked for, at most `open_cap_seconds`. Never raises.

        Only a closed breaker needs it, and an earlier rest is only ever made longer; an operator's override stays.
        """
        seconds = min(max(seconds, 0.001), self.policy.open_cap_seconds)
        try:
            known = self._machine.look()
            is_resting = known is not None and known.override_who == RETRY_AFTER
            if known is not None and not is_resting and known.state != "closed":
                return
            if known is not None and is_resting and known.override_until >= self.clock.time() + seconds:
                return
            self.force_open(who=RETRY_AFTER, why=f"asked to wait {seconds:.0f} s", for_seconds=seconds)
        except ResilienceError:
            return  # Redis is away: the local machine has no fleet to hold back

    def reset(self, *, who: str, why: str) -> None:
        """End any override and start closed with an empty window. Raises StoreUnavailableError."""
        self._override("", who, why, None)

    def snapshot(self) -> Snapshot:
        """Look at the shared state without touching it. Raises StoreUnavailableError."""
        return self._machine.look() or Snapshot(name=self.name, state="closed", policy=self.policy.as_dict())

    def history(self, limit: int = 50) -> list[Transition]:
        """List transitions, the newest first. Raises StoreUnavailableError."""
        return self._machine.history(limit)

    def flush(self) -> None:
        """Send the successes counted since the last command, for a process about to end. Never raises."""
        self._link.flush()

    def __repr__(self) -> str:
        return f"CircuitBreaker({self.name!r}, {self._link.view.state})"

    @property
    def _machine(self) -> Machine:
        return self._link.shared or self._link.local

    def _call_slowly(self, function: Callable[Args, Result], /, *args: Args.args, **kwargs: Args.kwargs) -> Result:
        permit = self._permit()
        try:
            result = function(*args, **kwargs)
        except BaseException as exc:
            permit.failure(exc)
            raise
        if type(result) is CoroutineType:
            let_go(permit)  # it runs in a context of its own, perhaps beside others
            return cast(Result, _settled_later(permit, result, is_held=type(permit) is Permit))
        permit.success()
        return result

    def _permit(self) -> Permit:
        answer = self.enter()
        if isinstance(answer, Refusal):
            raise answer.error()
        return answer

    def _ask(self, view: View, now: float, outer: Permit | None = None) -> Permit | Refusal:
        """Follow the view while it is fresh, else ask; a call within a probe asks whether the probe is still good."""
        probe = outer if outer is not None and outer.is_probe else None
        is_inside = probe is not None and view.state == "half-open"
        if now < view.fresh_until and not is_inside:
            return self._decide(view, now, outer)
        token = probe._token if probe is not None and is_inside else self.clock.token()
        view, is_granted = self._link.ask(token)
        now = self._monotonic()
        if is_granted and probe is not None and probe._token == token and probe._era.is_same(view.era):
            return InnerPermit(probe, now)
        if is_granted:
            return Permit(self._link, view.era, now, self.classifier, token)
        return self._decide(view, now, outer)

    def _decide(self, view: View, now: float, outer: Permit | None) -> Permit | Refusal:
        """Follow a view that is fresh, or was a moment ago."""
        if view.stance == "pass":
            return self._permit_of(view.era, now)
        if view.stance == "refuse":
            reason = view.reply.refusal_reason if view.reply else ""
            return Refusal(self.name, max(0.0, view.retry_at - now), reason, view.state)
        ramp = self.policy.ramp_seconds
        is_calm = now - self._ramped_at >= CALM_SECONDS
        if outer is not None or is_calm or self.clock.uniform(0, 1) < view.share(now, ramp):
            self._ramped_at = now
            return self._permit_of(view.era, now)
        left = max(0.1, view.ramp_at + ramp - now)
        return Refusal(self.name, self.clock.uniform(0.1, left), "load is ramping up", view.state)

    def _permit_of(self, era: Era, now: float) -> Permit:
        return Permit(self._link, era, now, self.classifier)

    def _override(self, mode: Mode, who: str, why: str, for_seconds: float | None) -> None:
        for field, value in (("who", who), ("why", why)):
            required(field, value)
            text(field, value, "maintenance until noon" if field == "why" else "ann@shop")
        number("for_seconds", for_seconds, low=0.001, high=366 * 86400)
        lasts_ms = 0 if for_seconds is None else max(1, int(for_seconds * 1000))
        self._link.take_in(self._machine.override(mode, who[:MAX_NAME], why[:1000], lasts_ms))


async def _settled_later(permit: Permit, coroutine: Any, *, is_held: bool = False) -> Any:
    if is_held:
        hold(permit)
    try:
        result = await coroutine
    except BaseException as exc:
        permit.failure(exc)
        raise
    permit.success()
    return result


def _checked_name(name: str) -> str:
    required("name", name)
    text("name", name, "payments")
    if len(name) > MAX_NAME or not name.isprintable():
        problem = f"is longer than {MAX_NAME} characters or cannot be printed"
        raise ConfigurationError("name", name, problem, "Name the dependency shortly, in plain text.")
    return name


def _checked_policy(policy: BreakerPolicy | None) -> BreakerPolicy:
    if policy is None:
        return BreakerPolicy()
    if not isinstance(policy, BreakerPolicy):
        raise ConfigurationError("policy", policy, "is not a BreakerPolicy", "Write BreakerPolicy(failure_rate=0.5).")
    return policy
