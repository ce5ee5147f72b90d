"""Messages that are wrong in one way each, as kombu's Redis transport and RabbitMQ would carry them.

`body` and `headers` are changed from those of a sound message of `resilient.echo`; what a kind does not name is sound.
"""

from __future__ import annotations

import base64
import bz2
import json
import pickle
import uuid
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

SOUND_BODY = b'[[1], {"b": 2}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'
ANY = ("undecodable", "malformed", "unknown-task")


@dataclass(frozen=True, kw_only=True)
class Kind:
    """One way to be wrong; `headers` are laid over the sound ones, a value of `...` removes the field."""

    name: str
    body: bytes = SOUND_BODY
    headers: Mapping[str, Any] = field(default_factory=dict)
    content_type: str | None = "application/json"
    content_encoding: str | None = "utf-8"
    reasons: tuple[str, ...] = ANY
    runs: bool = False

    def all_headers(self, task_id: str) -> dict[str, Any]:
        """Give the headers of a message of this kind."""
        sound = {
            "lang": "py",
            "task": "resilient.echo",
            "id": task_id,
            "root_id": task_id,
            "parent_id": None,
            "group": None,
            "eta": None,
            "expires": None,
            "retries": 0,
            "timelimit": [None, None],
            "argsrepr": "(1,)",
            "kwargsrepr": "{}",
        }
        return {name: value for name, value in {**sound, **self.headers}.items() if value is not ...}


def _body(*parts: Any) -> bytes:
    return json.dumps(list(parts)).encode()


LINKS: dict[str, Any] = {}
DEEP = b"[" * 100_000 + b"]" * 100_000
BOMB = zlib.compress(b"[" + b" " * 200_000_000 + b"]")
YAML_BOMB = b"a: &a [x,x,x,x,x,x,x,x]\n" + b"".join(
    b"%c: &%c [%s]\n" % (98 + n, 98 + n, b",".join([b"*%c" % (97 + n)] * 8)) for n in range(8)
)

