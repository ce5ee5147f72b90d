"""The dead letter: a message as it came, byte for byte, and what is known of its end.

On its way it is the original message with one more header; the body is never decoded, only carried.
"""

from __future__ import annotations

import hashlib
import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import metadata
from typing import Any

from ..attempts import HEADER, Attempts, attempts_for
from ..clock import SYSTEM_CLOCK, Clock
from ..decision import DeadReason
from ..failure import Failure, FailureClass
from ..fingerprint import fingerprint
from ..redaction import redact_text
from ..transport.envelope import Envelope, unpack

LETTER_HEADER = "resilience-letter"
LETTER_TYPE = "application/x-resilience-letter"
MAX_HEADER = 32 * 1024
MAX_HEADERS = 100 * 1024  # AMQP's header table must fit into one frame, typically of 128 kB
MAX_TEXT = 2000
MAX_NAME = 500
MAX_ID = 64
# What would change the way through the DLQ: it travels inside the letter, and is put back on the message at its end.
_HELD_BACK = ("priority", "expiration", "user_id")
_PASSING = ("x-death", "x-delivery-count", "redelivered")
_KINDS = {
    DeadReason.POISON: "lost",
    DeadReason.TIME_LIMIT: "lost",
    DeadReason.WORKER_LOST: "lost",
    DeadReason.UNDECODABLE: "unreadable",
    DeadReason.UNKNOWN_TASK: "unreadable",
    DeadReason.MALFORMED: "unreadable",
    DeadReason.REJECTED: "unreadable",
}
_CLASSES = {
    DeadReason.POISON: FailureClass.POISON,
    DeadReason.TIME_LIMIT: FailureClass.SYSTEM,
    DeadReason.WORKER_LOST: FailureClass.SYSTEM,
    DeadReason.UNDECODABLE: FailureClass.STRUCTURAL,
    DeadReason.UNKNOWN_TASK: FailureClass.STRUCTURAL,
    DeadReason.MALFORMED: FailureClass.STRUCTURAL,
    DeadReason.CIRCUIT_OPEN: FailureClass.TRANSIENT,
}
_DEATHS = {"expired": DeadReason.EXPIRED, "delivery_limit": DeadReason.POISON}
_RAN = (DeadReason.EXHAUSTED, DeadReason.PERMANENT, DeadReason.REFUSED, DeadReason.CODE_CHANGE)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """One message that no attempt follows; `parked` says that a chord waits for its requeue or discard."""

    id: str
    reason: DeadReason
    task: str | None
    task_id: str | None
    queue: str | None
    failure_class: str
    error_type: str
    error_message: str
    traceback: str
    fingerprint: str
    attempt: int
    generation: int
    trail: tuple[Mapping[str, Any], ...]
    first_failed_at: float | None
    failed_at: float
    worker: str
    versions: Mapping[str, str]
    canvas: Mapping[str, Any]
    parked: bool = False
    job_id: str | None = None
    envelope: Envelope

    @property
    def has_run(self) -> bool:
        """Say whether its last attempt was made, and not only refused or never understood."""
        return has_run(self.reason)

    def as_dict(self) -> dict[str, Any]:
        """Give plain values for JSON, without the message itself."""
        shown = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "envelope"}
        return {
            **shown,
            "reason": str(self.reason),
            "trail": [dict(entry) for entry in self.trail],
            "versions": dict(self.versions),
            "canvas": dict(self.canvas),
        }


def has_run(reason: DeadReason) -> bool:
    """Say whether a death of this kind comes after a run of the body."""
    return reason in _RAN or _KINDS.get(reason) == "lost"


