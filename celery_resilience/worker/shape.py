"""What Celery takes for granted about a message and fails on: looked at before it gets there.

Pure, and cheap enough for every message. The decoded body is kombu's cached one: the next who needs it has it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from celery import Celery
from celery.utils.time import maybe_iso8601, maybe_make_aware
from kombu.message import Message

from ..decision import DeadReason
from ..errors import shorten
from ..transport.sound import MARK, MAX_DEPTH, UndecodedBody, has_too_deep, is_too_deep

MAX_ID = 500
MAX_SECONDS = 1e9
Problem = tuple[DeadReason, BaseException | str]


def problem_of(message: Message, app: Celery) -> Problem | None:
    """Say what keeps a message from being run by Celery; None if nothing is known to."""
    headers: Any = message.headers
    if not isinstance(headers, dict):
        return DeadReason.MALFORMED, "headers are no object"
    if MARK in headers:
        return DeadReason.MALFORMED, _marked(headers[MARK])
    body: Any = message.body
    if isinstance(body, UndecodedBody):
        return DeadReason.MALFORMED, "the body is not in the encoding that its envelope names"
    try:
        payload = message.payload
    except Exception as error:  # whatever a decoder raises: a bomb may end in MemoryError or RecursionError
        return DeadReason.UNDECODABLE, error
    fields = headers if "task" in headers else payload
    if not isinstance(fields, dict) or "task" not in fields:
        return DeadReason.MALFORMED, "it names no task"
    told = _field_problem(fields, app) or _body_problem(payload) or _depth_problem(message, payload)
    return None if told is None else (DeadReason.MALFORMED, told)


def timestamp(eta: Any, app: Celery) -> float | None:
    """Read an ETA as seconds since the epoch; None if it is none."""
    try:
        moment = maybe_iso8601(eta)
        if moment is None or not 1 < moment.year < 9999:  # at the edges another time zone is out of bounds
            return None
        return maybe_make_aware(moment, app.timezone).timestamp()
    except (AttributeError, TypeError, ValueError, OverflowError):
        return None


def _field_problem(fields: Mapping[str, Any], app: Celery) -> str | None:
    if not is_name(fields.get("id")):
        return _wrong("id", fields.get("id"))
    if not is_name(fields["task"]):
        return _wrong("task", fields["task"])
    for name in ("eta", "expires"):
        value = fields.get(name)
        if value is not None and (not isinstance(value, (str, datetime)) or timestamp(value, app) is None):
            return _wrong(name, value)
    for name, is_sound in _CHECKS.items():
        value = fields.get(name)
        if value is not None and not is_sound(value):
            return _wrong(name, value)
    return None


def _body_problem(payload: Any) -> str | None:
    embed: Any
    if isinstance(payload, dict) and "args" in payload:  # older message protocols
        args, kwargs, embed = payload["args"], payload.get("kwargs", {}), payload
    elif isinstance(payload, dict) and "task" in payload:
        args, kwargs, embed = (), payload.get("kwargs", {}), payload
    elif isinstance(payload, (list, tuple)) and len(payload) == 3:
        args, kwargs, embed = payload
    else:
        return "the body is not args, kwargs and links"
    if not isinstance(args, (list, tuple)):
        return _wrong("args", args)
    if not isinstance(kwargs, dict) or not all(isinstance(name, str) for name in kwargs):
        return _wrong("kwargs", kwargs)
    if embed is None:
        return None
    if not isinstance(embed, dict):
        return _wrong("the links", embed)
    for name in ("callbacks", "errbacks", "chain"):
        if not isinstance(embed.get(name), (list, tuple, type(None))):
            return _wrong(name, embed[name])
    return None if isinstance(embed.get("chord"), (dict, type(None))) else _wrong("chord", embed["chord"])


def _depth_problem(message: Message, payload: Any) -> str | None:
    if has_too_deep(message.headers):
        return "headers are nested too deeply"
    body: Any = message.body
    if isinstance(body, str):
        openings = body.count("[") + body.count("{")
    elif isinstance(body, bytes) and message.content_type == "application/json":
        openings = body.count(b"[") + body.count(b"{")
    else:
        openings = MAX_DEPTH + 1  # another way of writing: only a look can tell
    return "the body is nested too deeply" if openings > MAX_DEPTH and is_too_deep(payload) else None


def is_name(value: Any) -> bool:
    """Accept what can be a key in result backends and a name in logs."""
    return isinstance(value, str) and 0 < len(value) <= MAX_ID and "\0" not in value and _is_text(value)


def _is_text(value: Any) -> bool:
    if not isinstance(value, str):
        return False
    if value.isascii():
        return True
    try:
        value.encode("utf-8")
    except UnicodeError:
        return False
    return True


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and 0 <= value < 2**53


def _is_limits(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and len(value) == 2 and all(map(_is_limit, value))


def _is_limit(value: Any) -> bool:
    if value is None:
        return True
    return isinstance(value, (int, float)) and math.isfinite(value) and 0 <= value <= MAX_SECONDS


def _is_names(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(name, str) for name in value)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "timelimit": _is_limits,
    "retries": _is_count,
    "root_id": _is_text,
    "parent_id": _is_text,
    "group": _is_text,
    "group_index": _is_count,
    "shadow": _is_text,
    "argsrepr": _is_text,
    "kwargsrepr": _is_text,
    "replaced_task_nesting": _is_count,
    "stamped_headers": _is_names,
    "stamps": _is_object,
}


def _wrong(name: str, value: Any) -> str:
    """Say which field is wrong; arguments are never shown."""
    shown = type(value).__name__ if name in ("args", "kwargs", "chord", "the links") else shorten(value)
    return f"{name} is not as Celery needs it: {shown}"


def _marked(mark: Any) -> str:
    try:
        return f"the envelope is wrong: {json.loads(mark)['problem']}"
    except (ValueError, TypeError, KeyError):
        return "the envelope is wrong"