KINDS: list[Kind] = [
    Kind(name="body is not JSON", body=b"{not json"),
    Kind(name="body is empty", body=b""),
    Kind(name="body is not UTF-8", body=b"\xff\xfe\xfa[[], {}, {}]"),
    Kind(name="body is a number", body=b"5"),
    Kind(name="body is null", body=b"null"),
    Kind(name="body is a text", body=b'"args"'),
    Kind(name="body is an object", body=b'{"a": 1}'),
    Kind(name="body has one part", body=_body([1])),
    Kind(name="body has two parts", body=_body([1], {})),
    Kind(name="body has four parts", body=_body([1], {}, {}, {})),
    Kind(name="args are a number", body=_body(5, {}, LINKS)),
    Kind(name="args are a text", body=_body("abc", {}, LINKS)),
    Kind(name="args are null", body=_body(None, {}, LINKS)),
    Kind(name="args are an object", body=_body({"a": 1}, {}, LINKS)),
    Kind(name="kwargs are a list", body=_body([1], [1], LINKS)),
    Kind(name="kwargs are null", body=_body([1], None, LINKS)),
    Kind(name="kwargs are a text", body=_body([1], "b", LINKS)),
    Kind(name="links are a text", body=_body([1], {}, "links")),
    Kind(name="links are a list", body=_body([1], {}, [1])),
    Kind(name="links are null", body=_body([1], {"b": 2}, None), runs=True),
    Kind(name="callbacks are a number", body=_body([1], {}, {"callbacks": 5})),
    Kind(name="chord is a text", body=_body([1], {}, {"chord": "x"})),
    Kind(name="chain is an object", body=_body([1], {}, {"chain": {"a": 1}})),
    Kind(name="deeply nested body", body=b"[[" + DEEP + b"], {}, {}]"),
    Kind(name="body nested 480 deep", body=b"[[" + b"[" * 480 + b"]" * 480 + b"], {}, {}]"),
    Kind(name="huge number", body=b"[[" + b"9" * 100_000 + b"], {}, {}]"),
    Kind(name="pickle", body=pickle.dumps(([1], {}, {})), content_type="application/x-python-serialize",
         content_encoding="binary"),
    Kind(name="yaml", body=b"[[1], {}, {}]", content_type="application/x-yaml"),
    Kind(name="yaml bomb", body=YAML_BOMB, content_type="application/x-yaml"),
    Kind(name="unknown content type", content_type="application/x-nonesuch"),
    Kind(name="content type of text", content_type="text/plain"),
    Kind(name="no content type", content_type=None, content_encoding=None),
    Kind(name="unknown content encoding", content_encoding="klingon", runs=True),
    Kind(name="unknown compression", headers={"compression": "application/x-nonesuch"}),
    Kind(name="compression that is none", headers={"compression": "application/x-gzip"}),
    Kind(name="gzip cut off", body=zlib.compress(SOUND_BODY)[:-6], headers={"compression": "application/x-gzip"}),
    Kind(name="bzip2 cut off", body=bz2.compress(SOUND_BODY)[:-6], headers={"compression": "application/x-bz2"}),
    Kind(name="compression is a list", headers={"compression": [1]}),
    Kind(name="bomb", body=BOMB, headers={"compression": "application/x-gzip"}),
    Kind(name="sound compression", body=zlib.compress(SOUND_BODY), headers={"compression": "application/x-gzip"},
         runs=True),
    Kind(name="no id", headers={"id": ...}),
    Kind(name="id is null", headers={"id": None}),
    Kind(name="id is a number", headers={"id": 17}),
    Kind(name="id is a list", headers={"id": ["a"]}),
    Kind(name="id is an object", headers={"id": {"a": 1}}),
    Kind(name="id is empty", headers={"id": ""}),
    Kind(name="id is huge", headers={"id": "x" * 50_000}),
    Kind(name="id has a NUL", headers={"id": "a\0b"}),
    Kind(name="no task", headers={"task": ...}),
    Kind(name="task is null", headers={"task": None}),
    Kind(name="task is a number", headers={"task": 5}),
    Kind(name="task is a list", headers={"task": ["resilient.echo"]}),
    Kind(name="task is an object", headers={"task": {"a": 1}}),
    Kind(name="task is empty", headers={"task": ""}),
    Kind(name="task is unknown", headers={"task": "nonesuch"}),
    Kind(name="task is unknown and id is a list", headers={"task": "nonesuch", "id": [1]}),
    Kind(name="eta is a text", headers={"eta": "tomorrow"}),
    Kind(name="eta is a number", headers={"eta": 12345}),
    Kind(name="eta is a list", headers={"eta": [1]}),
    Kind(name="eta is empty", headers={"eta": ""}),
    Kind(name="eta overflows", headers={"eta": "0001-01-01T00:00:00+14:00"}),
    Kind(name="expires is a text", headers={"expires": "never"}),
    Kind(name="expires is an object", headers={"expires": {"a": 1}}),
    Kind(name="expires is a number", headers={"expires": 1e300}),
    Kind(name="timelimit is a text", headers={"timelimit": "ab"}),
    Kind(name="timelimit is a number", headers={"timelimit": 5}),
    Kind(name="timelimit has three parts", headers={"timelimit": [1, 2, 3]}),
    Kind(name="timelimit holds texts", headers={"timelimit": ["a", "b"]}),
    Kind(name="timelimit is negative", headers={"timelimit": [-5, None]}),
    Kind(name="timelimit with an eta", headers={"timelimit": "ab", "eta": "2020-01-01T00:00:00+00:00"}),
    Kind(name="retries are a text", headers={"retries": "many"}),
    Kind(name="retries are a list", headers={"retries": [1]}),
    Kind(name="root id is a list", headers={"root_id": [1]}),
    Kind(name="group is an object", headers={"group": {"a": 1}}),
    Kind(name="shadow is a list", headers={"shadow": [1]}),
    Kind(name="stamps are a text", headers={"stamped_headers": "abc", "stamps": "abc"}),
    Kind(name="stamped headers hold lists", headers={"stamped_headers": [[1]]}),
    Kind(name="a header named as a method", headers={"get": 5, "update": "x", "delivery_info": 5},
         reasons=(*ANY, "permanent")),
    Kind(name="our header is garbage", headers={"resilience": "{not json"}, runs=True),
    Kind(name="our header is a list", headers={"resilience": [1, 2]}, runs=True),
]  # fmt: skip


