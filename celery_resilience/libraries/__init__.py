"""What is known about the exceptions of libraries, as data.

A class is found by its module and name, through the MRO, so no library is ever imported. To teach a library, add rows
to the module that fits; nothing else changes.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from celery_resilience.libraries import look
from celery_resilience.libraries.builtin import BUILTINS, STANDARD_LIBRARY, WEAK_BUILTINS
from celery_resilience.libraries.cloud import CLOUD
from celery_resilience.libraries.connections import CONNECTIONS
from celery_resilience.libraries.databases import DATABASES
from celery_resilience.libraries.http import HTTP
from celery_resilience.libraries.messaging import MESSAGING
from celery_resilience.libraries.names import class_of_name
from celery_resilience.libraries.parsing import PARSING
from celery_resilience.libraries.rows import by_mark_of_a_service, by_status, inside, inside_all
from celery_resilience.libraries.services import SERVICES
from celery_resilience.libraries.stores import STORES
from celery_resilience.libraries.verdict import Answer, FailureClass, Reader, Row, Rows, Tables

TABLES: Tables = {
    **STANDARD_LIBRARY,
    **HTTP,
    **CLOUD,
    **SERVICES,
    **DATABASES,
    **STORES,
    **MESSAGING,
    **PARSING,
    **CONNECTIONS,
}

Step: TypeAlias = tuple[str, tuple[FailureClass | Reader, ...]]
"""Words for the reason, and what to ask in turn."""

_MAX_PLANS = 1_024
_BUILTIN_CLASSES = frozenset(one for one in vars(builtins).values() if isinstance(one, type))


@dataclass(frozen=True, slots=True)
class Plan:
    """What to ask about one class of exception, in order; made once per class."""

    is_control_flow: bool
    steps: tuple[Step, ...]
    last_steps: tuple[Step, ...]
    """For when even the context of the exception tells nothing."""


_plans: dict[type, Plan] = {}


def plan_for(kind: type) -> Plan:
    """Give the plan of an exception class, from a cache of bounded size."""
    plan = _plans.get(kind)
    if plan is None:
        if len(_plans) >= _MAX_PLANS:
            _plans.clear()  # classes made at run time must not pile up; the common ones are back at once
        plan = _plans[kind] = _make_plan(kind)
    return plan


def answers(steps: tuple[Step, ...], exc: BaseException) -> Iterator[tuple[Answer, str]]:
    """Give each opinion in turn, with the words for it; a reader that raises has none."""
    for words, askables in steps:
        for askable in askables:
            answer = askable if isinstance(askable, FailureClass) else _read(askable, exc)
            if answer is not None:
                yield answer, words


def _read(reader: Reader, exc: BaseException) -> Answer:
    try:
        return reader(exc)
    except BaseException:  # a hostile exception can make any reading fail; that is no opinion
        return None


def _make_plan(kind: type) -> Plan:
    bases = [base for base in kind.__mro__ if base not in (object, BaseException, Exception)]
    own = [base.__name__ for base in bases if base in _BUILTIN_CLASSES]
    foreign = [_names(base) for base in bases if base not in _BUILTIN_CLASSES]
    told = [step for module, name in foreign for step in _library_steps(module, name)]
    built_in = _builtin_steps(BUILTINS, own)
    return Plan(
        is_control_flow=any(FailureClass.NOT_A_FAILURE in askables for _, askables in (*told, *built_in)),
        steps=(
            *told,
            ("HTTP status", (by_status,)),
            *built_in,
            ("its cause", (inside("__cause__"), inside_all("exceptions"))),
            *_name_steps(foreign),
        ),
        last_steps=(*_builtin_steps(WEAK_BUILTINS, own), ("marks of a service", (by_mark_of_a_service,))),
    )


def _names(kind: type) -> tuple[str, str]:
    """Give module and name; a metaclass may hide or fake them."""
    return look.word(look.peek(kind, "__module__")) or "", look.word(look.peek(kind, "__name__")) or ""


def _library_steps(module: str, name: str) -> Iterator[Step]:
    prefix = module
    while prefix:
        rows = TABLES.get(prefix)
        if rows is not None and name in rows:
            yield f"library {prefix}: {name}", _askables(rows[name])
        prefix = prefix.rpartition(".")[0]


def _builtin_steps(rows: Rows, names: list[str]) -> list[Step]:
    return [(f"built-in {name}", _askables(rows[name])) for name in names if name in rows]


def _name_steps(classes: list[tuple[str, str]]) -> Iterator[Step]:
    for _, name in classes:
        answer = class_of_name(name)
        if answer is not None:
            yield f"the name {name}", (answer,)


def _askables(row: Row) -> tuple[FailureClass | Reader, ...]:
    return row if isinstance(row, tuple) else (row,)
