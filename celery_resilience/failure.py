"""Failures: what an exception means, told by the exception, the user's rules and the knowledge about libraries.

Classify the live exception, in the process that raised it: pickling turns it into a base class and loses its fields.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from celery_resilience.clock import SYSTEM_CLOCK
from celery_resilience.errors import ConfigurationError, shorten
from celery_resilience.events import Event, tell
from celery_resilience.fingerprint import fingerprint
from celery_resilience.hints import wait_hint
from celery_resilience.libraries import Step, answers, look, plan_for
from celery_resilience.libraries.verdict import Answer, FailureClass

__all__ = ["NOT_A_FAILURE", "Classifier", "Failure", "FailureClass", "FailureContext", "Rule", "Rules", "Severity"]

logger = logging.getLogger(__name__)

_MAX_DEPTH = 10
_LEAST_CURABLE_FIRST = (
    FailureClass.POISON,
    FailureClass.STRUCTURAL,
    FailureClass.VALIDATION,
    FailureClass.AUTHENTICATION,
    FailureClass.PERMANENT,
    FailureClass.RATE_LIMITED,
    FailureClass.SYSTEM,
    FailureClass.NETWORK,
    FailureClass.TRANSIENT,
)

_HEALING = (FailureClass.RATE_LIMITED, FailureClass.SYSTEM, FailureClass.NETWORK, FailureClass.TRANSIENT)


class Severity(IntEnum):
    """How loudly a failure of a class is logged; the numbers are those of `logging`."""

    LOW = logging.INFO
    MEDIUM = logging.WARNING
    HIGH = logging.ERROR
    CRITICAL = logging.CRITICAL


_SEVERITY: Mapping[FailureClass, Severity] = {
    FailureClass.NOT_A_FAILURE: Severity.LOW,
    FailureClass.RATE_LIMITED: Severity.LOW,
    FailureClass.TRANSIENT: Severity.LOW,
    FailureClass.NETWORK: Severity.MEDIUM,
    FailureClass.VALIDATION: Severity.MEDIUM,
    FailureClass.UNKNOWN: Severity.HIGH,
    FailureClass.PERMANENT: Severity.HIGH,
    FailureClass.SYSTEM: Severity.HIGH,
    FailureClass.AUTHENTICATION: Severity.CRITICAL,
    FailureClass.STRUCTURAL: Severity.CRITICAL,
    FailureClass.POISON: Severity.CRITICAL,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A classified exception."""

    failure_class: FailureClass
    retry_after: float | None
    """Seconds the other side asked us to wait, uncapped; None where it said nothing."""
    fingerprint: str
    """16 hexadecimal digits, equal for failures that one fix would end."""
    reason: str
    """Why it was put there, in words."""
    error_type: str
    """`module.Qualname` of the exception."""
    message: str
    """Text of the exception, at most 2,000 characters."""

    @property
    def severity(self) -> Severity:
        """Give how loudly to log it."""
        return _SEVERITY[self.failure_class]