def make_letter(
    envelope: Envelope,
    reason: DeadReason,
    *,
    failure: Failure | None = None,
    error: BaseException | str | None = None,
    traceback: str = "",
    attempts: Attempts | None = None,
    queue: str | None = None,
    unique: str | None = None,
    worker: str = "",
    parked: bool = False,
    job_id: str | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> DeadLetter:
    """Make the letter of a message.

    `failure` is the classified exception; where nothing was classified, `error` (an exception, or words) speaks.
    `attempts` are by default those of the message's own header. `unique` is what tells this delivery from others if its
    task id cannot be trusted: the delivery tag on Redis; without it the message id or a new one.
    """
    task_id, now = _name(envelope.headers.get("id")), clock.time()
    attempts = attempts or attempts_for(envelope.headers.get(HEADER), task_id)
    told = _told(failure, error, reason, envelope)
    times = [entry["at"] for entry in attempts.trail if isinstance(entry.get("at"), (int, float))]
    return DeadLetter(
        id=letter_id(envelope, reason, attempts, unique or _message_id(envelope) or clock.token()),
        reason=reason,
        task=_name(envelope.headers.get("task")),
        task_id=task_id,
        queue=_name(queue) or attempts.queue or (None if envelope.exchange else _name(envelope.routing_key)),
        **told,
        traceback=redact_text(traceback),
        attempt=attempts.attempt,
        generation=attempts.generation,
        trail=attempts.trail,
        first_failed_at=float(times[0]) if times else now,
        failed_at=now,
        worker=worker[:MAX_NAME],
        versions=_versions(),
        canvas=_canvas(envelope.headers),
        parked=parked,
        job_id=job_id,
        envelope=replace(envelope, headers=_own(envelope.headers)),
    )


def letter_id(envelope: Envelope, reason: DeadReason, attempts: Attempts, unique: str) -> str:
    """Name a letter so that the same death told twice has one name; other bytes under one task id have another.

    `unique` takes the place of a task id that cannot be trusted.
    """
    task_id = _name(envelope.headers.get("id"))
    kind = _KINDS.get(reason, "ended")
    parts = [task_id or f"?{unique}", str(attempts.attempt), str(attempts.generation), kind]
    digest = hashlib.blake2b("\0".join(parts).encode("utf-8", "surrogatepass"), digest_size=16)
    digest.update(b"\0" + hashlib.blake2b(envelope.body, digest_size=16).digest())
    return digest.hexdigest()


def to_message(letter: DeadLetter, *, wrapped: bool = False) -> Envelope:
    """Give the message that carries a letter: the original with one header more.

    Where the headers would be too many for AMQP, or with `wrapped`, all of it is in the body, under a type of our own.
    """
    envelope, told = letter.envelope, letter_text(letter)
    if not wrapped and len(told) + _size(envelope.headers) <= MAX_HEADERS:
        held = {name: value for name, value in envelope.properties.items() if name not in _HELD_BACK}
        return replace(envelope, headers={**envelope.headers, LETTER_HEADER: told}, properties=held)
    body = json.dumps({"letter": told, "message": envelope.pack(letter.id)}).encode()
    return Envelope(body, LETTER_TYPE, "utf-8", {"id": letter.task_id or ""}, {"delivery_mode": 2}, "", "")


def read_letter(message: Envelope, *, unique: str | None = None, clock: Clock = SYSTEM_CLOCK) -> DeadLetter:
    """Read a letter from its message; whatever else lies in the DLQ becomes a letter too. Never raises."""
    try:
        if message.content_type == LETTER_TYPE:
            wrapped = json.loads(message.body)
            return load_letter(json.loads(wrapped["letter"]), unpack(wrapped["message"]))
        if LETTER_HEADER in message.headers:
            known = json.loads(message.headers[LETTER_HEADER])
            return load_letter(known, _as_it_was(message, known))
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError):
        pass  # not ours after all, or mutilated on the way: it is kept as a stranger's
    return _of_stranger(message, unique, clock)


def letter_text(letter: DeadLetter) -> str:
    """Write all but the message as JSON of at most 32 kB: the traceback is cut first, then the trail, then the rest."""
    envelope = letter.envelope
    known = letter.as_dict()
    known["exchange"], known["routing_key"] = envelope.exchange, envelope.routing_key
    known["held"] = {name: envelope.properties[name] for name in _HELD_BACK if name in envelope.properties}
    text = _dump(known)
    if len(text) <= MAX_HEADER:
        return text
    known["error_message"] = known["error_message"][:MAX_TEXT]
    room = MAX_HEADER - len(_dump({**known, "traceback": ""}))
    known["traceback"] = _end_of(known["traceback"], room)
    for field, empty in (("trail", []), ("canvas", {}), ("error_message", ""), ("versions", {})):
        text = _dump(known)
        if len(text) <= MAX_HEADER:
            break
        known[field] = empty
        text = _dump(known)
    return text


def load_letter(known: Mapping[str, Any], envelope: Envelope) -> DeadLetter:
    """Read a letter from its values and its message; raises ValueError, TypeError or KeyError on what is none."""
    try:
        reason = DeadReason(known["reason"])
    except ValueError:
        reason = DeadReason.REJECTED  # told by a later version
    id = _name(known["id"])
    if id is None or len(id) > MAX_ID:
        raise ValueError("the id of a letter is a short text")
    return DeadLetter(
        id=id,
        reason=reason,
        task=_name(known.get("task")),
        task_id=_name(known.get("task_id")),
        queue=_name(known.get("queue")),
        failure_class=str(known.get("failure_class") or FailureClass.UNKNOWN.value),
        error_type=str(known.get("error_type") or "")[:MAX_NAME],
        error_message=str(known.get("error_message") or ""),
        traceback=str(known.get("traceback") or ""),
        fingerprint=str(known.get("fingerprint") or "")[:64],
        attempt=_number(known.get("attempt"), 1),
        generation=_number(known.get("generation"), 0),
        trail=tuple(dict(entry) for entry in known.get("trail") or ()),
        first_failed_at=None if known.get("first_failed_at") is None else _moment(known["first_failed_at"]),
        failed_at=_moment(known["failed_at"]),
        worker=str(known.get("worker") or ""),
        versions=dict(known.get("versions") or {}),
        canvas=dict(known.get("canvas") or {}),
        parked=bool(known.get("parked")),
        job_id=_name(known.get("job_id")),
        envelope=envelope,
    )