def packed(kind: Kind, task_id: str, queue: str) -> str:
    """Write a message of a kind as kombu puts it into a Redis list."""
    return json.dumps(
        {
            "body": base64.b64encode(kind.body).decode(),
            "content-type": kind.content_type,
            "content-encoding": kind.content_encoding,
            "headers": kind.all_headers(task_id),
            "properties": _properties(task_id, queue),
        }
    )


def _properties(task_id: str, queue: str) -> dict[str, Any]:
    return {
        "correlation_id": task_id,
        "reply_to": str(uuid.uuid4()),
        "delivery_mode": 2,
        "delivery_info": {"exchange": "", "routing_key": queue},
        "priority": 0,
        "body_encoding": "base64",
        "delivery_tag": str(uuid.uuid4()),
    }


Change = Callable[[dict[str, Any]], Any]


def _with(**changes: Any) -> Change:
    """Change fields of the envelope; `properties__x` one of its properties, `...` removes it."""

    def change(raw: dict[str, Any]) -> Any:
        for name, value in changes.items():
            *path, last = name.replace("content_", "content-").split("__")
            place = raw
            for part in path:
                place = place[part]
            if value is ...:
                del place[last]
            else:
                place[last] = value
        return raw

    return change


# What only a Redis list can hold: the envelope itself is wrong. True where the message runs all the same.
ENVELOPES: dict[str, tuple[Change, bool]] = {
    "envelope is a list": (lambda raw: [1, 2], False),
    "envelope is a number": (lambda raw: 5, False),
    "envelope is null": (lambda raw: None, False),
    "envelope is empty": (lambda raw: {}, False),
    "no properties": (_with(properties=...), False),
    "properties are a list": (_with(properties=[1]), False),
    "no headers": (_with(headers=...), False),
    "headers are a list": (_with(headers=[1, 2]), False),
    "headers are a text": (_with(headers="task"), False),
    "headers are a number": (_with(headers=7), False),
    "headers are null": (_with(headers=None), False),
    "no body": (_with(body=...), False),
    "body is a number": (_with(body=5), False),
    "body is an object": (_with(body={"a": 1}), False),
    "body is not base64": (_with(body="!!!"), False),
    "body is cut-off base64": (_with(body="W1sxXSwge30"), False),
    "body encoding is unknown": (_with(properties__body_encoding="rot13"), False),
    "body encoding is a number": (_with(properties__body_encoding=5), False),
    "content type is a list": (_with(content_type=["a"]), False),
    "content encoding is a number": (_with(content_encoding=5), False),
    "no delivery tag": (_with(properties__delivery_tag=...), True),
    "delivery tag is a list": (_with(properties__delivery_tag=[1]), False),
    "no delivery info": (_with(properties__delivery_info=...), True),
    "delivery info is a text": (_with(properties__delivery_info="x"), False),
    "delivery info is empty": (_with(properties__delivery_info={}), True),
    "routing key is a list": (_with(properties__delivery_info={"exchange": "", "routing_key": [1]}), False),
    "header nested 480 deep": (_with(headers__mine=json.loads("[" * 480 + "]" * 480)), False),
    "reply to is nested 480 deep": (_with(properties__reply_to=json.loads("[" * 480 + "]" * 480)), False),
    "priority is a text": (_with(properties__priority="high"), True),
    "reply to is an object": (_with(properties__reply_to={"a": 1}), True),
}