NOT_A_FAILURE = Failure(
    failure_class=FailureClass.NOT_A_FAILURE,
    retry_after=None,
    fingerprint="",
    reason="control flow of Celery or the interpreter",
    error_type="",
    message="",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureContext:
    """What was being done when it failed, for rules that need more than the exception."""

    task: str
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    headers: Mapping[str, object]
    attempt: int


Rule: TypeAlias = Callable[[BaseException, FailureContext], "FailureClass | str | None"]
"""A user's opinion; None leaves the question to the next rule."""
Rules: TypeAlias = "Rule | Sequence[Rule] | Mapping[type[BaseException] | str, FailureClass | str]"

_NO_CONTEXT = FailureContext(task="", args=(), kwargs={}, headers={}, attempt=0)


class _Verdict(NamedTuple):
    failure_class: FailureClass
    reason: str
    told_by: tuple[BaseException, ...]
    """The exceptions that led to it, outermost first; any of them may carry the wait hint."""


class _Search(NamedTuple):
    context: FailureContext
    seen: dict[int, BaseException]
    """The exceptions judged so far, by id; kept, so that no id is used twice."""


class Classifier:
    """Puts exceptions into failure classes; immutable, cheap to share between threads."""

    __slots__ = ("_app_rules", "_task_rules")

    _task_rules: tuple[Rule, ...]
    _app_rules: tuple[Rule, ...]

    def __init__(self, *, task_rules: Rules = (), app_rules: Rules = ()) -> None:
        object.__setattr__(self, "_task_rules", _checked_rules("task_rules", task_rules))
        object.__setattr__(self, "_app_rules", _checked_rules("app_rules", app_rules))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Classifier cannot change: make another one with the {name} it needs")

    @classmethod
    def default(cls) -> Classifier:
        """Give the one without user rules, always the same."""
        return _default_classifier()

    def with_task_rules(self, rules: Rules) -> Classifier:
        """Give one that asks these task rules and the same app rules."""
        return Classifier(task_rules=rules, app_rules=self._app_rules)

    def classify(
        self, exc: BaseException, context: FailureContext | None = None, *, now: float | None = None
    ) -> Failure:
        """Say what the exception means. `now` is in seconds since the epoch, for hints that are dates. Never raises."""
        try:
            verdict = self._judge(exc, _Search(context or _NO_CONTEXT, {}), ())
            if verdict.failure_class is FailureClass.NOT_A_FAILURE:
                return NOT_A_FAILURE
            hint = _hint(verdict, SYSTEM_CLOCK.time() if now is None else now)
        except Exception as error:  # a bug of ours or an exception more hostile than we know: it must still be handled
            tell(
                logger,
                logging.WARNING,
                Event.CLASSIFICATION_FAILED,
                error=look.type_name(error),
                of=look.type_name(exc),
            )
            verdict, hint = _Verdict(FailureClass.UNKNOWN, "classification failed", (exc,)), None
        return Failure(
            failure_class=verdict.failure_class,
            retry_after=hint,
            fingerprint=fingerprint(exc),
            reason=verdict.reason,
            error_type=look.type_name(exc),
            message=look.text(exc),
        )

    def _judge(self, exc: BaseException, search: _Search, outer: tuple[BaseException, ...]) -> _Verdict:
        search.seen[id(exc)] = exc
        trail = (*outer, exc)
        plan = plan_for(type(exc))
        if plan.is_control_flow:
            return _Verdict(FailureClass.NOT_A_FAILURE, "control flow", trail)
        said = self._said(exc, search.context)
        if said is not None:
            return _Verdict(*said, trail)
        return (
            self._known(plan.steps, search, trail)
            or self._by_context(search, trail)
            or self._known(plan.last_steps, search, trail)
            or _Verdict(FailureClass.UNKNOWN, "nobody knows this type", trail)
        )

    def _said(self, exc: BaseException, context: FailureContext) -> tuple[FailureClass, str] | None:
        """Give what the exception itself or a user's rule says."""
        own = _as_class(look.peek(exc, "failure_class"))
        if own is not None:
            return own, "the exception's failure_class"
        for rules, words in ((self._task_rules, "a rule of the task"), (self._app_rules, "a rule of the app")):
            for rule in rules:
                ruled = _ruling(rule, exc, context)
                if ruled is not None:
                    return ruled, words
        return None

    def _known(self, steps: tuple[Step, ...], search: _Search, trail: tuple[BaseException, ...]) -> _Verdict | None:
        """Give the first opinion of the library knowledge that leads to a class."""
        exc = trail[-1]
        for answer, reason in answers(steps, exc):
            if type(answer) is FailureClass:  # never isinstance: an inner exception may lie about its class
                return _Verdict(answer, reason + _status_words(exc), trail)
            inner = self._look_inside(answer, search, trail)
            if inner is not None:
                return inner._replace(reason=f"{reason}, inside it {inner.reason}")
        return None

    def _by_context(self, search: _Search, trail: tuple[BaseException, ...]) -> _Verdict | None:
        """Give what was being handled when it was raised, if that heals.

        It may have nothing to do with it (a KeyError of a cache miss), so it can only speak for another attempt.
        """
        if look.peek(trail[-1], "__suppress_context__") is True:
            return None
        inner = self._look_inside(look.a(BaseException, look.peek(trail[-1], "__context__")), search, trail)
        if inner is None or inner.failure_class not in _HEALING:
            return None
        return inner._replace(reason=f"its context, inside it {inner.reason}")

    def _look_inside(self, answer: Answer, search: _Search, trail: tuple[BaseException, ...]) -> _Verdict | None:
        """Classify what is inside; None where that tells nothing. Each exception is judged once, so cycles end."""
        members = answer if type(answer) is tuple else (answer,)
        found = [
            self._judge(inner, search, trail)
            for inner in (look.a(BaseException, member) for member in members)
            if inner is not None and len(trail) < _MAX_DEPTH and id(inner) not in search.seen
        ]
        known = [one for one in found if one.failure_class in _LEAST_CURABLE_FIRST]
        if not known:
            is_control_flow = type(answer) is tuple and found and not any(_is_unknown(one) for one in found)
            return found[0] if is_control_flow else None
        worst = min(known, key=lambda one: _LEAST_CURABLE_FIRST.index(one.failure_class))
        return worst._replace(told_by=tuple(one for verdict in known for one in verdict.told_by))


@lru_cache(maxsize=1)
def _default_classifier() -> Classifier:
    return Classifier()


def _hint(verdict: _Verdict, now: float) -> float | None:
    """Give the longest wait that any exception of the verdict asks for."""
    limited = verdict.failure_class is FailureClass.RATE_LIMITED
    found = [wait_hint(exc, now, rate_limited=limited) for exc in verdict.told_by]
    return max((hint for hint in found if hint is not None), default=None)


def _is_unknown(verdict: _Verdict) -> bool:
    return verdict.failure_class is FailureClass.UNKNOWN


def _status_words(exc: BaseException) -> str:
    status = look.status(exc)
    return "" if status is None else f", status {status}"


def _as_class(value: object) -> FailureClass | None:
    """Give the class a user named, if it is one of the ten; NOT_A_FAILURE is not theirs to give."""
    name = look.word(value)
    found = None if name is None else FailureClass._value2member_map_.get(name)
    return found if isinstance(found, FailureClass) and found is not FailureClass.NOT_A_FAILURE else None


def _ruling(rule: Rule, exc: BaseException, context: FailureContext) -> FailureClass | None:
    try:
        said = rule(exc, context)
    except Exception as error:
        problem = f"raised {look.type_name(error)}"
        tell(logger, logging.WARNING, Event.RULE_IGNORED, rule=_rule_name(rule), problem=problem, task=context.task)
        return None
    ruled = _as_class(said)
    if ruled is None and said is not None:
        problem = f"gave {shorten(said)}"
        tell(logger, logging.WARNING, Event.RULE_IGNORED, rule=_rule_name(rule), problem=problem, task=context.task)
    return ruled


def _rule_name(rule: Rule) -> str:
    return look.word(look.peek(rule, "__qualname__")) or type(rule).__name__


def _checked_rules(field: str, rules: object) -> tuple[Rule, ...]:
    """Turn what the user gave into callables, or say what is wrong with it."""
    if isinstance(rules, Mapping):
        return (_ByType(field, rules),) if rules else ()
    if callable(rules):
        return (rules,)
    if isinstance(rules, Iterable) and not isinstance(rules, (str, bytes)):
        given = tuple(rules)
        wrong = [rule for rule in given if not callable(rule) or isinstance(rule, type)]
        if not wrong:
            return given
        rules = wrong[0]
    raise ConfigurationError(
        field,
        rules,
        "is no rule",
        "Give a function of (exception, context), a sequence of them, or a mapping of exception types to classes.",
    )


class _ByType:
    """A rule from a mapping; of several types that fit, the nearest in the MRO counts."""

    __slots__ = ("_paths", "_types")

    def __init__(self, field: str, classes: Mapping[object, object]) -> None:
        self._types: dict[type, FailureClass] = {}
        self._paths: dict[str, FailureClass] = {}
        for key, value in classes.items():
            answer = _checked_class(f"{field}[{shorten(key)}]", value)
            if isinstance(key, type) and issubclass(key, BaseException):
                self._types[key] = answer
            elif isinstance(key, str) and all(part.isidentifier() for part in key.split(".")):
                self._paths[key] = answer
            else:
                remedy = "Use an exception class, or its dotted path as text where the library may be missing."
                raise ConfigurationError(field, key, "is no exception type", remedy)

    def __call__(self, exc: BaseException, context: FailureContext) -> FailureClass | None:
        for kind in type(exc).__mro__:
            if kind in self._types:
                return self._types[kind]
            for path, answer in self._paths.items():
                if _is_called(kind, path):
                    return answer
        return None


def _is_called(kind: type, path: str) -> bool:
    """Tell whether a dotted path names the class, by where it was made or by where it is imported from."""
    package, _, name = path.rpartition(".")
    if not package:
        return kind.__qualname__ == name
    if kind.__qualname__ == name and f"{kind.__module__}.".startswith(f"{package}."):
        return True
    return look.peek(sys.modules.get(package), name) is kind


def _checked_class(field: str, value: object) -> FailureClass:
    found = _as_class(value)
    if found is None:
        names = ", ".join(one.value for one in FailureClass if one is not FailureClass.NOT_A_FAILURE)
        raise ConfigurationError(field, value, "is no failure class", f"Use one of {names}.")
    return found