def _as_it_was(message: Envelope, known: Mapping[str, Any]) -> Envelope:
    headers = {name: value for name, value in message.headers.items() if name != LETTER_HEADER}
    return replace(
        message,
        headers=_own(headers),
        properties={**message.properties, **dict(known.get("held") or {})},
        exchange=str(known.get("exchange") or ""),
        routing_key=str(known.get("routing_key") or ""),
    )


def _of_stranger(message: Envelope, unique: str | None, clock: Clock) -> DeadLetter:
    """Make a letter of what RabbitMQ itself, or somebody else, put into the DLQ."""
    death = _death(message.headers)
    reason = _DEATHS.get(str(death.get("reason")), DeadReason.REJECTED)
    words = f"dead-lettered by the broker: {death['reason']}" if death else "put into the DLQ by somebody else"
    keys = death.get("routing-keys")
    envelope = replace(
        message,
        exchange=str(death.get("exchange") or "") if death else message.exchange,
        routing_key=str(keys[0]) if isinstance(keys, list) and keys else message.routing_key,
    )
    queue = _name(death.get("queue"))
    if unique is None and death:  # the same however often the message is read
        unique = hashlib.blake2b(repr((message.body, sorted(death.items(), key=str))).encode()).hexdigest()
    letter = make_letter(envelope, reason, error=words, queue=queue, unique=unique, clock=clock)
    return letter if queue or not death else replace(letter, queue=None)


def _death(headers: Mapping[str, Any]) -> Mapping[str, Any]:
    deaths = headers.get("x-death")
    newest = deaths[0] if isinstance(deaths, list) and deaths else None
    return newest if isinstance(newest, Mapping) and "reason" in newest else {}


def _told(
    failure: Failure | None, error: BaseException | str | None, reason: DeadReason, envelope: Envelope
) -> dict[str, str]:
    if failure is not None:
        kind, same = failure.failure_class.value, failure.fingerprint
        error_type, words = failure.error_type, failure.message
    else:
        kind = _CLASSES.get(reason, FailureClass.UNKNOWN).value
        is_error = isinstance(error, BaseException)
        error_type = f"{type(error).__module__}.{type(error).__qualname__}" if is_error else str(reason)
        words = _words(error)
        same = fingerprint(error) if isinstance(error, BaseException) else _plain_print(reason, envelope)
    shown = redact_text(words[:MAX_TEXT])
    return {"failure_class": kind, "error_type": error_type[:MAX_NAME], "error_message": shown, "fingerprint": same}


def _words(error: BaseException | str | None) -> str:
    try:
        return str(error or "")
    except Exception:  # an exception of the user's whose __str__ fails
        return f"<{type(error).__name__} without text>"


def _plain_print(reason: DeadReason, envelope: Envelope) -> str:
    """Give what stands for a fingerprint where there was no exception: reason and task."""
    words = f"{reason}\n{_name(envelope.headers.get('task'))}"
    return hashlib.blake2b(words.encode("utf-8", "replace"), digest_size=8).hexdigest()


def _canvas(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Keep the ids of the workflow that a message belongs to; links are in the body and stay there."""
    names = ("root_id", "parent_id", "group", "replaced_task_nesting", "shadow")
    return {name: value for name in names if isinstance(value := headers.get(name), int) or (value := _name(value))}


def _own(headers: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out what the broker wrote about one delivery."""
    return {
        name: value
        for name, value in headers.items()
        if name not in _PASSING and not str(name).startswith(("x-first-death", "x-last-death"))
    }


def _message_id(envelope: Envelope) -> str | None:
    return _name(envelope.properties.get("message_id"))


def _name(value: Any) -> str | None:
    """Accept a name that brokers and databases can take; an id that is none cannot be trusted."""
    if not isinstance(value, str) or not value or len(value) > MAX_NAME or "\0" in value:
        return None
    try:
        value.encode("utf-8")
    except UnicodeError:
        return None
    return value


def _number(value: Any, low: int) -> int:
    """Read a count that every database can hold."""
    return max(low, min(int(value or low), 2**31 - 1))


def _moment(value: Any) -> float:
    """Read a time in seconds; raises ValueError on what is none."""
    moment = float(value)
    if not 0 <= moment <= 1e11:
        raise ValueError(f"{moment} is not a time")
    return moment


def _size(headers: Mapping[str, Any]) -> int:
    return len(json.dumps(headers, default=str))


def _dump(known: Mapping[str, Any]) -> str:
    return json.dumps(known, separators=(",", ":"), default=str)


def _end_of(text: str, room: int) -> str:
    """Give the end of a text that fits when it is written as JSON; the end says what happened."""
    while text and len(json.dumps(text)) > room:
        text = text[max(1, (len(json.dumps(text)) - room) // 6) :]  # six is what one character takes at the most
    return text


@cache
def _versions() -> dict[str, str]:
    known = {"python": platform.python_version()}
    for package in ("celery", "kombu", "celery-resilience"):
        try:
            known[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return known
