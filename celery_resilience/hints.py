"""Wait hints: how long the other side asked us to wait.

A hint that makes no sense (negative, not a number, text) is None, never an exception. It is not capped here: the retry
policy decides how much it is worth.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime

from celery_resilience.libraries import look
from celery_resilience.libraries.retry_info import retry_info_seconds

_EPOCH_FLOOR = 1_000_000_000  # an "x-ratelimit-reset" above this is a date, below it a duration
_EPOCH_MS_FLOOR = 100_000_000_000
_DURATION = re.compile(r"^(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?$")
_NUMBER = re.compile(r"^\d+(\.\d+)?$", re.ASCII)
_MILLISECOND_HEADERS = ("retry-after-ms", "x-ms-retry-after-ms", "x-amz-retry-after", "grpc-retry-pushback-ms")
_SECOND_HEADERS = ("retry-after", "x-retry-after", "x-ratelimit-retry-after", "x-rate-limit-retry-after",
                   "x-rate-limit-retry-after-seconds", "x-ratelimit-reset-after")  # fmt: skip
_RESET_HEADERS = ("x-ratelimit-reset", "x-rate-limit-reset", "ratelimit-reset", "rate-limit-reset",
                  "x-ratelimit-reset-requests", "x-ratelimit-reset-tokens", "anthropic-ratelimit-requests-reset",
                  "anthropic-ratelimit-tokens-reset")  # fmt: skip
_REMAINING_HEADERS = ("x-ratelimit-remaining", "x-rate-limit-remaining", "ratelimit-remaining")
_ATTRIBUTES = ("retry_after", "retry_after_seconds", "retry_delay", "retry_in")
_LIMIT_ATTRIBUTES = ("wait", "seconds")  # of Django REST framework and Telegram; elsewhere they mean other things
_BODIES = ("response", "details", "error_details", "body", "json_body", "data", "response.data", "error")
_STATUS_DETAILS = "grpc-status-details-bin"
_COSMOS = re.compile(r"RetryAfterMs=(\d{1,9})\b", re.ASCII)
_MAX_NODES = 200
_MAX_BODY = 20_000


def wait_hint(exc: BaseException, now: float, *, rate_limited: bool = False) -> float | None:
    """Give the seconds to wait from `now`; 0 for a moment in the past; None where nothing was said. Never raises.

    Headers that only tell when a limit starts anew count if the failure is one of that limit: others carry them too.
    """
    for read in (_from_attributes, _from_headers, _from_metadata, _from_body, _from_text_of_cosmos):
        try:
            found = read(exc, now, rate_limited)
        except BaseException:  # what a library keeps in an exception may be as hostile as the exception itself
            continue
        if found is not None:
            return found
    return None


def _from_attributes(exc: BaseException, now: float, rate_limited: bool) -> float | None:
    for attribute in (*_ATTRIBUTES, *_LIMIT_ATTRIBUTES) if rate_limited else _ATTRIBUTES:
        found = seconds(look.peek(exc, attribute), now)
        if found is not None:
            return found
    return None


def _from_headers(exc: BaseException, now: float, rate_limited: bool) -> float | None:
    return header_hint(look.headers(exc), now, rate_limited=rate_limited)


def header_hint(headers: Mapping[str, str], now: float, *, rate_limited: bool = False) -> float | None:
    """Read the headers of a response, their names in lower case."""
    for name in _MILLISECOND_HEADERS:
        found = seconds(headers.get(name), now)
        if found is not None:
            return found / 1000
    for name in _SECOND_HEADERS:
        found = seconds(headers.get(name), now)
        if found is not None:
            return found
    return _reset_hint(headers, now, rate_limited)


def _reset_hint(headers: Mapping[str, str], now: float, rate_limited: bool) -> float | None:
    left = next((headers[name] for name in _REMAINING_HEADERS if name in headers), None)
    if left != "0" and (left is not None or not rate_limited):
        return None
    found = (seconds(headers.get(name), now, may_be_epoch=True) for name in _RESET_HEADERS)
    return next((value for value in found if value is not None), None)


def seconds(value: object, now: float, *, may_be_epoch: bool = False) -> float | None:
    """Turn a number, a timedelta, a date or their text into seconds from now; None if it is no sensible wait."""
    try:
        if issubclass(type(value), timedelta):
            return _sensible(value.total_seconds())  # type: ignore[attr-defined]  # a timedelta has it
        if issubclass(type(value), datetime):
            return _until(value, now)  # type: ignore[arg-type]  # a datetime it is
        if issubclass(type(value), (int, float)) and type(value) is not bool:
            return _count(float(value), now, may_be_epoch)  # type: ignore[arg-type]  # a number it is
        said = look.word(value)
        return None if said is None else _from_text(said.strip(), now, may_be_epoch)
    except Exception:  # dates raise many kinds of errors
        return None


def _from_text(said: str, now: float, may_be_epoch: bool) -> float | None:
    if not said or len(said) > 64:
        return None
    if _NUMBER.match(said):
        return _count(float(said), now, may_be_epoch)
    if (parts := _DURATION.match(said)) is not None:
        hours, minutes, whole, milliseconds = (float(part or 0) for part in parts.groups())
        return _sensible(hours * 3600 + minutes * 60 + whole + milliseconds / 1000)
    if said[0].isdigit() and "T" in said:
        return _until(datetime.fromisoformat(said.replace("Z", "+00:00")), now)
    return _until(parsedate_to_datetime(said), now) if said[0].isalpha() else None


def _count(value: float, now: float, may_be_epoch: bool) -> float | None:
    if may_be_epoch and value >= _EPOCH_FLOOR and math.isfinite(value):
        return max(0.0, (value / 1000 if value >= _EPOCH_MS_FLOOR else value) - now)
    return _sensible(value)


def _until(moment: datetime, now: float) -> float:
    aware = moment if moment.tzinfo is not None else moment.replace(tzinfo=timezone.utc)
    return max(0.0, aware.timestamp() - now)


def _sensible(value: float) -> float | None:
    return value if math.isfinite(value) and value >= 0 else None


def _from_metadata(exc: BaseException, now: float, rate_limited: bool) -> float | None:
    """Read gRPC's trailing metadata, of the call itself or of the call a Google client wraps."""
    for call in (exc, look.peek(exc, "response")):
        metadata = look.call(call, "trailing_metadata")
        if metadata is None:
            continue
        pairs = look.pairs(metadata)
        found = header_hint(
            {name: value for name, value in pairs if type(value) is str}, now, rate_limited=rate_limited
        )
        packed = (
            retry_info_seconds(value) for name, value in pairs if name == _STATUS_DETAILS and type(value) is bytes
        )
        return found if found is not None else next((value for value in packed if value is not None), None)
    return None


