"""Careful reading of exceptions that others made.

Attributes may raise, lie or be something else than their name says. Nothing here raises, imports a library or does I/O;
a value counts only if its real type (never `__class__`) is the expected one.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import TypeVar

TEXT_LIMIT = 2_000
_MAX_HEADERS = 200
_MAX_STEPS = 8
_T = TypeVar("_T")


def peek(value: object, name: str) -> object:
    """Give the attribute, or None where there is none or reading it raises anything at all."""
    try:
        return getattr(value, name, None)
    except BaseException:  # a property may even raise SystemExit; classifying must not end the process
        return None


def call(value: object, name: str) -> object:
    """Give what the method without arguments returns, or None."""
    method = peek(value, name)
    if method is None:
        return None
    try:
        return method()  # type: ignore[operator]  # not callable is an answer too
    except BaseException:
        return None


def a(kind: type[_T], value: object) -> _T | None:
    """Give the value if it really is of that type, else None; True is no int."""
    real = type(value)
    if not issubclass(real, kind) or (real is bool and kind is not bool):
        return None
    return value  # type: ignore[return-value]  # issubclass of the real type has just said so


def dig(value: object, path: str) -> object:
    """Follow `response.Error.Code`: attributes, keys of mappings and positions of tuples and lists, in turn."""
    for name in path.split(".", _MAX_STEPS):
        if value is None:
            return None
        value = _step(value, name)
    return value


def _step(value: object, name: str) -> object:
    try:
        if issubclass(type(value), Mapping):
            found = value.get(name)  # type: ignore[attr-defined]  # a mapping has it
            return peek(value, name) if found is None else found
        if name.isdigit() and issubclass(type(value), (tuple, list)):
            return value[int(name)]  # type: ignore[index]  # a sequence has it
    except BaseException:
        return None
    return peek(value, name)


def number(value: object) -> int | None:
    """Give a whole number that is really an int (an IntEnum too), else None."""
    found = a(int, value)
    return None if found is None else int.__index__(found)


def word(value: object) -> str | None:
    """Give text that is really text (bytes are decoded, an Enum of str gives its value), else None."""
    raw = a(bytes, value)
    if raw is not None:
        return bytes.__getitem__(raw, slice(TEXT_LIMIT)).decode("utf-8", "replace")
    found = a(str, value)
    return None if found is None else str.__str__(found)[:TEXT_LIMIT]


def text(exc: BaseException) -> str:
    """Give `str(exc)`, cut at `TEXT_LIMIT` characters; its type's name where that raises."""
    try:
        return str.__str__(str(exc))[:TEXT_LIMIT]
    except BaseException:
        return f"<{type_name(exc)} without text>"


def type_name(exc: BaseException) -> str:
    """Give `module.Qualname` of the real type; built-ins too."""
    kind = type(exc)
    module, name = word(peek(kind, "__module__")), word(peek(kind, "__qualname__"))
    return f"{module or '?'}.{name or '?'}"


def status(exc: BaseException) -> int | None:
    """Give the HTTP status the exception carries in one of the known places; a real int from 100 to 599, else None."""
    for path in _STATUS_PATHS:
        found = number(dig(exc, path))
        if found is not None and 100 <= found <= 599:
            return found
    return None


_STATUS_PATHS = (
    "response.status_code",  # requests, httpx, azure, openai
    "response.status",  # aiohttp, urllib3, minio
    "response.ResponseMetadata.HTTPStatusCode",  # botocore
    "resp.status",  # googleapiclient
    "status_code",  # starlette, Django REST framework, python-http-client
    "status",  # aiohttp, PyGithub, kubernetes, twilio
    "http_status",  # stripe
    "http_status_code",
    "meta.status",  # elasticsearch
)
_HEADER_PATHS = ("response.headers", "response.ResponseMetadata.HTTPHeaders", "headers", "resp", "meta.headers", "hdrs")


def headers(exc: BaseException) -> dict[str, str]:
    """Give the response's headers in lower case, from all the known places; the first of a name counts."""
    found: dict[str, str] = {}
    for path in _HEADER_PATHS:
        place = dig(exc, path)
        if place is not None:
            for name, value in pairs(place):
                said = word(value) if number(value) is None else str(number(value))
                if said is not None:
                    found.setdefault(name, said.strip())
    return found


def pairs(place: object) -> list[tuple[str, object]]:
    """List names in lower case and values of a mapping, a message or a list of pairs; nothing of anything else."""
    source = place if issubclass(type(place), (list, tuple)) else call(place, "items")
    found: list[tuple[str, object]] = []
    try:
        for pair in islice(iter(source), _MAX_HEADERS):  # type: ignore[call-overload]  # not iterable: caught
            name = word(pair[0])
            if name is not None:
                found.append((name.lower(), pair[1]))
    except BaseException:
        return found
    return found
