"""A whole message as a value: the bytes of its body and everything around them.

Packed, it is what kombu's virtual transports put into a queue; so on a Redis broker it needs no unpacking on its way.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from celery.utils.saferepr import saferepr
from kombu import serialization
from kombu.message import Message
from kombu.utils.json import dumps, loads

RAW = "resilience_raw"  # the property under which a worker hands the original message to the process that runs it
# Told by the envelope's own fields, or true of one delivery only.
_OF_ONE_DELIVERY = (
    RAW,
    "application_headers",
    "body_encoding",
    "content_encoding",
    "content_type",
    "delivery_info",
    "delivery_tag",
)


@dataclass(frozen=True, slots=True)
class Envelope:
    """One message: body as bytes, headers and properties as they came."""

    body: bytes
    content_type: str
    content_encoding: str
    headers: Mapping[str, Any]
    properties: Mapping[str, Any]
    exchange: str
    routing_key: str

    @property
    def priority(self) -> int:
        """Give the priority, 0 if it has none."""
        priority = self.properties.get("priority")
        return priority if isinstance(priority, int) else 0

    def pack(self, delivery_tag: str) -> str:
        """Write the message as kombu's virtual transports do, under a new delivery tag."""
        delivery_info = {"exchange": self.exchange, "routing_key": self.routing_key}
        properties = {
            **self.properties,
            "delivery_info": delivery_info,
            "delivery_tag": delivery_tag,
            "body_encoding": "base64",
        }
        packed: str = dumps(
            {
                "body": base64.b64encode(self.body).decode("ascii"),
                "content-encoding": self.content_encoding,
                "content-type": self.content_type,
                "headers": dict(self.headers),
                "properties": properties,
            }
        )
        return packed


def unpack(packed: str | bytes) -> Envelope:
    """Read a packed message."""
    known = loads(packed)
    properties = dict(known["properties"])
    delivery_info = properties.get("delivery_info") or {}
    return Envelope(
        body=base64.b64decode(known["body"]),
        content_type=known["content-type"],
        content_encoding=known["content-encoding"],
        headers=known["headers"],
        properties={name: value for name, value in properties.items() if name not in _OF_ONE_DELIVERY},
        exchange=delivery_info.get("exchange") or "",
        routing_key=delivery_info.get("routing_key") or "",
    )


def hand_over(message: Message) -> None:
    """Leave the original message in its properties, for whichever process runs the task.

    The same objects travel to a prefork child already; a second reference to them costs a few bytes of pickle.
    """
    properties: dict[str, Any] = message.properties
    properties[RAW] = (message.body, message.content_type, message.content_encoding, message.headers)


def original(properties: Mapping[str, Any] | None, delivery_info: Mapping[str, Any] | None) -> Envelope | None:
    """Give the message as it was delivered, None if no worker of ours received it."""
    raw = (properties or {}).get(RAW)
    if raw is None or properties is None:
        return None
    body, content_type, content_encoding, headers = raw
    delivery_info = delivery_info or {}
    return Envelope(
        body=body.encode("utf-8") if isinstance(body, str) else bytes(body),
        content_type=content_type,
        content_encoding=content_encoding,
        headers=_own_headers(headers),
        properties={name: value for name, value in properties.items() if name not in _OF_ONE_DELIVERY},
        exchange=delivery_info.get("exchange") or "",
        routing_key=delivery_info.get("routing_key") or "",
    )


def received(message: Message) -> Envelope:
    """Give a message as it was delivered, whatever is wrong with it; one that could not be unpacked stays packed."""
    body: Any = message.body
    given: Any = message.headers
    headers = given if isinstance(given, Mapping) else {}
    own = _own_headers(headers)
    if message.errors and headers.get("compression"):
        own["compression"] = headers["compression"]
    place: Any = message.delivery_info
    delivery_info = place if isinstance(place, Mapping) else {}
    return Envelope(
        body=body.encode("utf-8", "surrogatepass") if isinstance(body, str) else bytes(body or b""),
        content_type=_text_or(message.content_type, "application/data"),
        content_encoding=_text_or(message.content_encoding, "binary"),
        headers=own,
        properties={name: value for name, value in message.properties.items() if name not in _OF_ONE_DELIVERY},
        exchange=_text_or(delivery_info.get("exchange"), ""),
        routing_key=_text_or(delivery_info.get("routing_key"), ""),
    )


def with_arguments(
    envelope: Envelope, args: Sequence[Any], kwargs: Mapping[str, Any], *, accept: Iterable[str]
) -> Envelope:
    """Give the message with other arguments, in the serialization it came in; its canvas links stay."""
    _, _, embed = serialization.loads(
        envelope.body,
        envelope.content_type,
        envelope.content_encoding,
        accept=serialization.prepare_accept_content(accept),
    )
    registry: Any = serialization.registry  # type: ignore[attr-defined]  # public in kombu, not in its stubs
    name = registry.type_to_name[envelope.content_type]
    content_type, content_encoding, body = registry.dumps((args, kwargs, embed), serializer=name)
    headers = {**envelope.headers, "argsrepr": saferepr(args), "kwargsrepr": saferepr(kwargs)}
    return replace(
        envelope,
        body=body.encode(content_encoding) if isinstance(body, str) else bytes(body),
        content_type=content_type,
        content_encoding=content_encoding,
        headers=headers,
    )


def _own_headers(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what tells of one delivery only: kombu's mark, broker deaths, and a compression already undone."""
    passing = ("redelivered", "compression", "x-death", "x-delivery-count")
    return {
        name: value
        for name, value in headers.items()
        if name not in passing and not str(name).startswith(("x-first-death", "x-last-death"))
    }


def _text_or(value: Any, otherwise: str) -> str:
    return value if isinstance(value, str) and value else otherwise
