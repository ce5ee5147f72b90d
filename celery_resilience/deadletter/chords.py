"""Chords that wait for a letter: kept alive while it lives, failed when it is discarded."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from celery import Celery
from celery.app.task import Context
from kombu import serialization

from ..errors import PermanentError
from ..transport.envelope import Envelope

_JOIN_KEYS = ("", ".j", ".t", ".s", ".d")
_READ = ("application/json", "application/x-msgpack")  # what cannot run code while it is read


def fail_waiters(app: Celery, envelope: Envelope, reason: str) -> None:
    """Fail a parked task as Celery would have: its chord, its chain and its errbacks are told. Safe to call twice."""
    task_id = envelope.headers.get("id")
    if isinstance(task_id, str):
        error = PermanentError(f"The dead letter was discarded: {reason}")
        backend: Any = app.backend
        backend.mark_as_failure(task_id, error, request=_request(envelope))


def keep_joins(app: Celery, groups: Iterable[str], seconds: float) -> int:
    """Extend the life of the join keys of chords that wait for letters; each sibling's return has shortened it.

    Only of back ends that join natively in Redis; gives for how many groups.
    """
    backend: Any = app.backend
    client: Any = getattr(backend, "client", None)
    if not getattr(backend, "supports_native_join", False) or not hasattr(client, "pexpire"):
        return 0
    kept = 0
    for group in groups:
        for key in _JOIN_KEYS:
            client.expire(backend.get_key_for_group(group, key), int(seconds), gt=True)
        kept += 1
    return kept


def _request(envelope: Envelope) -> Any:
    """Make the request that back ends ask about canvas; links are in the body, read only if it is plain data."""
    links: dict[str, Any] = {}
    if envelope.content_type in _READ:
        try:
            _, _, links = serialization.loads(
                envelope.body, envelope.content_type, envelope.content_encoding, accept=set(_READ)
            )
        except Exception:  # whatever a decoder says of it: then there is nothing to be told
            links = {}
    known = json.loads(json.dumps(dict(envelope.headers), default=str))
    return Context({**known, **(links or {}), "errbacks": (links or {}).get("errbacks")})
