"""The vocabulary of rows: small readers from which the knowledge about each library is put together."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from celery_resilience.libraries import look
from celery_resilience.libraries.names import class_of_name
from celery_resilience.libraries.status import class_of_status
from celery_resilience.libraries.verdict import Answer, FailureClass, Reader

_MAX_MEMBERS = 50
TextTable = tuple[tuple[str, FailureClass], ...]


def by_status(exc: BaseException) -> Answer:
    """Read the HTTP status in one of the known places, and the headers that qualify it."""
    found = look.status(exc)
    return None if found is None else class_of_status(found, look.headers(exc))


def by_own_name(exc: BaseException) -> Answer:
    """Read the name of the class, in libraries that name one per status and may lose the status itself."""
    return class_of_name(type(exc).__name__)


_MARKS = frozenset({"status_code", "status", "http_status", "code", "response"})


def by_mark_of_a_service(exc: BaseException) -> Answer:
    """Take an exception that has a status or a response, though not a telling one, for a failed call of a service."""
    if _MARKS & vars(exc).keys() or any(_MARKS & vars(base).keys() for base in type(exc).__mro__):
        return FailureClass.TRANSIENT
    return None


def by_number(table: Mapping[int, FailureClass], *paths: str) -> Reader:
    """Look a whole number at one of the paths up in the table."""

    def read(exc: BaseException) -> Answer:
        for path in paths:
            found = look.number(look.dig(exc, path))
            if found is not None and found in table:
                return table[found]
        return None

    return read


def by_http_number(*paths: str) -> Reader:
    """Take a whole number at one of the paths as an HTTP status, where the library says that it is one."""

    def read(exc: BaseException) -> Answer:
        for path in paths:
            found = look.number(look.dig(exc, path))
            if found is not None and (known := class_of_status(found, look.headers(exc))) is not None:
                return known
        return None

    return read


def by_word(table: Mapping[str, FailureClass], *paths: str) -> Reader:
    """Look a word at one of the paths up in the table."""

    def read(exc: BaseException) -> Answer:
        for path in paths:
            found = look.word(look.dig(exc, path))
            if found is not None and found in table:
                return table[found]
        return None

    return read


def by_pattern(table: TextTable, *paths: str) -> Reader:
    """Search a word at one of the paths for each pattern in turn."""
    compiled = [(re.compile(pattern, re.IGNORECASE), answer) for pattern, answer in table]

    def read(exc: BaseException) -> Answer:
        for path in paths:
            found = look.word(look.dig(exc, path))
            if found is not None:
                for pattern, answer in compiled:
                    if pattern.search(found):
                        return answer
        return None

    return read


def by_text(*table: tuple[str, FailureClass]) -> Reader:
    """Search the text of the exception for each pattern in turn; the last means, where a library gives no code."""
    compiled = [(re.compile(pattern, re.IGNORECASE), answer) for pattern, answer in table]

    def read(exc: BaseException) -> Answer:
        said = look.text(exc)
        for pattern, answer in compiled:
            if pattern.search(said):
                return answer
        return None

    return read


def inside(*paths: str) -> Reader:
    """Classify the exception found at one of the paths instead."""

    def read(exc: BaseException) -> Answer:
        for path in paths:
            found = look.a(BaseException, look.dig(exc, path))
            if found is not None and found is not exc:
                return found
        return None

    return read


def inside_all(path: str) -> Reader:
    """Classify all exceptions of the list, tuple or mapping found at the path instead; the least curable counts."""

    def read(exc: BaseException) -> Answer:
        found = look.dig(exc, path)
        if issubclass(type(found), dict):
            found = tuple(dict.values(found))  # type: ignore[arg-type]  # a dict it is
        if not issubclass(type(found), (list, tuple)):
            return None
        members = found[:_MAX_MEMBERS]  # type: ignore[index]  # a sequence has slices
        return tuple(one for one in members if issubclass(type(one), BaseException) and one is not exc) or None

    return read


def when(path: str, expected: object, answer: FailureClass | Reader) -> Reader:
    """Answer if the value at the path is the expected one, of the same type."""

    def read(exc: BaseException) -> Answer:
        found = look.dig(exc, path)
        if type(found) is not type(expected) or found != expected:
            return None
        return answer if isinstance(answer, FailureClass) else answer(exc)

    return read


def when_called(method: str, expected: object, answer: FailureClass) -> Reader:
    """Answer if the method without arguments, at a dotted path, returns the expected value."""
    owner, _, name = method.rpartition(".")

    def read(exc: BaseException) -> Answer:
        found = look.call(look.dig(exc, owner) if owner else exc, name)
        return answer if type(found) is type(expected) and found == expected else None

    return read


def same_for(names: str, row: Callable[[BaseException], Answer] | FailureClass) -> dict[str, FailureClass | Reader]:
    """Give each of the blank-separated class names the same row."""
    return dict.fromkeys(names.split(), row)


def words(table: Mapping[FailureClass, str]) -> dict[str, FailureClass]:
    """Turn a class → blank-separated words table around."""
    return {name: answer for answer, names in table.items() for name in names.split()}


def numbers(table: Mapping[FailureClass, tuple[int, ...]]) -> dict[int, FailureClass]:
    """Turn a class → numbers table around."""
    return {code: answer for answer, codes in table.items() for code in codes}
