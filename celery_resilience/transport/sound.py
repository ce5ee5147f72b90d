"""Makes whatever lies in a Redis queue a message that kombu can deliver, so that no envelope ends the worker.

What is merely missing is filled in and the message runs; what is wrong is marked, with all of it kept, and becomes a
letter. What is no JSON object does not come here: the fetch sets it aside. Private kombu API is used in `tolerate` and
nowhere else: `Transport._deliver` and `Channel.decode_body`.
"""

from __future__ import annotations

import base64
import bz2
import lzma
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from kombu import compression
from kombu.utils.json import dumps
from kombu.utils.uuid import uuid

MARK = "resilience-malformed"  # a header: what was wrong with an envelope, and the envelope but for its body
MAX_DEPTH = 200  # of nested lists and objects; pickle gives up between 300 and 480
MAX_UNPACKED = 128 * 1024 * 1024  # what RabbitMQ takes at the most; a small message may unpack to more than there is


class UndecodedBody(bytes):
    """A body as it came, because the encoding that its envelope names could not be undone."""


def tolerate(channel: Any, is_ours: Callable[[str], bool]) -> None:
    """Let a Redis channel deliver any JSON that it finds in queues that are ours."""
    transport, decode = channel.connection, channel.decode_body
    deliver = transport._deliver

    def deliver_sound(raw: Any, queue: str) -> Any:
        return deliver(sound(raw, queue) if is_ours(queue) else raw, queue)

    def decode_or_keep(body: Any, encoding: Any = None) -> Any:
        try:
            decoded = decode(body, encoding)
            if encoding == "base64" and (len(body) % 4 or len(decoded) != len(body) // 4 * 3 - body.count("=", -2)):
                decoded = base64.b64decode("".join(body.split()), validate=True)  # kombu leaves out what is none
            return decoded
        except Exception:
            return UndecodedBody(body.encode("utf-8", "surrogatepass"))

    transport._deliver, channel.decode_body = deliver_sound, decode_or_keep


def sound(raw: Any, queue: str) -> Any:
    """Give a message as kombu expects one; the same object if it was one."""
    if not isinstance(raw, dict):
        return _marked({}, _written(raw), ["it is no object"], raw, queue)
    problems = _problems(raw)
    if problems:
        body = raw.get("body")
        kept = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else _written(body)
        return _marked(raw, kept, problems, {name: raw[name] for name in raw if name != "body"}, queue)
    properties = raw.get("properties") or {}
    delivery_info = properties.get("delivery_info") or {}
    if (
        raw.get("headers") is not None
        and raw.get("body") is not None
        and properties.get("delivery_tag")
        and "exchange" in delivery_info
        and "routing_key" in delivery_info
    ):
        return raw
    properties = {**properties, **_delivery(properties, queue)}
    return {**raw, "headers": raw.get("headers") or {}, "body": raw.get("body") or "", "properties": properties}


def is_too_deep(value: Any, limit: int = MAX_DEPTH) -> bool:
    """Say whether plain data is nested more deeply than it can be handed to a pool process; what is shared counts once.

    A worker that fails to hand over has lost a place in its pool for good.
    """
    level = [value] if value.__class__ in _CONTAINERS else []
    for _ in range(limit):
        found = {}
        for one in level:
            for inner in one.values() if one.__class__ is dict else one:
                if inner.__class__ in _CONTAINERS and inner:
                    found[id(inner)] = inner
        if not found:
            return False
        level = list(found.values())
    return True


def has_too_deep(fields: Mapping[str, Any]) -> bool:
    """Say whether a field holds something that is nested too deeply; quick where none holds more than a flat list."""
    return any(value.__class__ in _CONTAINERS and value and is_too_deep(value) for value in fields.values())


def bound_decompression(limit: int = MAX_UNPACKED) -> None:
    """Have kombu refuse what would unpack to more than the limit; for this process, so for workers only."""
    for names, start in (
        (("zlib", "gzip"), zlib.decompressobj),
        (("bzip2",), bz2.BZ2Decompressor),
        (("lzma",), lzma.LZMADecompressor),
    ):
        known: Any = compression.get_encoder(names[0])
        encoder, content_type = known
        compression.register(encoder, partial(_unpacked, start, limit), content_type, aliases=list(names))


def _unpacked(start: Callable[[], Any], limit: int, packed: bytes) -> bytes:
    stream = start()
    body: bytes = stream.decompress(packed, limit + 1)
    if len(body) > limit:
        raise ValueError(f"unpacks to more than {limit} bytes")
    if not stream.eof:
        raise ValueError("is cut off")
    return body


_CONTAINERS = (dict, list, tuple)
_TEXT = (str, type(None))
_OBJECT = (dict, type(None))
_FIELDS: Mapping[str, tuple[type, ...]] = {
    "headers": _OBJECT,
    "properties": _OBJECT,
    "body": _TEXT,
    "content-type": _TEXT,
    "content-encoding": _TEXT,
}
_PROPERTIES: Mapping[str, tuple[type, ...]] = {
    "body_encoding": _TEXT,
    "delivery_info": _OBJECT,
    "delivery_tag": _TEXT,
}


def _problems(raw: Mapping[str, Any]) -> list[str]:
    """Name what has the wrong type."""
    wrong = [name for name, kinds in _FIELDS.items() if not isinstance(raw.get(name), kinds)]
    if "properties" not in wrong:
        properties = raw.get("properties") or {}
        wrong += [name for name, kinds in _PROPERTIES.items() if not isinstance(properties.get(name), kinds)]
        wrong += ["properties"] if has_too_deep(properties) else []
        if "delivery_info" not in wrong:
            place = properties.get("delivery_info") or {}
            wrong += [name for name in ("exchange", "routing_key") if not isinstance(place.get(name), _TEXT)]
    return [f"{name} cannot be read" for name in wrong]


def _marked(raw: Mapping[str, Any], body: bytes, problems: list[str], kept: Any, queue: str) -> dict[str, Any]:
    """Give a well-formed message around what was none; should it be delivered again, it still bears the mark."""
    headers = raw.get("headers") if isinstance(raw.get("headers"), dict) else {}
    properties = raw.get("properties") if isinstance(raw.get("properties"), dict) else {}
    mark = dumps({"problem": ", ".join(problems), "envelope": kept})
    return {
        "body": base64.b64encode(body).decode("ascii"),
        "content-type": _text_or(raw.get("content-type"), "application/data"),
        "content-encoding": _text_or(raw.get("content-encoding"), "binary"),
        "headers": {**(headers or {}), MARK: mark, "compression": None},
        "properties": {**(properties or {}), **_delivery(properties or {}, queue), "body_encoding": "base64"},
    }


def _delivery(properties: Mapping[str, Any], queue: str) -> dict[str, Any]:
    """Give tag and place of a delivery: as they are, or new and by the queue that it was found in."""
    place = properties.get("delivery_info")
    place = place if isinstance(place, dict) else {}
    exchange, routing_key = place.get("exchange"), place.get("routing_key")
    if not isinstance(exchange, str) or not isinstance(routing_key, str):
        exchange, routing_key = "", queue
    return {
        "delivery_tag": _text_or(properties.get("delivery_tag"), "") or uuid(),
        "delivery_info": {**place, "exchange": exchange, "routing_key": routing_key},
    }


def _text_or(value: Any, otherwise: str) -> str:
    return value if isinstance(value, str) else otherwise


def _written(value: Any) -> bytes:
    return str(dumps(value)).encode("utf-8", "surrogatepass")