def _from_body(exc: BaseException, now: float, rate_limited: bool) -> float | None:
    """Search the parsed body or details, where a library keeps them, for a wait."""
    nodes: list[object] = [_parsed(look.dig(exc, path)) for path in _BODIES]
    for _ in range(_MAX_NODES):
        if not nodes:
            return None
        node = nodes.pop()
        if issubclass(type(node), (list, tuple)):
            nodes.extend(node[:_MAX_NODES])  # type: ignore[index]  # a sequence has slices
        elif issubclass(type(node), dict):
            found = _in_body(node, now)  # type: ignore[arg-type]  # a dict it is
            if found is not None:
                return found
            nodes.extend(list(dict.values(node))[:_MAX_NODES])  # type: ignore[arg-type]  # a dict it is
        elif node is not None:
            found = _in_retry_info(node)
            if found is not None:
                return found
    return None


def _parsed(node: object) -> object:
    """Parse a body that was kept as text, if it is JSON of a sensible size that speaks of a retry."""
    if not isinstance(node, (str, bytes)) or not 2 <= len(node) <= _MAX_BODY:
        return node
    said = node if isinstance(node, str) else node.decode("utf-8", "replace")
    if not said.startswith("{") or "retry" not in said.lower():
        return None
    try:
        return json.loads(said)
    except (ValueError, RecursionError):
        return None


def _in_retry_info(node: object) -> float | None:
    """Read a google.rpc.RetryInfo message, which `details` of a Google API error lists."""
    whole = look.number(look.dig(node, "retry_delay.seconds"))
    nanos = look.number(look.dig(node, "retry_delay.nanos"))
    return None if whole is None or nanos is None else _sensible(whole + nanos / 1e9)


def _from_text_of_cosmos(exc: BaseException, now: float, rate_limited: bool) -> float | None:
    said = _COSMOS.search(look.text(exc)) if rate_limited else None
    return None if said is None else int(said[1]) / 1000


def _in_body(node: Mapping[object, object], now: float) -> float | None:
    milliseconds = seconds(node.get("RetryAfterMs"), now)  # MongoDB API of Azure Cosmos
    if milliseconds is not None:
        return milliseconds / 1000
    for key in ("retry_after", "retryDelay", "retryAfterSeconds", "retry_after_seconds", "RetryAfterSeconds"):
        found = seconds(node.get(key), now)
        if found is not None:
            return found
    return None
